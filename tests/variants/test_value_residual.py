"""Value residual: refused settings, what the cache holds, layers without a value projection."""

import pytest
import torch
from tiny import TINY, make

import layermem
from layermem.models.registry import lookup

ENTRY = lookup("value_residual")


@pytest.mark.parametrize("name", ["value_residual", "value_residual+mudd"])
@pytest.mark.parametrize("saved", [False, True], ids=["model", "folder"])
def test_without_a_value_projection_a_llama_is_refused(name, saved, tmp_path):
    """Before any weight is read: no class that loads the weights would be the wanted one."""
    llama = layermem.build("plain", **TINY)
    if saved:
        llama.save_pretrained(tmp_path)
        (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"3 of the 4 layers"):
        lookup(name).causal_lm.from_llama(tmp_path if saved else llama, form="svformer")


@pytest.mark.parametrize(
    ("form", "as_the_llama"),
    [("learnable", True), ("dense", True), ("gated", True), ("constant", False)],
)
@pytest.mark.parametrize("name", ["value_residual", "value_residual+denseformer"])
def test_from_a_llama_only_learned_weights_start_without_effect(name, form, as_the_llama, ids):
    """Constants without effect would never have any."""
    llama = layermem.build("plain", **TINY).eval()
    model = lookup(name).causal_lm.from_llama(llama, form=form).eval()
    with torch.no_grad():
        same = torch.allclose(model(ids).logits, llama(ids).logits, atol=1e-5)
    assert same == as_the_llama
    given = ENTRY.causal_lm.from_llama(llama, form="constant", first_weight=0.25)
    assert (given.config.first_weight, given.config.own_weight) == (0.25, 0.5)


@pytest.mark.parametrize("form", ["constant", "svformer"])
def test_the_cache_holds_own_keys_and_mixed_values(form, ids):
    torch.manual_seed(0)
    model = layermem.build("value_residual", **TINY, form=form).eval()
    with torch.no_grad():
        mixed = model(ids, use_cache=True).past_key_values.layers
    first = mixed[0].values
    if form == "svformer":
        assert all(torch.equal(layer.values, first) for layer in mixed)
    attention = model.model.layers[2].self_attn
    own = []
    attention.memory.register_forward_hook(lambda _, inputs, out: own.append((inputs, out)))
    with torch.no_grad():
        model(ids)
    ((_, slots), (out_key, out_value)) = own[0]
    key, value = slots[-1]
    assert out_key is key
    expected = first if form == "svformer" else (first + value) / 2
    torch.testing.assert_close(out_value, expected)
    torch.testing.assert_close(mixed[2].values, expected)


def test_a_layer_without_value_projection_initialises_with_biases_too():
    # The constructor of a linear layer draws for its bias as well.
    states = []
    for name, form in (("plain", {}), ("value_residual", {"form": "svformer"})):
        torch.manual_seed(0)
        entry = lookup(name)
        model = entry.causal_lm(entry.config(**TINY, attention_bias=True, **form))
        states.append(model.state_dict()["model.layers.3.mlp.down_proj.weight"])
    assert torch.equal(*states)


def test_a_gate_of_the_query_can_be_any_gate_of_the_input(ids):
    """In the order of x-transformers: V_0.lerp(V_l, sigmoid(W x + b)), x the input of queries."""
    model = make(ENTRY.causal_lm, ENTRY.config(**TINY, form="gated")).double()
    attention, gate = model.model.layers[2].self_attn, torch.nn.Linear(32, 2).double()
    calls = []
    attention.memory.register_forward_hook(lambda _, inputs, out: calls.append((inputs, out)))
    attention.register_forward_pre_hook(lambda _, inputs: calls.append(inputs[0]))
    weights = attention.memory.gate
    with torch.no_grad():
        weights.weight.copy_(-gate.weight @ attention.q_proj.weight.inverse())
        weights.bias.copy_(-gate.bias)
        model(ids)
        x, ((_, ((_, first), (_, value))), (_, got)) = calls
        own = gate(x).sigmoid().transpose(1, 2)[..., None]
        torch.testing.assert_close(got, first.lerp(value, own), rtol=0, atol=1e-10)
