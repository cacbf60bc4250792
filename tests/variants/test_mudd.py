"""MUDD: which ways mix where, weights that choose a source, and retrofitting a pretrained LLaMA."""

import literal
import pytest
import torch
from tiny import TINY, make
from transformers import LlamaConfig, LlamaForCausalLM

from layermem.models.registry import build, lookup
from layermem_bench.config import counting


def test_the_last_place_mixes_the_residual_alone(ids):
    model = make(lookup("mudd").causal_lm, lookup("mudd").config(**TINY))
    places = [layer.attn_connection.place for layer in model.model.layers]
    assert places[0].weights is None
    assert all(place.weights.readers[0] == "query" for place in places[1:])
    last = model.model.stream.place.weights
    assert last.readers == ("residual",) and last.inner.shape == (20, 32)
    assert last.sources == ("embedding", "layer 0", "layer 1", "layer 2", "layer 3")


def test_each_way_reads_its_own_mixture(ids):
    """Queries of layer 2 that read the embedding are those of a layer fed the embedding."""
    model = build("mudd", **TINY).eval()
    layer = model.model.layers[2]
    with torch.no_grad():
        layer.attn_connection.place.weights.static[0] = torch.tensor([1.0, 0, 0])
        inputs = []
        layer.self_attn.q_proj.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        layer.self_attn.k_proj.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        model(ids)
        embedding = layer.input_layernorm(model.model.embed_tokens(ids))
    torch.testing.assert_close(inputs[0], embedding)
    assert not torch.allclose(inputs[1], embedding)


FORMS = [
    ("mudd", {"mixing_layers": 3}),
    ("mudd", {"mixing_sources": [], "pre_post_norm": True}),
    ("mudd", {"mixing_ways": ["key", "query"], "mixing_sources": [1, 3]}),
    # The last layer projects neither.
    ("cla+mudd", {"mixing_ways": ["key", "value"], "mixing_layers": 3, "pre_post_norm": True}),
]


@pytest.mark.parametrize(("name", "fields"), FORMS, ids=str)
def test_any_places_equal_the_equations_and_every_parameter_is_read(name, fields, ids):
    entry = lookup(name)
    config = entry.config(**TINY, **fields)
    model = make(entry.causal_lm, config).double()
    out = model(ids, labels=ids)
    out.loss.backward()
    assert all(p.grad.abs().sum() > 0 for p in model.parameters())
    theirs = literal.find(name).logits(model, ids)
    torch.testing.assert_close(out.logits, theirs, rtol=0, atol=1e-10)
    assert sum(p.numel() for p in model.parameters()) == counting.count_parameters(
        config, entry.variant
    )


def test_states_that_nothing_reads_are_not_kept(ids):
    """Layer 2 of a model whose last two layers mix X_0 and X_2 is handed the residual and X_0."""
    fields = literal.find("mudd").FEW
    model = build("mudd", **TINY, **fields)
    counts = []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda _, args, out: counts.append((len(args), len(out))))
    model(ids)
    # Each hands a slot to nobody.
    assert counts == [(1, 2), (2, 2), (2, 3), (3, 3)]


def test_weights_of_few_tokens_are_those_that_training_has():
    """Without gradients the same function is computed by fewer and cheaper calls."""
    weights = build("mudd", **TINY).model.layers[2].attn_connection.place.weights
    torch.nn.init.normal_(weights.outer)
    x = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(0)) * 4
    expected = weights(x)
    with torch.no_grad():
        torch.testing.assert_close(weights(x), expected)


def test_a_pretrained_llama_computes_what_it_did(ids, tmp_path):
    """Also where its norms have been trained: the new norms of keys and values have its gains."""
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**TINY)).eval()
    with torch.no_grad():
        for layer in llama.model.layers:
            layer.input_layernorm.weight.uniform_(0.5, 2)
    llama.save_pretrained(tmp_path)
    model = lookup("mudd").causal_lm.from_llama(str(tmp_path)).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, llama(ids).logits)
