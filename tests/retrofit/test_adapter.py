"""Saved routers: round trips, checkpoints, copies, and what is refused."""

import copy
import json
import subprocess
import sys

import pytest
import torch
from host_models import make_attached, make_host, make_ids, shake_routers
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from tiny import TINY
from transformers import AutoModelForCausalLM

from layermem import LimeConfig, LimeForCausalLM
from layermem.retrofit import (
    adapter,
    attach,
    detach,
    load_attached,
    load_routers,
    router_parameters,
    save_routers,
)

# Transformers tells of the routers that the bare model has no place for.
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 2.0,
    "original_max_position_embeddings": 32,
}
ROUND_TRIP = """
import sys, torch, layermem
from transformers import AutoModelForCausalLM
base, routers, expected = sys.argv[1:]
model = layermem.attach(AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager"))
layermem.load_routers(model, routers)
saved = torch.load(expected)
with torch.no_grad():
    assert torch.equal(model(saved["ids"]).logits, saved["logits"])
print("equal")
"""


@pytest.mark.slow
def test_routers_are_loaded_in_another_process(tmp_path):
    model, ids = make_host("llama"), make_ids()
    model.save_pretrained(tmp_path / "base")
    shake_routers(attach(model))
    save_routers(model, tmp_path / "routers")
    with torch.no_grad():
        torch.save({"ids": ids, "logits": model(ids).logits}, tmp_path / "expected")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            ROUND_TRIP,
            *(tmp_path / n for n in ("base", "routers", "expected")),
        ],
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "equal", done.stderr


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "deberta", "gemma3"])
@pytest.mark.parametrize("window", [None, 2], ids=["full", "last-2"])
def test_routers_are_saved_and_loaded(name, window, tmp_path):
    model, ids = make_attached(name, window=window), make_ids()
    save_routers(model, tmp_path)
    assert (tmp_path / "routers.safetensors").stat().st_size < 8000
    again = attach(make_host(name), router="last" if window else "full", window=window)
    load_routers(again, tmp_path)
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)


@pytest.mark.parametrize("grain", ["pair", "layer"])
def test_routers_of_keys_and_values_apart_are_saved_and_loaded(grain, tmp_path):
    model, ids = make_attached(shares_kv=False, grain=grain), make_ids()
    save_routers(model, tmp_path / "adapter")
    again = attach(make_host("llama"), shares_kv=False, grain=grain)
    load_routers(again, tmp_path / "adapter")
    model.save_pretrained(tmp_path / "whole")
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", attn_implementation="eager")
    make_host("llama").save_pretrained(tmp_path / "base")
    eager = {"attn_implementation": "eager"}
    attached = load_attached(tmp_path / "adapter", base=tmp_path / "base", **eager)
    with torch.no_grad():
        for other in (again, whole, attached):
            assert torch.equal(other(ids).logits, model(ids).logits)
    for folder, text in (("adapter", "shares_kv=False"), ("whole", "keys and values apart")):
        assert text in (tmp_path / folder / "README.md").read_text()
    with pytest.raises(ValueError, match=r"with shares_kv=False, this .* shares_kv=True"):
        load_routers(attach(make_host("llama"), grain=grain), tmp_path / "adapter")


def test_a_file_without_what_was_added_later_means_the_defaults(tmp_path):
    model, ids = make_attached(), make_ids()
    save_routers(model, tmp_path)
    settings = json.loads((tmp_path / "routers.json").read_text())
    del settings["shares_kv"], settings["grain"]
    (tmp_path / "routers.json").write_text(json.dumps(settings))
    again = attach(make_host("llama"))
    load_routers(again, tmp_path)
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
    with pytest.raises(ValueError, match="grain='pair', this .* has grain='layer'"):
        load_routers(attach(make_host("llama"), grain="layer"), tmp_path)


def test_the_base_may_have_another_precision(tmp_path):
    save_routers(make_attached("llama"), tmp_path)
    load_routers(attach(make_host("llama").bfloat16()), tmp_path)


def test_a_whole_checkpoint_keeps_the_routers(tmp_path):
    model, ids = make_attached("llama"), make_ids()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    model.save_pretrained(tmp_path)
    assert "model.layers.3.self_attn.memory.weight" in load_file(tmp_path / "model.safetensors")
    again = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
    assert not list(tmp_path.glob("routers*"))
    detach(model).save_pretrained(tmp_path / "bare")
    assert not list((tmp_path / "bare").glob("routers*"))


def test_a_state_dict_travels(tmp_path):
    model, ids = make_attached("llama"), make_ids()
    other = attach(make_host("llama", seed=7))
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(other(ids).logits, model(ids).logits)


