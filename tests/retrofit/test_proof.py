"""That a ``Host`` is right: heads compared with the config, slices with what attention does."""

from dataclasses import replace

import pytest
import torch
import transformers as hf
from host_models import HOSTS, make_host, make_ids
from torch import nn

from layermem.retrofit import Host, attach, router_parameters
from layermem.retrofit.attachment import Attachment, attachment_of
from layermem.retrofit.hosts import find_host, measure
from layermem.retrofit.proof import prove_slices

FALCON = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "attn_implementation": "eager",
}
FALCONS = {
    "grouped": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "one for all": {"multi_query": True},
    "head by head": {"multi_query": False},
}
LLAMA = {"layers": "model.layers", "attention": "self_attn", "key": "k_proj", "value": "v_proj"}


def make_falcon(kind):
    torch.manual_seed(0)
    return hf.FalconForCausalLM(hf.FalconConfig(**FALCON, **FALCONS[kind])).eval()


def falcon_host(layout):
    return Host(
        layers="transformer.h", attention="self_attention", fused="query_key_value", layout=layout
    )


def make_t5():
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "d_model": 32, "d_ff": 40, "num_layers": 3}
    return hf.T5EncoderModel(hf.T5Config(**sizes, num_heads=4, d_kv=16, dropout_rate=0.0)).eval()


T5 = {"layers": "encoder.block", "attention": "layer.0.SelfAttention", "key": "k", "value": "v"}


def test_the_width_of_a_head_is_the_models_own():
    model, ids = make_t5(), make_ids()
    with torch.no_grad():
        before = model(ids).last_hidden_state
        assert torch.equal(attach(model, host=Host(**T5))(ids).last_hidden_state, before)
    shape = attachment_of(model).shape
    assert (shape.heads, shape.head_dim) == (4, 16)


@pytest.mark.parametrize(
    ("make", "host"),
    [
        (make_t5, Host(**T5, head_dim=8)),
        (lambda: make_host("llama"), Host(**LLAMA, head_dim=16)),
    ],
    ids=["t5, narrow", "llama, wide"],
)
def test_heads_that_contradict_the_config_are_refused(make, host):
    model = make()
    names = [name for name, _ in model.named_modules()]
    with pytest.raises(ValueError, match="head_dim="):
        attach(model, host=host)
    assert [name for name, _ in model.named_modules()] == names


@pytest.mark.parametrize(
    ("kind", "layout", "heads"),
    [("grouped", "heads", 2), ("one for all", "blocks", 1), ("head by head", "heads", 4)],
)
def test_layouts_of_falcon(kind, layout, heads):
    """Routers that swap two heads of a layer are the same as weights that are swapped."""
    model, ids = make_falcon(kind), make_ids()
    attach(model, host=falcon_host(layout))
    assert attachment_of(model).shape.heads == heads
    order = torch.arange(heads).flip(0)
    swapped = make_falcon(kind)
    with torch.no_grad():
        for i, weight in enumerate(router_parameters(model), start=1):
            weight[:, -heads:] = torch.eye(heads)[order]
            linear = swapped.transformer.h[i].self_attention.query_key_value
            groups = linear.weight.unflatten(0, (heads, -1, 8))
            groups[:, -2:] = groups[order, -2:].clone()
        torch.testing.assert_close(model(ids).logits, swapped(ids).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["grouped", "head by head"])
def test_another_layout_of_the_same_widths_is_refused(kind):
    with pytest.raises(ValueError, match="layout"):
        attach(make_falcon(kind), host=falcon_host("blocks"))


@pytest.mark.parametrize(
    ("name", "path", "wrong"),
    [
        ("gpt2", "transformer", "heads"),
        ("gpt_neox", "gpt_neox", "blocks"),
        ("phi3", "model", "heads"),
    ],
)
def test_another_layout_of_a_known_architecture_is_refused(name, path, wrong):
    model = make_host(name)
    known = attachment_of(attach(make_host(name))).host
    with pytest.raises(ValueError, match="layout"):
        attach(model, host=replace(known, layers=f"{path}.{known.layers}", layout=wrong))
    attach(model, host=replace(known, layers=f"{path}.{known.layers}"))


def test_keys_taken_for_values_are_refused():
    with pytest.raises(ValueError, match="not what attention reads"):
        attach(make_host("llama"), host=Host(**{**LLAMA, "key": "v_proj", "value": "k_proj"}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", HOSTS)
def test_known_architectures_are_proved(name, dtype):
    model = make_host(name).to(dtype)
    owner, host = find_host(model)
    attachment = Attachment(owner, host, *measure(model, owner, host), sources=[], settings={})
    assert prove_slices(model, attachment) is None


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_nothing_of_the_model_is_changed_by_the_proof(implementation):
    model, ids = make_host("llama"), make_ids()
    model.set_attn_implementation(implementation)
    model.train()
    model.model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    with torch.no_grad():
        before = model(ids).logits
    attach(model, host=Host(**LLAMA))
    assert torch.equal(torch.get_rng_state(), state)
    routers = {m for m in model.modules() if type(m).__name__ == "LimeRouter"}
    assert [m.training for m in model.modules() if m not in routers] == modes
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    with torch.no_grad():
        assert torch.equal(model(ids).logits, before)


def without_weights(model):
    return model.to("meta")


def without_output(model):
    for layer in model.model.layers:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
    return model


@pytest.mark.parametrize("make", [without_weights, without_output])
def test_what_cannot_be_proved_is_said(make):
    model = make(make_host("llama"))
    with pytest.warns(UserWarning, match="could not be proved"):
        attach(model, host=Host(**LLAMA))
    assert attachment_of(model).shape.heads == 2
