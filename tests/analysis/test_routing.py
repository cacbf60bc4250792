"""What layers read of earlier ones: heatmaps against loops, moments at once, groups left out."""

import copy
import itertools
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from host_models import make_host, shake_routers
from tiny import TINY, make

import layermem
from layermem.models.registry import lookup
from layermem.models.seams import DepthWeights
from layermem.retrofit.attachment import attachment_of
from layermem_bench.analysis.capture import capture
from layermem_bench.analysis.result import readings
from layermem_bench.analysis.routing import (
    head_heatmaps,
    mean_heatmap,
    weight_groups,
    weights_over_depth,
    without,
)


def a_model(name="lime", **fields):
    variant = lookup(name)
    return make(variant.causal_lm, variant.config(**{**TINY, **fields}))


@pytest.mark.parametrize("fields", [{}, {"router": "first", "router_window": 1}], ids=str)
def test_against_a_loop(fields):
    model = a_model(**fields)
    expected = np.zeros((4, 2, 4))
    expected[0, :, 0] = 1
    for i in range(1, 4):
        router = model.model.layers[i].self_attn.memory.requires_grad_(False)
        for target, (place, j), source in itertools.product(
            range(2), enumerate(router.sources), range(2)
        ):
            expected[i, target, j] += abs(float(router.weight[target, 2 * place + source]))
    sizes = expected.sum(1)
    np.testing.assert_allclose(mean_heatmap(model), sizes / sizes.sum(1)[:, None], rtol=1e-6)
    by_head = expected / expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(head_heatmaps(model), by_head, rtol=1e-6)
    # A head that reads nothing has no shares.
    model.model.layers[2].self_attn.memory.weight.data[1] = 0
    assert (head_heatmaps(model)[2, 1] == 0).all()


def test_keys_and_values_that_read_differently():
    model = a_model(router_shares_kv=False)
    router = model.model.layers[2].self_attn.memory.requires_grad_(False)
    sizes = {}
    for part, weight in (("key", router.weight), ("value", router.value_weight)):
        sizes[part] = weight.abs().double().view(2, 3, 2).sum((0, 2)).numpy()
        shares = mean_heatmap(model, part)[2, :3]
        np.testing.assert_allclose(shares, sizes[part] / sizes[part].sum(), rtol=1e-6)
    both = sizes["key"] + sizes["value"]
    np.testing.assert_allclose(mean_heatmap(model)[2, :3], both / both.sum(), rtol=1e-6)
    # Keys of a value residual are its own.
    model = a_model("value_residual", form="learnable")
    np.testing.assert_array_equal(mean_heatmap(model, "key"), np.eye(4))


@pytest.mark.parametrize("name", ["llama", "gpt_neox"])
def test_attached_memory(name):
    model = layermem.attach(make_host(name), router="last", window=2)
    np.testing.assert_array_equal(mean_heatmap(model), np.eye(4))
    routers = attachment_of(shake_routers(model)).routers
    heatmap, heads = mean_heatmap(model), head_heatmaps(model)
    np.testing.assert_array_equal(heatmap[0], [1, 0, 0, 0])
    for layer, router in routers.items():
        sizes = router.weight.detach().abs().double().unflatten(1, (len(router.sources), -1)).sum(2)
        expected = np.zeros((len(sizes), 4))
        expected[:, list(router.sources)] = sizes / sizes.sum(1, keepdim=True)
        np.testing.assert_allclose(heads[layer], expected, rtol=1e-6)
        of_all = sizes.sum(0) / sizes.sum()
        np.testing.assert_allclose(heatmap[layer, list(router.sources)], of_all, rtol=1e-6)


def test_own_layer_only_and_models_without_a_heatmap():
    identity = layermem.build("lime", **TINY, router_init="identity")
    np.testing.assert_array_equal(mean_heatmap(identity), np.eye(4))
    np.testing.assert_array_equal(mean_heatmap(a_model("plain")), np.eye(4))
    with pytest.raises(ValueError, match="no memories"):
        mean_heatmap(torch.nn.Linear(2, 2))
    for value in (0.0, float("nan")):
        model = a_model()
        model.model.layers[2].self_attn.memory.weight.data.fill_(value)
        with pytest.raises(ValueError, match="layer 2"):
            mean_heatmap(model)


