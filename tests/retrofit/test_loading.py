"""Saved attached models: opened by Auto classes and ``load_attached``, and what is refused."""

import copy
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import transformers as hf
from host_models import HOSTS, make_attached, make_host, make_ids, shake_routers
from safetensors.torch import load_file, save_file

from layermem.retrofit import Host, attach, detach, load_attached, router_parameters, save_routers
from layermem_bench.text.tokenizers import load_tokenizer

EAGER = {"attn_implementation": "eager"}


def logits_of(model, ids=None):
    with torch.no_grad():
        return model.eval()(input_ids=make_ids() if ids is None else ids).logits


def save(model, folder):
    model.save_pretrained(folder)
    load_tokenizer("bytes").save_pretrained(folder)
    return folder


def drop_weights(folder, part):
    """Rewrite the weights of a folder without those whose name has a part."""
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if part not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An attached model that knows bytes, and its folder."""
    model = make_attached("llama", vocab_size=300, pad_token_id=256, window=2)
    return model, save(model, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """A folder with a base and, by themselves, its routers; and the logits of the two."""
    folder = tmp_path_factory.mktemp("adapter")
    make_host("llama").save_pretrained(folder / "base")
    model = shake_routers(attach(hf.LlamaForCausalLM.from_pretrained(folder / "base")))
    save_routers(model, folder / "routers")
    model.save_pretrained(folder / "whole")
    return folder, logits_of(model)


@pytest.mark.parametrize("name", HOSTS)
def test_an_auto_class_opens_what_was_saved_and_the_hosts_own_refuses(name, tmp_path):
    model = make_attached(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    model.save_pretrained(tmp_path)
    encoder = name.startswith(("bert", "roberta", "deberta"))
    auto = hf.AutoModelForMaskedLM if encoder else hf.AutoModelForCausalLM
    again, info = auto.from_pretrained(tmp_path, **EAGER, output_loading_info=True)
    assert type(again) is type(model) and type(again.config) is type(model.config)
    assert not any(info.values())
    assert torch.equal(logits_of(again), logits_of(model))
    assert len(list(router_parameters(again))) == 3
    # The host's own class would leave the routers out, and transformers only report them.
    for cls in (type(model), type(model.base_model)):
        with pytest.raises(Exception, match="layer memory is attached: pip install layermem"):
            cls.from_pretrained(tmp_path)
        config = hf.AutoConfig.from_pretrained(tmp_path)
        with pytest.raises(AttributeError):
            cls.from_pretrained(tmp_path, config=config)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_any_precision_and_shards(whole, dtype, tmp_path):
    whole[0].save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    again = hf.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    routers = {id(parameter) for parameter in router_parameters(again)}
    for parameter in again.parameters():
        assert parameter.dtype == (torch.float32 if id(parameter) in routers else dtype)
    expected = logits_of(load_attached(tmp_path, dtype=torch.float32))
    assert (logits_of(again).float() - expected).abs().max() < 0.05 * expected.abs().max()


def test_other_heads_and_the_base_alone(whole, tmp_path):
    model, folder = whole
    base = hf.AutoModel.from_pretrained(folder, **EAGER).eval()
    classifier = hf.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)
    config = hf.AutoConfig.from_pretrained(folder)
    for each in (base, classifier, hf.AutoModelForCausalLM.from_config(config)):
        assert len(list(router_parameters(each))) == 3
    with torch.no_grad():
        expected = model.model(make_ids()).last_hidden_state
        assert torch.equal(base(make_ids()).last_hidden_state, expected)
    classifier.save_pretrained(tmp_path)
    loaded = load_attached(tmp_path, auto_class=hf.AutoModelForSequenceClassification)
    assert type(detach(loaded)) is hf.LlamaForSequenceClassification
    assert loaded.config.num_labels == 3
    with pytest.raises(ValueError, match=r"lm_head\.weight"):
        load_attached(folder, auto_class=hf.AutoModelForSequenceClassification)


def test_saved_again_it_is_the_same_and_detached_it_is_the_host(whole, tmp_path):
    model, folder = whole
    again = hf.AutoModelForCausalLM.from_pretrained(folder, **EAGER)
    again.save_pretrained(tmp_path / "again")
    config = hf.AutoConfig.from_pretrained(folder)
    config.save_pretrained(tmp_path / "config")
    for twin in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert twin.to_json_string() == config.to_json_string()
    texts = [(tmp_path / name / "config.json").read_text() for name in ("again", "config")]
    assert texts == [(folder / "config.json").read_text()] * 2
    detach(again).save_pretrained(tmp_path / "bare")
    bare = hf.LlamaForCausalLM.from_pretrained(tmp_path / "bare", **EAGER)
    assert json.loads((tmp_path / "bare" / "config.json").read_text())["model_type"] == "llama"
    assert torch.equal(logits_of(bare), logits_of(detach(copy.deepcopy(model))))


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_one_of_two_stacks_of_a_class(stack, tmp_path):
    sizes = {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 3, "num_heads": 4}
    config = hf.T5Config(vocab_size=61, **sizes, decoder_start_token_id=0)
    model = hf.T5ForConditionalGeneration(config).eval()
    names = {"attention": "layer.0.SelfAttention", "key": "k", "value": "v"}
    shake_routers(attach(model, host=Host(layers=f"{stack}.block", **names)))
    model.save_pretrained(tmp_path)
    loaded = load_attached(tmp_path, auto_class=hf.AutoModelForSeq2SeqLM).eval()
    inputs = {"input_ids": make_ids(), "decoder_input_ids": make_ids()[:, :4]}
    assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
    other = {"encoder": model.decoder, "decoder": model.encoder}[stack]
    attach(other, host=Host(layers="block", **names))
    for call in (save_routers, lambda model, path: model.save_pretrained(path)):
        with pytest.raises(ValueError, match="has 2 stacks"):
            call(model, tmp_path / "both")


# An adapter and its base


def test_an_adapter_finds_the_base_that_it_names(adapter):
    folder, logits = adapter
    assert torch.equal(logits_of(load_attached(folder / "routers")), logits)
    moved = load_attached(folder / "routers", base=folder / "base", dtype=torch.float32)
    assert torch.equal(logits_of(moved), logits)


def test_routers_find_the_commit_of_the_hub_that_they_were_trained_on(hub_cache, tmp_path):
    """Whatever was pushed since; with several commits at hand it is not guessed."""

    def revision():
        return json.loads((tmp_path / "routers" / "routers.json").read_text())["base"]["revision"]

    first = hub_cache.push("org/base", make_host("llama").save_pretrained)
    model = shake_routers(attach(hf.AutoModelForCausalLM.from_pretrained("org/base")).eval())
    save_routers(model, tmp_path / "routers")
    assert revision() == first
    hub_cache.push("org/base", make_host("llama", seed=1).save_pretrained)
    found = load_attached(tmp_path / "routers")
    assert torch.equal(logits_of(found), logits_of(model))
    save_routers(found, tmp_path / "routers")
    assert revision() == first
    save_routers(attach(hf.AutoModelForCausalLM.from_pretrained("org/base")), tmp_path / "routers")
    # transformers below 5.24 says it of a loaded model.
    assert revision() in (None, hub_cache.commit("org/base"))


def without_a_router(folder, tmp_path):
    drop_weights(shutil.copytree(folder / "whole", tmp_path / "whole"), "layers.2.self_attn.memory")
    return {"folder": tmp_path / "whole"}


def of_another_base(folder, tmp_path):
    make_host("llama", seed=5).save_pretrained(tmp_path / "other")
    return {"folder": folder / "routers", "base": tmp_path / "other"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder, _: {"folder": folder / "base"}, "holds no routers"),
        (
            lambda folder, _: {"folder": folder / "routers", "base": folder / "whole"},
            "has layer memory already",
        ),
        (without_a_router, r"lacks 1 .*model\.layers\.2\.self_attn\.memory"),
        (of_another_base, "weights are others"),
    ],
)
def test_what_would_be_another_model_is_refused(adapter, make, message, tmp_path):
    with pytest.raises((ValueError, OSError), match=message):
        load_attached(**make(adapter[0], tmp_path))


def test_a_lost_base_of_a_relative_path_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    """Whose client waits most of a minute for a network that is not there."""
    monkeypatch.chdir(tmp_path)
    make_host("llama").save_pretrained("runs/base")
    save_routers(attach(hf.AutoModelForCausalLM.from_pretrained("runs/base")), "routers")
    assert load_attached("routers").config.num_hidden_layers == 4
    Path("runs").rename("moved")
    monkeypatch.setattr("huggingface_hub.file_download.get_hf_file_metadata", pytest.fail)
    with pytest.raises(ValueError, match=r"runs/base.*base="):
        load_attached("routers")


def test_the_hub_is_asked_once_for_a_lost_base(tmp_path, monkeypatch):
    model, asked = make_attached("llama"), Mock(side_effect=OSError("no network"))
    model.config._name_or_path = "org/gone"
    save_routers(model, tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("socket.getaddrinfo", asked)
    # The first time in a process huggingface_hub asks something of its own too.
    for _ in range(2):
        before = asked.call_count
        with pytest.raises(ValueError, match=r"org/gone.*base="):
            load_attached(tmp_path)
    assert asked.call_count == before + 1


# Without layermem

WITHOUT = """
import json, sys
sys.modules["layermem"] = None
import transformers
from transformers import AutoModelForCausalLM as auto
outcomes = {}
for name, load in {
    "auto": lambda: auto.from_pretrained("whole"),
    "trusted": lambda: auto.from_pretrained("whole", trust_remote_code=True),
    "class": lambda: transformers.LlamaForCausalLM.from_pretrained("whole"),
    "base": lambda: auto.from_pretrained("base"),
}.items():
    try:
        load()
        outcomes[name] = None
    except Exception as error:
        outcomes[name] = str(error)
print("\\n" + json.dumps(outcomes))
"""


@pytest.mark.slow
def test_without_layermem_all_is_refused(tmp_path):
    save(make_host("llama"), tmp_path / "base")
    save(make_attached("llama"), tmp_path / "whole")
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert outcomes.pop("base") is None
    # transformers asks to trust the module first that says what is missing.
    assert "trust_remote_code" in outcomes.pop("auto")
    assert all("layermem" in message.lower() for message in outcomes.values()), outcomes