@pytest.mark.parametrize("native", [False, True])
def test_a_state_dict_of_other_sources_of_the_same_number_is_refused(native, tmp_path):
    def model_of(router, window):
        if native:
            return LimeForCausalLM(LimeConfig(**TINY, router=router, router_window=window))
        return attach(make_host("llama"), router=router, window=window)

    torch.save(model_of("first", 1).state_dict(), tmp_path / "weights")
    saved = torch.load(tmp_path / "weights", weights_only=True)
    model_of("first", 1).load_state_dict(saved)
    with pytest.raises(RuntimeError, match=r"reads the layers \[0, 2, 3\], and .* \[1, 2, 3\]"):
        model_of("last", 3).load_state_dict(saved)


def test_a_card_of_routers_that_were_replaced_is_replaced(tmp_path):
    save_routers(make_attached("llama"), tmp_path)
    save_routers(attach(make_host("llama"), router="last", window=2), tmp_path)
    assert "| routers | last, window 2 |" in (tmp_path / "README.md").read_text()
    with (tmp_path / "README.md").open("a") as file:
        file.write("edited by hand")
    save_routers(make_attached("llama"), tmp_path)
    assert "| routers | last, window 2 |" in (tmp_path / "README.md").read_text()


def test_the_card_says_what_the_routers_are_for(tmp_path):
    model = make_attached("llama", window=2)
    model.model.config._name_or_path = "someone/base-model"
    save_routers(model, tmp_path)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.library_name == "layermem"
    assert card.data.base_model == "someone/base-model"
    assert 'attach(model, router="last", window=2)' in card.text
    (tmp_path / "README.md").write_text("written by hand")
    save_routers(model, tmp_path)
    assert (tmp_path / "README.md").read_text() == "written by hand"


