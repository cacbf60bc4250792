"""Saved routers: round trips, checkpoints, copies, and the base that they belong to."""

import copy

import pytest
import torch
from host_models import make_attached, make_host, make_ids, shake_routers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from layermem.retrofit import (
    attach,
    detach,
    load_attached,
    load_routers,
    router_parameters,
    save_routers,
)


def assert_alike(model, *others):
    ids = make_ids()
    with torch.no_grad():
        for other in others:
            assert torch.equal(other.eval()(ids).logits, model.eval()(ids).logits)


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "deberta", "gemma3"])
@pytest.mark.parametrize("window", [None, 2], ids=["full", "last-2"])
def test_routers_are_saved_and_loaded(name, window, tmp_path):
    model = make_attached(name, window=window)
    save_routers(model, tmp_path)
    assert (tmp_path / "routers.safetensors").stat().st_size < 8000
    again = attach(make_host(name), router="last" if window else "full", window=window)
    load_routers(again, tmp_path)
    assert_alike(model, again)


@pytest.mark.parametrize("grain", ["pair", "layer"])
def test_routers_of_keys_and_values_apart_are_saved_and_loaded(grain, tmp_path):
    model = make_attached(shares_kv=False, grain=grain)
    save_routers(model, tmp_path / "adapter")
    again = attach(make_host("llama"), shares_kv=False, grain=grain)
    load_routers(again, tmp_path / "adapter")
    model.save_pretrained(tmp_path / "whole")
    make_host("llama").save_pretrained(tmp_path / "base")
    eager = {"attn_implementation": "eager"}
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", **eager)
    attached = load_attached(tmp_path / "adapter", base=tmp_path / "base", **eager)
    assert_alike(model, again, whole, attached)
    with pytest.raises(ValueError, match="shares_kv=False"):
        load_routers(attach(make_host("llama"), grain=grain), tmp_path / "adapter")


def test_a_whole_checkpoint_keeps_the_routers(tmp_path):
    model = make_attached("llama")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    model.save_pretrained(tmp_path)
    assert "model.layers.3.self_attn.memory.weight" in load_file(tmp_path / "model.safetensors")
    eager = {"attn_implementation": "eager"}
    assert_alike(model, AutoModelForCausalLM.from_pretrained(tmp_path, **eager))


@pytest.mark.parametrize(
    ("make_other", "message"),
    [
        (lambda: attach(make_host("llama", seed=3)), "weights"),
        (lambda: attach(make_host("mistral")), "LlamaModel.*MistralModel"),
        (lambda: attach(make_host("llama", num_hidden_layers=3)), "layers=4.*layers=3"),
        (lambda: attach(make_host("llama", num_key_value_heads=4)), "heads=2.*heads=4"),
        (lambda: attach(make_host("llama"), router="last", window=2), "router='full'"),
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
    ("host", "name"),
    [
        ("llama", "model.layers.3.self_attn.k_proj"),
        ("llama", "model.layers.2.mlp.up_proj"),
        ("llama", "model.layers.0.input_layernorm"),
        ("llama", "model.embed_tokens"),
        ("bert", "bert.embeddings.word_embeddings"),
    ],
)
def test_a_base_trained_along_is_another_base(host, name, tmp_path):
    model = make_attached(host)
    with torch.no_grad():
        model.get_submodule(name).weight.mul_(1.1)
    save_routers(model, tmp_path)
    load_routers(model, tmp_path)
    with pytest.raises(ValueError, match="weights"):
        load_routers(attach(make_host(host)), tmp_path)


def test_a_base_without_its_head_is_the_same(tmp_path):
    save_routers(make_attached("llama"), tmp_path)
    load_routers(attach(make_host("llama").model), tmp_path)


def test_the_base_of_merged_lora_is_another_one_and_below_lora_it_is_the_same(tmp_path):
    peft = pytest.importorskip("peft")
    # PEFT's default projections of a LLaMA: none to keys.
    names = {"target_modules": ["q_proj", "v_proj"], "modules_to_save": ["memory", "norm"]}
    config = peft.LoraConfig(r=2, init_lora_weights=False, task_type="CAUSAL_LM", **names)
    adapted = peft.get_peft_model(make_attached("llama"), config)
    save_routers(adapted, tmp_path / "below")
    load_routers(attach(make_host("llama")), tmp_path / "below")
    save_routers(adapted.merge_and_unload(), tmp_path / "merged")
    with pytest.raises(ValueError, match="weights"):
        load_routers(attach(make_host("llama")), tmp_path / "merged")


def test_routers_under_lora_are_not_saved_without_it(tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_parameters=["self_attn.memory.weight"])
    adapted = peft.get_peft_model(make_attached("llama"), config)
    with pytest.raises(ValueError, match="merge_and_unload"):
        save_routers(adapted, tmp_path)
    save_routers(adapted.merge_and_unload(), tmp_path)


def test_damaged_files_are_refused(tmp_path):
    model = make_attached("llama")
    with pytest.raises(ValueError, match="holds no routers"):
        load_routers(model, tmp_path)
    save_routers(model, tmp_path)
    expected = [w.clone() for w in router_parameters(model)]
    weights = load_file(tmp_path / "routers.safetensors")
    save_file({**weights, "layers.3.weight": weights["layers.3.weight"] * 2}, tmp_path / "other")
    whole = (tmp_path / "routers.safetensors").read_bytes()
    for content in (whole[:-9], (tmp_path / "other").read_bytes(), b""):
        (tmp_path / "routers.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match="digest"):
            load_routers(model, tmp_path)
    (tmp_path / "routers.json").write_text("{")
    with pytest.raises(ValueError, match="can be read"):
        load_routers(model, tmp_path)
    assert all(map(torch.equal, expected, router_parameters(model)))


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


PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("stored", PRECISIONS, ids=str)
def test_a_base_is_recognised_in_any_precision(stored, tmp_path):
    for name, seed in (("base", 0), ("other", 7)):
        make_host("llama", seed=seed).to(stored).save_pretrained(tmp_path / name)
    for saved_in in PRECISIONS:
        bare = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=saved_in)
        saved = shake_routers(attach(bare))
        save_routers(saved, tmp_path / "routers")
        for loaded_in in PRECISIONS:
            if stored == torch.float32 and {saved_in, loaded_in} == {*PRECISIONS[1:]}:
                # Two roundings of one weight do not tell that they are of one.
                with pytest.raises(ValueError, match="float32"):
                    load_attached(tmp_path / "routers", dtype=loaded_in)
                continue
            again = load_attached(tmp_path / "routers", dtype=loaded_in)
            assert again.dtype == loaded_in
            for got, wanted in zip(router_parameters(again), router_parameters(saved), strict=True):
                assert got.dtype == torch.float32 and torch.equal(got, wanted)
            with pytest.raises(ValueError, match="weights"):
                load_attached(tmp_path / "routers", base=tmp_path / "other", dtype=loaded_in)
