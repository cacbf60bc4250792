"""Maps of what routers read, against loops over indices."""

import numpy as np
import pytest
import torch
from tiny import TINY, make

import layermem
from layermem.analysis.routing import mean_heatmap
from layermem.models.registry import lookup


def a_model(name="lime", **fields):
    variant = lookup(name)
    return make(variant.causal_lm, variant.config(**{**TINY, **fields}))


@pytest.mark.parametrize("fields", [{}, {"router": "first", "router_window": 1}])
def test_against_a_loop(fields):
    model = a_model(**fields)
    found = mean_heatmap(model)
    expected = np.zeros((4, 4))
    expected[0, 0] = 1
    for i in range(1, 4):
        router = model.model.layers[i].self_attn.memory.requires_grad_(False)
        for target in range(2):
            for place, j in enumerate(router.sources):
                for source in range(2):
                    expected[i, j] += abs(float(router.weight[target, 2 * place + source]))
        expected[i] /= expected[i].sum()
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(found.sum(1), 1)
    assert found[1, 2] == 0 and (np.triu(found, 1) == 0).all()


def test_own_layer_only_is_a_diagonal():
    torch.manual_seed(0)
    model = layermem.build("lime", **TINY, router_init="identity")
    np.testing.assert_array_equal(mean_heatmap(model), np.eye(4))
    np.testing.assert_array_equal(mean_heatmap(a_model("plain")), np.eye(4))


def test_what_has_no_map():
    with pytest.raises(ValueError, match="Linear has no memories"):
        mean_heatmap(torch.nn.Linear(2, 2))
    model = a_model()
    weight = model.model.layers[2].self_attn.memory.weight
    weight.data.zero_()
    with pytest.raises(ValueError, match="layer 2 has weights of zero alone"):
        mean_heatmap(model)
    weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match="layer 2 has weights that are not finite"):
        mean_heatmap(model)
