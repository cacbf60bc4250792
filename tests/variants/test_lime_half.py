"""LIMe with half of its cache: what the cache holds, what layers borrow, what cannot be."""

from functools import partial
from unittest import mock

import literal
import pytest
import torch
from tiny import TINY, make
from transformers import DynamicCache, StaticCache
from transformers.generation.continuous_batching.cache import PagedAttentionCache

import layermem
from layermem import PlainConfig, PlainForCausalLM
from layermem.models.decoder import DecoderLayer
from layermem.models.inputs import CACHE
from layermem.models.registry import lookup
from layermem.variants.lime_half import LimeHalfConfig, LimeHalfForCausalLM
from layermem_bench.config.counting import count_cached, count_parameters, count_read

DEEP = {**TINY, "num_hidden_layers": 6}


def bytes_in(cache):
    """Return the bytes of all tensors that the layers of a cache hold."""
    tensors = [t for layer in cache.layers for t in vars(layer).values() if torch.is_tensor(t)]
    return sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize(
    ("name", "fields", "share", "kind"),
    [
        ("lime_half", {}, 3 / 6, DynamicCache),
        ("lime_half", {"storage": [0, 4]}, 2 / 6, StaticCache),
        ("cla", {"sharing": 6}, 1 / 6, DynamicCache),
        ("yoco", {}, 3 / 6, StaticCache),
        ("fused_kv", {"num_kv_shared_layers": 4}, 2 / 6, DynamicCache),
    ],
    ids=str,
)
def test_a_cache_holds_the_entries_of_storage_layers_alone(name, fields, share, kind, ids):
    found = []
    for model in (
        make(PlainForCausalLM, PlainConfig(**DEEP)),
        layermem.build(name, **DEEP, **fields).eval(),
    ):
        lengths = {"max_cache_len": 16} if kind is StaticCache else {}
        cache = kind(config=model.config, **lengths)
        with torch.no_grad():
            model(ids, use_cache=True, **{CACHE: cache})
        found.append(bytes_in(cache))
    plain, ours = found
    assert plain and ours == pytest.approx(share * plain, rel=0.01)
    if kind is DynamicCache:
        assert ours == 4 * ids.numel() * count_cached(model.config, model.variant)


def test_what_a_token_reads_of_the_cache_is_counted():
    """Entries of four layers: each layer reads one, and one that mixes all that it mixes."""
    entry = 2 * 2 * 8
    for name, fields, entries in (
        ("plain", {}, 4),
        ("lime_half", {}, 4),
        ("yoco", {}, 4),
        ("fused_kv", {}, 6),
        ("fused_kv", {"fusion": "lite"}, 4),
    ):
        model = layermem.build(name, **TINY, **fields)
        assert count_read(model.config, model.variant) == entries * entry, (name, fields)


def test_storage_layers_share_a_buffer(ids):
    model = make(LimeHalfForCausalLM, LimeHalfConfig(**DEEP, **layermem.RECIPE)).double()
    layers = list(model.model.layers)
    with torch.no_grad():
        assert model.model._begin_routes(layers, model.model.embed_tokens(ids), {}) is not None
        with_buffer = model(ids).logits
        model.model._begin_routes = lambda *_: None
        torch.testing.assert_close(model(ids).logits, with_buffer)


def test_what_is_lent_is_freed_after_its_last_reader():
    model = LimeHalfForCausalLM(LimeHalfConfig(**DEEP, storage=[0, 3])).model
    # Layers 1 and 2 borrow from layer 0, layers 4 and 5 from layer 3, which reads its slot.
    assert model._to_free == [[], [], [("lent", 0)], [("slot", 0)], [], [("lent", 3)]]


def test_pruned_routers_read_storage_layers_and_are_loaded(ids, tmp_path):
    model = make(LimeHalfForCausalLM, LimeHalfConfig(**DEEP, storage=4)).double()
    model.prune_routers(2)
    sources = model.config.router_sources
    assert [len(x) for x in sources] == [0, 1, 1, 1, 0, 0]
    model.save_pretrained(tmp_path)
    loaded = LimeHalfForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("lime_half+mudd", layermem.RECIPE),
        ("lime_half+lime_hidden", {"gate": True}),
        ("cla+mudd", {"pre_post_norm": True}),
        ("value_residual+dca", {"form": "svformer", "gated": True}),
    ],
    ids=str,
)
def test_a_pair_has_no_inputs_of_what_a_layer_does_not_project(name, fields, ids):
    """Every parameter is read, and counted in closed form."""
    model = layermem.build(name, **TINY, **fields)
    model(ids, labels=ids).loss.backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []
    assert model.num_parameters() == count_parameters(model.config, model.variant)


