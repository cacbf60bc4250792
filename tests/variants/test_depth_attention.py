"""Depth attention: refused settings, scores after rope, what the cache holds, who reads whom."""

import pytest
import torch
from tiny import TINY, make

import layermem
from layermem.models.registry import lookup
from layermem.models.seams import DependsOnInput, OwnLayerMemory
from layermem.ops.rope import rotate

ENTRY = lookup("depth_attention")
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}


@pytest.mark.parametrize("rope", [None, YARN], ids=["rope", "yarn"])
def test_weights_are_those_of_queries_and_keys_after_rope(rope, ids):
    model = make(ENTRY.causal_lm, ENTRY.config(**TINY, rope_parameters=rope)).double()
    assert (model.model.rotary_emb.attention_scaling != 1) == (rope is not None)
    seen = {}
    memory = model.model.layers[2].self_attn.memory
    memory.register_forward_hook(lambda _, inputs, out: seen.update(inputs=inputs))
    memory.weights.register_forward_hook(lambda _, inputs, out: seen.update(weights=out))
    with torch.no_grad():
        model(ids)
        query, slots = seen["inputs"]
        angles = model.model.rotary_emb(query, torch.arange(ids.shape[1])[None])
        query = rotate(query, *angles).unflatten(1, (2, 2)).mean(2)
        keys = torch.stack([rotate(key, *angles) for key, _ in slots], dim=-2)
        scores = torch.einsum("bgte,bgtse->btgs", query, keys) / 8**0.5
    torch.testing.assert_close(seen["weights"], scores.softmax(-1), rtol=0, atol=1e-6)
    assert memory.weights.sources == ("layer 0", "layer 1", "layer 2")
    assert len(memory.weights.readers) == seen["weights"].shape[-2] == 2


@pytest.mark.parametrize("values", ["mixed", "raw"])
def test_the_cache_holds_mixed_values_whatever_is_handed_on(values, ids):
    model = make(ENTRY.causal_lm, ENTRY.config(**TINY, values=values))
    calls = []
    for layer in model.model.layers:
        hook = lambda _, inputs, out: calls.append((inputs, out))  # noqa: E731
        layer.self_attn.memory.register_forward_hook(hook)
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values
    for layer, ((_, slots), (key, mixed)) in enumerate(calls):
        assert torch.equal(cache.layers[layer].values, mixed)
        own_key, own_value = slots[-1]
        assert key is own_key
        later_slots = calls[3][0][1]
        expected = mixed if values == "mixed" and layer < 3 else own_value
        assert torch.equal(later_slots[layer][1], expected)
        assert layer == 0 or not torch.equal(mixed, own_value)


def test_layers_that_no_setting_lets_read_have_no_memory():
    model = layermem.build(
        "depth_attention", **{**TINY, "num_hidden_layers": 7}, stride=3, window=3
    )
    read = [layer.sources for layer in model.model.layers]
    assert read == [(), (0,), (0,), (), (3,), (3,), ()]
    memories = [layer.self_attn.memory for layer in model.model.layers]
    assert [isinstance(memory, OwnLayerMemory) for memory in memories] == [not r for r in read]


def test_weights_depend_on_the_input():
    model = layermem.build("depth_attention", **TINY)
    with pytest.raises(DependsOnInput):
        model.model.layers[1].self_attn.memory.static_weights()
