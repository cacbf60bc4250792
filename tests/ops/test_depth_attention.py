"""Scores and sums over depth: forward and every gradient equal the equations, at odd sizes."""

import pytest
import torch

from layermem.ops import depth_attention as fast

# Batch, heads, tokens, width, sources.
SIZES = [(1, 1, 1, 1, 1), (2, 3, 5, 7, 4), (3, 1, 11, 2, 2)]


def poisoned(*shape, dtype=torch.float64, seed=0):
    """Return a tensor [B, G, T, E] that is a view into memory whose rest is NaN."""
    batch, heads, tokens, width = shape
    memory = torch.full((batch, tokens + 2, heads + 1, width + 3), torch.nan, dtype=dtype)
    view = memory[:, 1:-1, 1:, 2:-1].transpose(1, 2)
    view.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))
    return view


def read_twice(query, tensors, ops, stored):
    """Two layers read the same keys and values; the second reads the first one's mixture too."""
    score, mix = ops
    store = fast.store if stored else (lambda x: x)
    keys, values = ([store(x) for x in part] for part in tensors)
    first = mix(score(query, keys).softmax(-1), values)
    again = [*values[1:], store(first)]
    second = mix(score(first, keys).sin(), again)
    return torch.cat((first, second, values[0].square()), dim=-1)


def gradients(size, ops, stored, dtype=torch.float64, create_graph=False):
    *shape, count = size
    query = poisoned(*shape, dtype=dtype).requires_grad_()
    keys = [poisoned(*shape, dtype=dtype, seed=10 + i).requires_grad_() for i in range(count)]
    values = [poisoned(*shape, dtype=dtype, seed=50 + i).requires_grad_() for i in range(count)]
    out = read_twice(query, (keys, values), ops, stored)
    inputs = [query, *keys, *values]
    weights = torch.linspace(-1, 1, out.numel(), dtype=dtype).view_as(out)
    first = torch.autograd.grad((out * weights).sum(), inputs, create_graph=create_graph)
    if not create_graph:
        return [out, *first]
    return [out, *first, *torch.autograd.grad(sum(g.square().sum() for g in first), inputs)]


NAIVE = (fast.score_naive, fast.mix_naive)
FAST = (fast.score, fast.mix)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("create_graph", [False, True], ids=["first", "second"])
def test_equals_naive(size, stored, create_graph):
    ours = gradients(size, FAST, stored, create_graph=create_graph)
    theirs = gradients(size, NAIVE, False, create_graph=create_graph)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not stored"])
def test_half_precision_is_rounded_once(stored):
    size = (2, 3, 5, 8, 4)
    ours = gradients(size, FAST, stored, torch.bfloat16)
    theirs = gradients(size, NAIVE, False, torch.bfloat16)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)
    query, *keys = (poisoned(2, 3, 5, 8, dtype=torch.bfloat16, seed=i) for i in range(4))
    expected = torch.stack([(query.double() * key.double()).sum(-1) for key in keys], -1)
    scores = fast.score(query, keys)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.transpose(1, 2).double(), expected, rtol=1e-5, atol=1e-5)


def test_a_pass_that_ends_early_leaves_nothing_for_the_next():
    key, query = (torch.randn(1, 2, 3, 4, dtype=torch.float64) for _ in range(2))
    key.requires_grad_()
    query.requires_grad_()
    kept = fast.store(key)
    out = fast.score(query, [kept]).sum()
    # Only the query's gradient: the pass never reaches the node that stored the key.
    torch.autograd.grad(out, query, retain_graph=True)
    (found,) = torch.autograd.grad(out, key)
    torch.testing.assert_close(found, query.detach())


def test_a_hook_on_a_stored_tensor_sees_its_gradient():
    key, query = (torch.randn(1, 2, 3, 4, dtype=torch.float64) for _ in range(2))
    kept = fast.store(key.requires_grad_())
    kept.retain_grad()
    fast.score(query, [kept]).sum().backward()
    torch.testing.assert_close(kept.grad, query)
    torch.testing.assert_close(key.grad, query)


def test_autocast_does_not_round_scores():
    query, key = (torch.randn(2, 3, 5, 16) for _ in range(2))
    expected = fast.score(query, [key])
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fast.score(query, [key]), expected)
