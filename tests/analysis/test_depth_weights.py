"""Test the moments of weights over depth against those computed at once from all of them."""

import numpy as np
import pytest
import torch
from tiny import TINY, make
from torch import nn

from layermem.models.registry import lookup
from layermem.models.seams import DepthWeights
from layermem_bench.analysis.depth_weights import recording


def a_model(name, **fields):
    entry = lookup(name)
    return make(entry.causal_lm, entry.config(**TINY, **fields))


@pytest.mark.parametrize("name", ["mudd", "attention_residuals", "dca"])
def test_moments_are_those_of_all_tokens_but_padding(name):
    model = a_model(name)
    ids = torch.randint(TINY["vocab_size"], (6, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 4:] = mask[4, 2:] = 0
    seen = {}
    for path, module in model.named_modules():
        if isinstance(module, DepthWeights):
            seen[path] = []
            module.register_forward_hook(lambda _, a, w, path=path: seen[path].append(w.detach()))
    with recording(model) as recorder:
        for rows in (slice(0, 1), slice(1, 4), slice(4, 6)):
            model(input_ids=ids[rows], attention_mask=mask[rows])
    model(ids)
    mixtures = recorder.mixtures()
    assert len(mixtures) == len(seen) > 0
    for mixture, weights in zip(mixtures, seen.values(), strict=True):
        tokens = torch.cat(weights[:3])[mask.bool()].double().numpy()
        assert tokens.shape == (mask.sum(), len(mixture.readers), len(mixture.sources))
        np.testing.assert_allclose(mixture.mean, tokens.mean(0), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(mixture.deviation, tokens.std(0), rtol=1e-7, atol=1e-12)


class Flat(DepthWeights):
    """Weights [tokens, C, S] in one row, or of a shape in which tokens are not found."""

    def __init__(self, drop=0):
        super().__init__()
        self.readers, self.sources, self.drop = ("state",), ("layer 0", "layer 1"), drop

    def forward(self, ids):
        flat = ids.flatten()[self.drop :].double()
        return torch.stack([flat, 1 - flat], -1)[:, None]


@pytest.mark.parametrize("drop", [0, 1])
def test_padding_is_left_out_of_weights_in_one_row(drop):
    model = nn.Module()
    model.base_model = model
    model.weights = Flat(drop)
    model.forward = lambda input_ids, attention_mask: model.weights(input_ids)
    ids, mask = torch.tensor([[1, 1, 0], [1, 0, 0]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
    with recording(model) as recorder:
        if drop:
            with pytest.raises(ValueError, match=r"Flat returns weights of \[5, 1, 2\], expected"):
                model(input_ids=ids, attention_mask=mask)
            return
        model(input_ids=ids, attention_mask=mask)
    (mixture,) = recorder.mixtures()
    assert mixture.mean == ((1.0, 0.0),) and mixture.deviation == ((0.0, 0.0),)


def test_constant_weights_have_no_deviation(ids):
    model = a_model("denseformer")
    with recording(model) as recorder:
        model(ids)
    mixtures = recorder.mixtures()
    assert [mixture.place for mixture in mixtures] == [f"layer {i}, mlp" for i in range(4)]
    assert mixtures[1].sources == ("embedding", "layer 0", "layer 1")
    weights = model.model.layers[1].mlp_connection.weights.weight
    np.testing.assert_allclose(mixtures[1].mean, weights.detach().numpy())
    assert not np.any(mixtures[1].deviation)


def test_places_are_named_by_layer_and_part(ids):
    model = a_model("attention_residuals")
    with recording(model) as recorder:
        model(ids)
    places = [mixture.place for mixture in recorder.mixtures()]
    assert places[:3] == ["layer 0, mlp", "layer 1, attention", "layer 1, mlp"]
    assert places[-1] == "final norm"


def test_a_model_without_weights_over_depth_and_hooks_taken_off(ids):
    with recording(a_model("plain")) as recorder:
        assert recorder.mixtures() == ()
    model = a_model("mudd")
    with recording(model) as recorder:
        assert recorder.mixtures() == (), "nothing has run"
    assert not any(module._forward_hooks for module in model.modules())
    assert not model.base_model._forward_pre_hooks
