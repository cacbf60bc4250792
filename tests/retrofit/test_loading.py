"""``load_attached``: whole checkpoints and adapters, and what is refused."""

import json
import logging
import shutil

import pytest
import torch
import transformers
from host_models import make_attached, make_host, make_ids, shake_routers
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
)

from layermem.retrofit import (
    Host,
    attach,
    detach,
    load_attached,
    router_parameters,
    save_routers,
    trainable,
)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """A base, the routers saved beside it by themselves, and ids with their logits."""
    folder = tmp_path_factory.mktemp("adapter")
    make_host("llama").save_pretrained(folder / "base")
    model = shake_routers(attach(type(make_host("llama")).from_pretrained(folder / "base")).eval())
    save_routers(model, folder / "routers")
    model.save_pretrained(folder / "whole")
    ids = make_ids()
    with torch.no_grad():
        return folder, ids, model(ids).logits


def logits_of(model, ids):
    with torch.no_grad():
        return model.eval()(ids).logits


def test_an_adapter_finds_the_base_that_it_names(adapter):
    folder, ids, logits = adapter
    assert torch.equal(logits_of(load_attached(folder / "routers"), ids), logits)
    moved = load_attached(folder / "routers", base=folder / "base", dtype=torch.float32)
    assert torch.equal(logits_of(moved, ids), logits)


def test_routers_find_the_commit_of_the_hub_that_they_were_trained_on(hub_cache, tmp_path):
    """Whatever was pushed since; with several commits at hand it is not guessed."""

    def revision():
        return json.loads((tmp_path / "routers" / "routers.json").read_text())["base"]["revision"]

    first = hub_cache.push("org/base", make_host("llama").save_pretrained)
    model = shake_routers(attach(AutoModelForCausalLM.from_pretrained("org/base")).eval())
    save_routers(model, tmp_path / "routers")
    assert revision() == first
    hub_cache.push("org/base", make_host("llama", seed=1).save_pretrained)
    found = load_attached(tmp_path / "routers")
    assert torch.equal(logits_of(found, make_ids()), logits_of(model, make_ids()))
    save_routers(found, tmp_path / "routers")
    assert revision() == first
    save_routers(attach(AutoModelForCausalLM.from_pretrained("org/base")), tmp_path / "routers")
    # transformers below 5.24 says it of a loaded model.
    assert revision() in (None, hub_cache.commit("org/base"))


@pytest.mark.parametrize(("name", "auto"), [("gpt2", None), ("bert", AutoModelForMaskedLM)])
def test_a_whole_checkpoint_computes_what_was_saved(name, auto, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    model, ids = make_attached(name, window=2), make_ids()
    trainable(model, "all")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    model.save_pretrained(tmp_path)
    options = {} if auto is None else {"auto_class": auto}
    again = load_attached(tmp_path, attn_implementation="eager", **options)
    assert torch.equal(logits_of(again, ids), logits_of(model, ids))
    # Transformers' report of weights without a place would say that the routers are lost.
    assert "UNEXPECTED" not in caplog.text


def test_a_sharded_checkpoint_is_loaded(adapter, tmp_path):
    folder, ids, logits = adapter
    load_attached(folder / "whole").save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert torch.equal(logits_of(load_attached(tmp_path), ids), logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_base_in_half_precision_is_the_same(adapter, dtype):
    model = load_attached(adapter[0] / "routers", dtype=dtype)
    assert model.dtype is dtype and next(router_parameters(model)).dtype is torch.float32


def copy(folder, to):
    shutil.copytree(folder, to)
    return to


def without_a_layer(folder, tmp_path):
    path = copy(folder / "whole", tmp_path / "whole")
    weights = load_file(path / "model.safetensors")
    kept = {name: w for name, w in weights.items() if "layers.1.mlp" not in name}
    save_file(kept, path / "model.safetensors", metadata={"format": "pt"})
    return {"folder": path}


def with_another_weight(folder, tmp_path):
    path = copy(folder / "whole", tmp_path / "whole")
    weights = load_file(path / "model.safetensors")
    weights["model.layers.2.self_attn.k_proj.lora_A.weight"] = torch.zeros(2, 2)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return {"folder": path}


def of_another_base(folder, tmp_path):
    make_host("llama", seed=5).save_pretrained(tmp_path / "other")
    return {"folder": folder / "routers", "base": tmp_path / "other"}


def without_a_name(folder, tmp_path):
    save_routers(make_attached("llama"), tmp_path / "unnamed")
    return {"folder": tmp_path / "unnamed"}


def of_a_lost_base(folder, tmp_path):
    model = make_attached("llama")
    model.model.config._name_or_path = str(tmp_path / "gone")
    save_routers(model, tmp_path / "routers")
    return {"folder": tmp_path / "routers"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder, _: {"folder": folder / "base"}, "base holds no routers"),
        (
            lambda folder, _: {"folder": folder / "routers", "base": folder / "whole"},
            "has layer memory already",
        ),
        (
            lambda folder, _: {
                "folder": folder / "routers",
                "auto_class": AutoModelForSequenceClassification,
            },
            "lacks 1 of the model's weights, such as score.weight",
        ),
        (without_a_layer, "whole lacks 3 of the model's weights, such as model.layers.1.mlp"),
        (with_another_weight, "holds 1 weights that its model has no place for.*lora_A"),
        (of_another_base, "whose weights are others than those of this LlamaModel"),
        (without_a_name, "names no base .* but ''"),
        (of_a_lost_base, "names no base that is on this machine, but .*gone"),
    ],
)
def test_what_would_be_another_model_is_refused(adapter, make, message, tmp_path):
    with pytest.raises((ValueError, OSError), match=message):
        load_attached(**make(adapter[0], tmp_path))


