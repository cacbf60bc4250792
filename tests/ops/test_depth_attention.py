"""Scores and sums over depth equal their equations, and are rounded once."""

import pytest
import torch

from layermem.ops.depth_attention import mix, score


def draw(*shape, seed, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# Batch, heads, tokens, width, sources.
@pytest.mark.parametrize("size", [(1, 1, 1, 1, 1), (2, 3, 5, 7, 4), (3, 1, 11, 2, 2)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_equals_the_equations(size, dtype):
    *shape, count = size
    query, keys = draw(*shape, seed=0, dtype=dtype), draw(count, *shape, seed=1, dtype=dtype)
    exact = torch.einsum("bgte,sbgte->btgs", query.double(), keys.double())
    scores = score(query, keys.unbind())
    assert scores.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(scores.double(), exact, rtol=1e-5, atol=1e-5)
    weights = exact.softmax(-1)
    mixed = mix(weights.to(scores.dtype), keys.unbind())
    exact = torch.einsum("btgs,sbgte->bgte", weights, keys.double())
    assert mixed.dtype == dtype
    torch.testing.assert_close(mixed.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_autocast_does_not_round_scores():
    query, key = draw(2, 2, 3, 5, 16, seed=0, dtype=torch.float32)
    expected = score(query, [key])
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(score(query, [key]), expected)
