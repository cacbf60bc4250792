"""Where a checkpoint's files come from: revisions, caches, subfolders, shards."""

import huggingface_hub
import pytest
import torch
from tiny import TINY, make
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedConfig

from layermem import LimeConfig, LimeForCausalLM

AUTO = AutoModelForCausalLM
NAME = "org/name"
# Revision -> fields and seed. "other" has the shapes of "main": only numbers tell them apart.
REVISIONS = {
    "main": ({}, 0),
    "short": ({"num_hidden_layers": 2}, 1),
    "other": ({"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}, 2),
}
PLACES = [(revision, subfolder) for revision in REVISIONS for subfolder in ("", "inner")]


def build(kind, place):
    revision, subfolder = place
    fields, seed = REVISIONS[revision]
    fields = {**TINY, **fields, "rms_norm_eps": 1e-5 if subfolder else 1e-6}
    seed += 10 * bool(subfolder)
    if kind == "lime":
        return make(LimeForCausalLM, LimeConfig(**fields), seed)
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**fields)).eval()


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """The Auto classes look for an adapter on the net, whatever they are told."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module", params=["lime", "llama"])
def hub(request, tmp_path_factory):
    """A cache as the hub's client leaves it, with every place filled: (kind, folder)."""
    cache = tmp_path_factory.mktemp("cache")
    repository = cache / f"models--{NAME.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    for number, revision in enumerate(REVISIONS):
        commit = f"{number + 1:040x}"
        (repository / "refs" / revision).write_text(commit)
        for subfolder in ("", "inner"):
            folder = repository / "snapshots" / commit / subfolder
            build(request.param, (revision, subfolder)).save_pretrained(folder)
    return request.param, cache


def snapshot(cache, revision):
    repository = cache / f"models--{NAME.replace('/', '--')}"
    return repository / "snapshots" / (repository / "refs" / revision).read_text()


def loaders(kind):
    if kind == "llama":
        return [LimeForCausalLM.from_llama]
    return [LimeForCausalLM.from_pretrained, AUTO.from_pretrained]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: "-".join(place))
def test_config_and_weights_are_of_one_place(hub, place, ids):
    kind, cache = hub
    revision, subfolder = place
    where = {"cache_dir": cache, "local_files_only": True, "revision": revision}
    where |= {"subfolder": subfolder} if subfolder else {}
    expected = build(kind, place)(ids).logits
    at_commit = {**where, "revision": snapshot(cache, revision).name}
    for load in loaders(kind):
        for at in (where, at_commit):
            torch.testing.assert_close(load(NAME, **at)(ids).logits, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["token", "proxies", "force_download", "local_files_only"])
def test_every_read_of_a_config_is_told_how(hub, name, monkeypatch):
    kind, cache = hub
    value = {"token": "secret", "proxies": {"https": "here"}}.get(name, True)
    told = []
    real = PreTrainedConfig.get_config_dict.__func__

    def spy(cls, source, **kwargs):
        # transformers' own reads are under the config's class, ours and AutoConfig's are not.
        told.extend([kwargs.get(name)] if cls is PreTrainedConfig else [])
        return real(cls, source, **kwargs)

    monkeypatch.setattr(PreTrainedConfig, "get_config_dict", classmethod(spy))
    for load in loaders(kind):
        load(snapshot(cache, "main"), **{name: value})
    assert told and told == [value] * len(told)


@pytest.mark.parametrize("kind", ["lime", "llama"])
def test_shards_in_a_subfolder(kind, ids, tmp_path):
    """They are read, and one that is missing is named."""
    model, folder = build(kind, ("main", "")), tmp_path / "inner"
    model.save_pretrained(folder, max_shard_size="20KB")
    for load in loaders(kind):
        got = load(tmp_path, subfolder="inner", device_map="auto", dtype="float32")
        torch.testing.assert_close(got(ids).logits, model(ids).logits, rtol=0, atol=1e-6)
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    for load in loaders(kind):
        with pytest.raises(OSError, match=shard.name):
            load(tmp_path, subfolder="inner")