def test_mudd_beside_half_of_the_cache_equals_its_equations(ids):
    entry = lookup("lime_half+mudd")
    model = make(entry.causal_lm, entry.config(**TINY, **layermem.RECIPE)).double()
    memory = partial(literal.find("lime_half").read, {})
    with torch.no_grad():
        theirs = literal.find("mudd").logits(model, ids, memory)
        torch.testing.assert_close(model(ids).logits, theirs, rtol=0, atol=1e-10)


def test_weights_of_another_layout_are_refused(tmp_path):
    LimeHalfForCausalLM(LimeHalfConfig(**TINY)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="storage"):
        LimeHalfForCausalLM.from_pretrained(tmp_path, storage=2)


def test_the_cache_of_continuous_batching_is_refused(ids):
    paged = object.__new__(PagedAttentionCache)
    with pytest.raises(NotImplementedError, match="generate with another cache"):
        LimeHalfForCausalLM(LimeHalfConfig(**TINY)).model(ids, **{CACHE: paged})


def tokens_run(model, ids, **kwargs):
    """Return how many tokens each layer runs on, and the logits of the last one."""
    counts, usual = [], DecoderLayer.forward

    # No hook, for which all tokens would be computed.
    def counted(layer, state, *others, **given):
        counts.append(state.shape[1])
        return usual(layer, state, *others, **given)

    with torch.no_grad(), mock.patch.object(DecoderLayer, "forward", counted):
        logits = model(ids, logits_to_keep=1, **kwargs).logits
    return counts, logits


@pytest.mark.parametrize(
    ("name", "fields", "cut"),
    [
        ("lime_half", {"storage": 2, **layermem.RECIPE}, 4),
        ("lime_half", {"storage": [0, 5]}, 0),
        ("yoco", {"attn_implementation": "eager"}, 3),
        ("fused_kv", {"num_kv_shared_layers": 2}, 2),
        ("midpoint", {}, 3),
        ("midpoint", {"num_upper_layers": 4, "attn_implementation": "eager"}, 4),
        ("lime_half+midpoint", {"storage": 2}, 4),
        ("depth_attention+midpoint", {}, 0),
        ("lime_half+hyper_connections", {"storage": 2}, 0),
    ],
    ids=str,
)
def test_layers_without_a_cache_read_the_last_token_of_a_prompt(name, fields, cut, ids):
    model = attentive(layermem.build(name, **DEEP, **fields))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    for given in ({}, {"attention_mask": mask}):
        with torch.no_grad():
            whole = model(ids, use_cache=True, **given).logits[:, -1:]
        counts, logits = tokens_run(model, ids, use_cache=True, **given)
        assert counts == [ids.shape[1]] * (6 - cut) + [1] * cut
        torch.testing.assert_close(logits, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "attention"), [("yoco", "sdpa"), ("lime_half", "eager"), ("midpoint", "eager")]
)
def test_a_prompt_in_a_static_cache_is_read_without_its_empty_places(name, attention, ids):
    """Without padding sdpa is given no mask, and one query alone would attend to empty places."""
    fields = {"storage": 3, **layermem.RECIPE} if name == "lime_half" else {}
    model = attentive(layermem.build(name, **DEEP, **fields, attn_implementation=attention))
    padded = torch.ones_like(ids)
    padded[1, :3] = 0
    for given, is_cut in (({}, attention == "eager"), ({"attention_mask": padded}, True)):
        with torch.no_grad():
            whole = model(ids, use_cache=False, **given).logits[:, -1:]
        cache = StaticCache(config=model.config, max_cache_len=4 * ids.shape[1])
        counts, logits = tokens_run(model, ids, **{CACHE: cache}, **given)
        assert (counts[-1] == 1) == is_cut
        torch.testing.assert_close(logits, whole, rtol=0, atol=1e-12)


def attentive(model):
    """Return a model in float64 whose tokens attend to some tokens more than to others."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                parameter.mul_(20)
    return model.eval().double()


@pytest.mark.parametrize(
    "given",
    [{"use_cache": False}, {"output_hidden_states": True}, {"output_attentions": True}],
    ids=str,
)
def test_all_layers_run_on_a_prompt_that_is_looked_at_or_not_cached(given, ids):
    model = layermem.build("yoco", **DEEP, attn_implementation="eager").eval()
    counts, _ = tokens_run(model, ids, **{"use_cache": True, **given})
    assert counts == [ids.shape[1]] * 6
    counts, _ = tokens_run(model.train(), ids, use_cache=True)
    assert counts == [ids.shape[1]] * 6


@pytest.mark.parametrize("where", ["layer", "decoder", "before a layer"])
def test_a_hook_sees_all_tokens_of_a_prompt(where, ids):
    model = make(lookup("yoco").causal_lm, lookup("yoco").config(**DEEP))
    seen, watched = [], model.model if where == "decoder" else model.model.layers[4]
    if where == "before a layer":
        watched.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    else:
        watched.register_forward_hook(lambda _, __, out: seen.append(out[0].shape[1]))
    with torch.no_grad():
        model(ids, use_cache=True, logits_to_keep=1)
    assert seen == [ids.shape[1]]