def test_the_card_of_routers_states_the_licence_of_their_base(tmp_path):
    base, routers = tmp_path / "base", tmp_path / "routers"
    base.mkdir()
    (base / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    model = make_attached("llama")
    save_routers(model, routers)
    assert "the base model above, whose licence is not known" in (routers / "README.md").read_text()
    model.model.config._name_or_path = str(base)
    save_routers(model, routers)
    card = (routers / "README.md").read_text()
    assert "base model above, which has the licence apache-2.0. No licence is stated" in card
    # Moved to where the base is not: the card is still that of its routers, and is replaced.
    (base / "README.md").unlink()
    save_routers(model, routers)
    assert "licence is not known" in (routers / "README.md").read_text()


def test_a_path_is_no_name_of_the_hub(tmp_path):
    model = make_attached("llama")
    model.model.config._name_or_path = "/home/someone/model"
    save_routers(model, tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "/home/someone" not in text and "base_model" not in text


@pytest.mark.parametrize(
    ("make_other", "message"),
    [
        (lambda: attach(make_host("llama", seed=3)), "whose weights are others than those of this"),
        (lambda: attach(make_host("mistral")), "for LlamaModel.*of this MistralModel"),
        (lambda: attach(make_host("llama", num_hidden_layers=3)), "layers=4, this .* layers=3"),
        (lambda: attach(make_host("llama", num_key_value_heads=4)), "heads=2, this .* heads=4"),
        (
            lambda: attach(make_host("llama"), router="last", window=2),
            "router='full', this Llama",
        ),
    ],
    ids=["weights", "architecture", "layers", "heads", "window"],
)
def test_routers_of_another_base_are_refused(make_other, message, tmp_path):
    save_routers(make_attached("llama"), tmp_path)
    other = make_other()
    before = [w.clone() for w in router_parameters(other)]
    with pytest.raises(ValueError, match=message):
        load_routers(other, tmp_path)
    assert all(map(torch.equal, before, router_parameters(other)))


@pytest.mark.parametrize(
    "name",
    [
        "layers.3.self_attn.k_proj",
        "layers.1.self_attn.q_proj",
        "layers.2.mlp.up_proj",
        "layers.0.input_layernorm",
        "embed_tokens",
    ],
)
def test_a_base_trained_along_is_another_base(name, tmp_path):
    model = make_attached("llama")
    with torch.no_grad():
        model.model.get_submodule(name).weight.mul_(1.1)
    save_routers(model, tmp_path)
    with pytest.raises(ValueError, match="whose weights are others"):
        load_routers(attach(make_host("llama")), tmp_path)


def test_the_base_of_merged_lora_is_another_one_and_below_lora_it_is_the_same(tmp_path):
    peft = pytest.importorskip("peft")
    # PEFT's default projections of a LLaMA: none to keys.
    names = {"target_modules": ["q_proj", "v_proj"], "modules_to_save": ["memory", "norm"]}
    config = peft.LoraConfig(r=2, init_lora_weights=False, task_type="CAUSAL_LM", **names)
    adapted = peft.get_peft_model(make_attached("llama"), config)
    save_routers(adapted, tmp_path / "below")
    load_routers(attach(make_host("llama")), tmp_path / "below")
    save_routers(adapted.merge_and_unload(), tmp_path / "merged")
    with pytest.raises(ValueError, match="whose weights are others"):
        load_routers(attach(make_host("llama")), tmp_path / "merged")


@pytest.mark.parametrize(
    ("name", "fields", "other", "message"),
    [
        ("llama", {}, {"rms_norm_eps": 0.1}, "rms_norm_eps=1e-06, and this one has 0.1"),
        (
            "llama",
            {},
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
            "rope_parameters.rope_type=default, and this one has linear",
        ),
        (
            "mistral",
            {"sliding_window": 8},
            {"sliding_window": 3},
            "sliding_window=8, and this one has 3",
        ),
        (
            "mistral",
            {"sliding_window": 8},
            {"sliding_window": None},
            "sliding_window=8, and this one has None",
        ),
        (
            "gemma2",
            {"final_logit_softcapping": None},
            {"final_logit_softcapping": 1.0},
            "final_logit_softcapping=None, and this one has 1.0",
        ),
        (
            "gpt_neox",
            {},
            {"rope_parameters": {**PLAIN_ROPE, "partial_rotary_factor": 1.0}},
            "rope_parameters.partial_rotary_factor=0.25, and this one has 1.0",
        ),
        (
            "llama",
            {"rope_parameters": YARN},
            {"rope_parameters": {**YARN, "attention_factor": 2.0}},
            "rope_parameters.attention_factor=None, and this one has 2.0",
        ),
        ("gpt_neox", {}, {"use_parallel_residual": False}, "use_parallel_residual=True, and"),
        ("gpt2", {}, {"activation_function": "relu"}, "activation_function=gelu_new, and"),
        ("gpt2", {}, {"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx=False, and"),
        (
            "gemma2",
            {},
            {"hidden_activation": "silu"},
            "hidden_activation=.*, and this one has silu",
        ),
        ("llama", {}, {"is_causal": False}, "is_causal=True, and this one has False"),
        ("bert", {}, {"is_decoder": True}, "is_decoder=False, and this one has True"),
    ],
    ids=[
        *("eps", "rope", "window", "no window", "cap", "part of a head", "yarn"),
        *("parallel", "activation", "scale", "gemma's activation", "both ways", "one way"),
    ],
)
def test_a_base_that_computes_otherwise_is_refused(name, fields, other, message, tmp_path):
    model = attach(make_host(name, **fields))
    shake_routers(model)
    save_routers(model, tmp_path)
    load_routers(attach(make_host(name, **fields)), tmp_path)
    with pytest.raises(ValueError, match=message):
        load_routers(attach(make_host(name, **{**fields, **other})), tmp_path)
    # Files of an older release do not say it.
    settings = json.loads((tmp_path / "routers.json").read_text())
    del settings["base"]["computes"], settings["base"]["embeddings"]
    (tmp_path / "routers.json").write_text(json.dumps(settings))
    load_routers(attach(make_host(name, **{**fields, **other})), tmp_path)


def test_other_names_of_an_activation_are_the_same(tmp_path):
    save_routers(attach(make_host("llama", hidden_act="silu")), tmp_path)
    load_routers(attach(make_host("llama", hidden_act="swish")), tmp_path)
    with pytest.raises(ValueError, match="hidden_act=silu, and this one has gelu"):
        load_routers(attach(make_host("llama", hidden_act="gelu")), tmp_path)


def test_a_base_with_another_head_is_another_base(tmp_path):
    model = make_attached("llama")
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    with torch.no_grad():
        model.lm_head.weight.add_(1)
    save_routers(model, tmp_path)
    load_routers(model, tmp_path)
    with pytest.raises(adapter.OtherBase, match="whose weights are others"):
        load_routers(attach(make_host("llama")), tmp_path)
    # What has no head over the vocabulary takes them.
    load_routers(attach(make_host("llama").model), tmp_path)


def test_routers_under_lora_are_not_saved_without_it(tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_parameters=["self_attn.memory.weight"])
    adapted = peft.get_peft_model(make_attached("llama"), config)
    with pytest.raises(adapter.NotAtHand, match="merge it into the model first"):
        save_routers(adapted, tmp_path)
    save_routers(adapted.merge_and_unload(), tmp_path)


@pytest.mark.parametrize("part", ["word_embeddings", "LayerNorm"])
def test_an_encoder_with_other_embeddings_is_another_base(part, tmp_path):
    model = attach(make_host("bert"))
    with torch.no_grad():
        next(m for n, m in model.named_modules() if n.endswith(f"embeddings.{part}")).weight.add_(1)
    save_routers(model, tmp_path)
    load_routers(model, tmp_path)
    with pytest.raises(adapter.OtherBase, match="whose weights are others"):
        load_routers(attach(make_host("bert")), tmp_path)


def test_a_setting_of_a_newer_release_is_refused(tmp_path):
    attach(make_host("llama")).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["layer_memory"]["router_scale"] = 0.5
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"router_scale=0.5 is no setting .*pip install"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_samples_of_a_large_weight_are_of_all_its_columns(monkeypatch, tmp_path):
    monkeypatch.setattr(adapter, "_SAMPLES", 128)
    model = make_attached("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[:, 7].mul_(1.1)
    save_routers(model, tmp_path)
    with pytest.raises(ValueError, match="whose weights are others"):
        load_routers(attach(make_host("llama")), tmp_path)


def test_damaged_files_are_named(tmp_path):
    model = make_attached("llama")
    with pytest.raises(ValueError, match="holds no routers"):
        load_routers(model, tmp_path)
    save_routers(model, tmp_path)
    expected = [w.clone() for w in router_parameters(model)]
    good = load_file(tmp_path / "routers.safetensors")
    last = "layers.3.weight"
    for weights, message in (
        ({**good, last: good[last] * float("nan")}, "must be finite"),
        ({**good, last: good[last][:, 2:].contiguous()}, "must be finite and"),
        ({"layers.1.weight": good["layers.1.weight"]}, "differs in .*layers.2.weight"),
        ({**good, last: good[last] * 2}, "is not the file that routers.json beside it"),
    ):
        save_file(weights, tmp_path / "routers.safetensors")
        with pytest.raises(ValueError, match=message):
            load_routers(model, tmp_path)
    (tmp_path / "routers.safetensors").write_bytes(b"\0" * 9)
    with pytest.raises(ValueError, match="cannot be read"):
        load_routers(model, tmp_path)
    good = json.loads((tmp_path / "routers.json").read_text())
    for damaged in ([], {}, {**good, "format": 2}, {**good, "base": None}, {**good, "base": []}):
        (tmp_path / "routers.json").write_text(json.dumps(damaged))
        with pytest.raises(ValueError, match="routers.json is damaged"):
            load_routers(model, tmp_path)
    (tmp_path / "routers.json").write_text("{")
    with pytest.raises(ValueError, match="routers.json is damaged"):
        load_routers(model, tmp_path)
    assert all(map(torch.equal, expected, router_parameters(model)))


def test_what_is_not_finite_is_not_saved(tmp_path):
    model = make_attached("llama")
    with torch.no_grad():
        next(router_parameters(model))[0, 0] = float("inf")
    with pytest.raises(ValueError, match=r"layers\.1\.weight of the routers is not finite"):
        save_routers(model, tmp_path)
    with pytest.raises(ValueError, match=r"attach\(model\)"):
        save_routers(make_host("llama"), tmp_path)


def test_copies_of_a_model_are_apart(tmp_path):
    model, ids = make_attached("llama"), make_ids()
    torch.save(model, tmp_path / "whole.pt")
    with torch.no_grad():
        expected = model(ids).logits
        for twin in (copy.deepcopy(model), torch.load(tmp_path / "whole.pt", weights_only=False)):
            assert torch.equal(twin(ids).logits, expected)
            for weight in router_parameters(twin):
                weight.zero_()
            assert not torch.allclose(twin(ids).logits, expected)
            assert torch.equal(model(ids).logits, expected)
            twin.save_pretrained(tmp_path / "twin")
            saved = load_file(tmp_path / "twin" / "model.safetensors")
            routers = [weight for name, weight in saved.items() if ".memory." in name]
            assert len(routers) == 3 and not any(weight.any() for weight in routers)
            detach(twin)
            assert torch.equal(model(ids).logits, expected)


def test_settings_are_readable(tmp_path):
    save_routers(make_attached("llama"), tmp_path)
    settings = json.loads((tmp_path / "routers.json").read_text())
    assert settings["base"].keys() == {
        *("name", "licence", "revision", "fingerprints", "embeddings", "head", "computes"),
    }
    assert settings["base"]["embeddings"] is None
    assert settings["base"]["head"].keys() == {"bfloat16", "float16"}
    assert settings["base"]["computes"] == {
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "is_causal": True,
        "rope_parameters.rope_type": "default",
        "rope_parameters.rope_theta": 10000.0,
        "rope_parameters.partial_rotary_factor": 1.0,
    }
    assert settings["base"]["fingerprints"].keys() == {"bfloat16", "float16"}
    assert settings["architecture"] == "LlamaModel"
    assert settings["host"]["key"] == "k_proj"
    assert (settings["layers"], settings["heads"], settings["head_dim"]) == (4, 2, 8)