def test_a_lost_base_of_a_relative_path_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    """Whose client waits most of a minute for a network that is not there."""
    monkeypatch.chdir(tmp_path)
    make_host("llama").save_pretrained("runs/base")
    model = attach(AutoModelForCausalLM.from_pretrained("runs/base"))
    save_routers(model, "routers")
    assert load_attached("routers").config.num_hidden_layers == 4
    (tmp_path / "runs").rename("moved")
    monkeypatch.setattr("layermem.retrofit.loading.find_commit", pytest.fail)
    with pytest.raises(ValueError, match="runs/base"):
        load_attached("routers")


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_one_of_two_stacks_of_a_class(stack, tmp_path):
    sizes = {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 3, "num_heads": 4}
    config = T5Config(vocab_size=61, **sizes, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config).eval()
    names = {"attention": "layer.0.SelfAttention", "key": "k", "value": "v"}
    shake_routers(attach(model, host=Host(layers=f"{stack}.block", **names)))
    model.save_pretrained(tmp_path)
    loaded = load_attached(tmp_path, auto_class=AutoModelForSeq2SeqLM).eval()
    ids = make_ids()
    inputs = {"input_ids": ids, "decoder_input_ids": ids[:, :4]}
    assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
    other = {"encoder": model.decoder, "decoder": model.encoder}[stack]
    attach(other, host=Host(layers="block", **names))
    with pytest.raises(ValueError, match="has 2 stacks"):
        save_routers(model, tmp_path / "routers")
    with pytest.raises(ValueError, match="has 2 stacks"):
        model.save_pretrained(tmp_path / "both")


@pytest.mark.parametrize(
    ("model_class", "auto"),
    [
        (transformers.LlamaModel, transformers.AutoModel),
        (transformers.LlamaForSequenceClassification, AutoModelForSequenceClassification),
    ],
)
def test_a_model_is_loaded_as_what_it_is(model_class, auto, tmp_path):
    attach(model_class(make_host("llama").config)).save_pretrained(tmp_path)
    assert type(detach(load_attached(tmp_path, auto_class=auto))) is model_class


def test_embeddings_of_an_encoder_that_are_missing(tmp_path):
    make_attached("bert").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    left = {name: weight for name, weight in weights.items() if "position" not in name}
    save_file(left, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="lacks 1 of the model's weights, such as bert.embeddings"):
        AutoModelForMaskedLM.from_pretrained(tmp_path)
