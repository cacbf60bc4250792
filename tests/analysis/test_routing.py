"""Heatmaps of what routers read, and paths through them, against loops over indices."""

import itertools

import numpy as np
import pytest
import torch
from host_models import make_host, shake_routers
from tiny import TINY, make

import layermem
from layermem.models.registry import lookup
from layermem.retrofit.attachment import attachment_of
from layermem_bench.analysis.routing import circuits, head_heatmaps, mean_heatmap, readings


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
@pytest.mark.parametrize("options", [{}, {"router": "last", "window": 1}], ids=["all", "one"])
def test_attached_memory(name, options):
    model = layermem.attach(make_host(name), **options)
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


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_circuits_against_all_paths(steps):
    heatmap = mean_heatmap(a_model())
    heatmap[3, 1] = 0
    paths = {
        path: float(np.prod([heatmap[a, b] for a, b in itertools.pairwise(path)]))
        for path in itertools.permutations(range(4), steps + 1)
        if list(path) == sorted(path, reverse=True)
    }
    expected = sorted((w for w in paths.values() if w > 0), reverse=True)[:3]
    heaviest = circuits(heatmap, steps=steps, count=3)
    assert [c.weight for c in heaviest] == pytest.approx(expected)
    assert all(paths[c.layers] == pytest.approx(c.weight) for c in heaviest)


def test_circuits_of_a_deep_model_take_no_time():
    deep = np.tril(np.random.default_rng(0).random((128, 128)))
    deep /= deep.sum(1, keepdims=True)
    assert len(circuits(deep, steps=4, count=10)) == 10 and circuits(np.eye(5)) == []