def test_readings():
    heatmap = np.array([[1, 0, 0], [0.25, 0.75, 0], [0.5, 0.1, 0.4]])
    first, second, third = readings(heatmap, most=2)
    assert (first.off_layer_share, first.sources, first.effective) == (0, (0,), 1)
    assert second.off_layer_share == pytest.approx(0.25)
    assert (third.layer, third.sources) == (2, (0, 2))
    assert third.effective == pytest.approx(np.exp(-sum(p * np.log(p) for p in (0.5, 0.1, 0.4))))


@pytest.mark.parametrize("name", ["mudd", "dca", "denseformer"])
def test_moments_of_weights_over_depth_are_those_of_all_tokens_but_padding(name):
    model = a_model(name)
    ids = torch.randint(TINY["vocab_size"], (6, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 4:] = mask[4, 2:] = 0
    seen = {}
    for path, module in model.named_modules():
        if isinstance(module, DepthWeights):
            seen[path] = []
            module.register_forward_hook(lambda _, a, w, path=path: seen[path].append(w.detach()))
    batches = [
        {"input_ids": ids[rows], "attention_mask": mask[rows]}
        for rows in (slice(0, 1), slice(1, 4), slice(4, 6))
    ]
    captured = partial(capture, model, batches)
    texts = SimpleNamespace(sequences=())
    subject = SimpleNamespace(model=model, texts=texts, captured=lambda *_, **k: captured(**k))
    mixtures = weights_over_depth(subject)["mixtures"]
    assert len(mixtures) == len(seen) > 0
    if name == "mudd":
        assert [m.place for m in mixtures][-2:] == ["layer 3, attention", "final norm"]
        assert mixtures[1].readers == ("query", "key", "value", "residual")
    for mixture, weights in zip(mixtures, seen.values(), strict=True):
        if name == "denseformer":
            np.testing.assert_allclose(mixture.mean, weights[0].reshape(1, -1).numpy())
            np.testing.assert_allclose(mixture.deviation, 0, atol=1e-7)
            continue
        tokens = torch.cat(weights)[mask.bool()].double().numpy()
        assert tokens.shape == (mask.sum(), len(mixture.readers), len(mixture.sources))
        np.testing.assert_allclose(mixture.mean, tokens.mean(0), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(mixture.deviation, tokens.std(0), rtol=1e-7, atol=1e-12)
    # Its own hooks are taken off.
    assert sum(len(module._forward_hooks) for module in model.modules()) == len(seen)


PLACES = ("the first layer", "the other earlier layers")
APART = [f"{reads} of {place}" for reads in ("keys", "values") for place in PLACES]


@pytest.mark.parametrize(
    ("variant", "fields", "groups"),
    [
        ("lime", {}, [f"keys and values of {place}" for place in PLACES]),
        ("lime", {"router_shares_kv": False}, APART),
        ("lime", {"router_shares_kv": False, "router": "last", "router_window": 1}, []),
        ("plain", {}, []),
    ],
)
def test_groups_are_named_by_what_is_read_and_from_where(variant, fields, groups):
    assert list(weight_groups(a_model(variant, **fields))) == groups


@pytest.mark.parametrize("grain", ["pair", "layer"])
@pytest.mark.parametrize("group", APART)
@torch.no_grad()
def test_a_model_without_a_group_is_one_whose_weights_are_zero(grain, group, ids):
    model = a_model(router_shares_kv=False, router_grain=grain)
    zeroed = copy.deepcopy(model)
    name = "value_weight" if group.startswith("values") else "weight"
    for layer in zeroed.model.layers[1:]:
        router = layer.self_attn.memory
        for place, source in enumerate(router.sources):
            if source != router.layer and (source == 0) == ("first" in group):
                at = slice(place * router.columns, (place + 1) * router.columns)
                getattr(router, name)[:, at] = 0
    before = model(ids).logits
    with pytest.raises(RuntimeError), without(model, group):
        assert torch.equal(model(ids).logits, zeroed(ids).logits)
        raise RuntimeError("stopped")
    # They are put back, also after an error.
    assert torch.equal(model(ids).logits, before)
    assert not torch.equal(zeroed(ids).logits, before)
