"""The moments of weights over depth against those computed at once from all of them."""

import numpy as np
import pytest
import torch
from tiny import TINY, make

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
    with recording(model) as recorded:
        assert recorded() == (), "nothing has run"
        for rows in (slice(0, 1), slice(1, 4), slice(4, 6)):
            model(input_ids=ids[rows], attention_mask=mask[rows])
    model(ids)
    assert len(recorded()) == len(seen) > 0
    for mixture, weights in zip(recorded(), seen.values(), strict=True):
        tokens = torch.cat(weights[:3])[mask.bool()].double().numpy()
        assert tokens.shape == (mask.sum(), len(mixture.readers), len(mixture.sources))
        np.testing.assert_allclose(mixture.mean, tokens.mean(0), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(mixture.deviation, tokens.std(0), rtol=1e-7, atol=1e-12)
    # Its own hooks are taken off.
    assert sum(len(module._forward_hooks) for module in model.modules()) == len(seen)


def test_constant_weights_have_no_deviation(ids):
    model = a_model("denseformer")
    with recording(model) as recorded:
        model(ids)
    mixture = recorded()[1]
    assert mixture.sources == ("embedding", "layer 0", "layer 1") and not np.any(mixture.deviation)
    weights = model.model.layers[1].mlp_connection.weights.weight
    np.testing.assert_allclose(mixture.mean, weights.detach().numpy())
