"""The loss in chunks against all logits at once: values, every gradient, what is held."""

import pytest
import torch
from tiny import needs_compiler
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from layermem.ops.loss import IGNORED, chunked, naive

N, D, V = 37, 16, 101


class Largest(TorchDispatchMode):
    """Note the size of the largest tensor that is made."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        sizes = [t.numel() for t in tree_leaves(made) if isinstance(t, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return made


def case(dtype=torch.float32, ignored=slice(None, None, 5)):
    torch.manual_seed(0)
    x, weight = torch.randn(N, D, dtype=dtype), torch.randn(V, D, dtype=dtype)
    labels = torch.randint(0, V, (N,))
    labels[ignored] = IGNORED
    return x.requires_grad_(), weight.requires_grad_(), labels


def results(function, x, weight, *rest):
    """Return the sum, each loss, and the gradients of a mean."""
    total, losses = function(x, weight, *rest)
    return total, losses, *torch.autograd.grad(total / 7, (x, weight))


@pytest.mark.parametrize("chunk", [1, 10, N, 1000])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)]
)
def test_it_equals_all_logits_at_once(chunk, dtype, tolerance):
    x, weight, labels = case(dtype)
    expected = results(naive, x, weight, labels)
    for ours, theirs in zip(results(chunked, x, weight, labels, chunk), expected, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    with torch.no_grad():
        without = chunked(x, weight, labels, chunk)
    for ours, theirs in zip(without, chunked(x, weight, labels, chunk), strict=True):
        assert torch.equal(ours, theirs)


def test_one_of_the_two_may_be_frozen():
    x, weight, labels = case()
    _, _, d_x, d_weight = results(naive, x, weight, labels)
    for free, frozen, expected in ((x, weight, d_x), (weight, x, d_weight)):
        frozen.requires_grad_(False)
        (chunked(x, weight, labels, 10)[0] / 7).backward()
        assert frozen.grad is None
        torch.testing.assert_close(free.grad, expected)
        free.grad = None
        frozen.requires_grad_(True)


def test_what_has_no_label_counts_for_nothing():
    x, weight, labels = case(ignored=slice(None))
    total, losses, d_x, d_weight = results(chunked, x, weight, labels, 10)
    assert total == 0 and not any(t.any() for t in (losses, d_x, d_weight))
    # Not even where it is not a number.
    x, weight, labels = case()
    _, _, *expected = results(chunked, x, weight, labels, 10)
    x.data[::5] = torch.inf
    found = chunked(x, weight, labels, 10)
    assert found[0].isfinite() and found[1].isfinite().all()
    d_x, _ = torch.autograd.grad(found[0] / 7, (x, weight))
    torch.testing.assert_close(d_x, expected[0])


def test_under_autocast():
    x, weight, labels = case()
    with torch.autocast("cpu", torch.bfloat16):
        expected = results(naive, x, weight, labels)
        found = results(chunked, x, weight, labels, 10)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)


def test_only_the_logits_of_a_chunk_are_held():
    x, weight, labels = case()
    with Largest() as whole:
        results(naive, x, weight, labels)
    with Largest() as parts:
        results(chunked, x, weight, labels, 10)
    assert whole.elements == N * V
    # The head's own gradient.
    assert parts.elements == V * D > 10 * V


def test_second_derivatives_are_refused():
    x, weight, labels = case()
    with pytest.raises(RuntimeError, match="first derivatives alone; compute it whole"):
        torch.autograd.grad(chunked(x, weight, labels, 10)[0], x, create_graph=True)


@needs_compiler
def test_compiled_it_is_the_same():
    x, weight, labels = case()
    compiled = torch.compile(chunked, fullgraph=True)
    expected = results(chunked, x, weight, labels, 10)
    for ours, theirs in zip(results(compiled, x, weight, labels, 10), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
