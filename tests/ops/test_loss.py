"""Tests of the chunked loss against the naive one: values, every gradient, memory."""

import pytest
import torch
from tiny import needs_compiler
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from layermem.ops.loss import IGNORE_INDEX, chunked_cross_entropy, naive_cross_entropy

N, D, V = 37, 16, 101


class Largest(TorchDispatchMode):
    """Record the size of the largest tensor that an operation returns."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        sizes = [t.numel() for t in tree_leaves(output) if isinstance(t, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return output


def case(dtype=torch.float32, ignored=slice(None, None, 5)):
    torch.manual_seed(0)
    x, weight = torch.randn(N, D, dtype=dtype), torch.randn(V, D, dtype=dtype)
    labels = torch.randint(0, V, (N,))
    labels[ignored] = IGNORE_INDEX
    return x.requires_grad_(), weight.requires_grad_(), labels


def results(function, x, weight, *arguments):
    """Return the sum, the loss of each token, and the gradients of a mean."""
    total, losses = function(x, weight, *arguments)
    return total, losses, *torch.autograd.grad(total / 7, (x, weight))


@pytest.mark.parametrize("chunk", [1, 10, N, 1000])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)]
)
def test_it_equals_all_logits_at_once(chunk, dtype, tolerance):
    x, weight, labels = case(dtype)
    expected = results(naive_cross_entropy, x, weight, labels)
    for ours, theirs in zip(
        results(chunked_cross_entropy, x, weight, labels, chunk), expected, strict=True
    ):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    with torch.no_grad():
        without = chunked_cross_entropy(x, weight, labels, chunk)
    for ours, theirs in zip(without, chunked_cross_entropy(x, weight, labels, chunk), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("chunk", [8, 64])
def test_the_gradient_of_a_head_in_16_bits_does_not_depend_on_the_chunk(chunk):
    torch.manual_seed(0)
    x, weight = torch.randn(4096, D, dtype=torch.bfloat16), torch.randn(V, D, dtype=torch.bfloat16)
    labels = torch.randint(0, V, (4096,))
    weight.requires_grad_()
    (ours,) = torch.autograd.grad(chunked_cross_entropy(x, weight, labels, chunk)[0], weight)
    exact = weight.detach().double().requires_grad_()
    (theirs,) = torch.autograd.grad(naive_cross_entropy(x.double(), exact, labels)[0], exact)
    assert (ours.double() - theirs).norm() / theirs.norm() < 5e-3


def test_input_or_weight_may_be_frozen():
    x, weight, labels = case()
    _, _, d_x, d_weight = results(naive_cross_entropy, x, weight, labels)
    for free, frozen, expected in ((x, weight, d_x), (weight, x, d_weight)):
        frozen.requires_grad_(False)
        (chunked_cross_entropy(x, weight, labels, 10)[0] / 7).backward()
        assert frozen.grad is None
        torch.testing.assert_close(free.grad, expected)
        free.grad = None
        frozen.requires_grad_(True)


def test_ignored_labels_change_nothing():
    x, weight, labels = case(ignored=slice(None))
    total, losses, d_x, d_weight = results(chunked_cross_entropy, x, weight, labels, 10)
    assert total == 0 and not any(t.any() for t in (losses, d_x, d_weight))
    # Not even where it is not a number.
    x, weight, labels = case()
    _, _, *expected = results(chunked_cross_entropy, x, weight, labels, 10)
    x.data[::5] = torch.inf
    total, losses = chunked_cross_entropy(x, weight, labels, 10)
    assert total.isfinite() and losses.isfinite().all()
    d_x, _ = torch.autograd.grad(total / 7, (x, weight))
    torch.testing.assert_close(d_x, expected[0])


def test_under_autocast():
    x, weight, labels = case()
    with torch.autocast("cpu", torch.bfloat16):
        expected = results(naive_cross_entropy, x, weight, labels)
        chunked = results(chunked_cross_entropy, x, weight, labels, 10)
    for ours, theirs in zip(chunked, expected, strict=True):
        assert ours.dtype == theirs.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)


def test_the_largest_tensor_is_not_all_logits():
    x, weight, labels = case()
    with Largest() as with_all_logits:
        results(naive_cross_entropy, x, weight, labels)
    with Largest() as with_chunks:
        results(chunked_cross_entropy, x, weight, labels, 10)
    assert with_all_logits.elements == N * V
    # The head's own gradient.
    assert with_chunks.elements == V * D > 10 * V


def test_second_derivatives_are_refused():
    x, weight, labels = case()
    with pytest.raises(RuntimeError, match="no second derivatives .create_graph=True."):
        torch.autograd.grad(chunked_cross_entropy(x, weight, labels, 10)[0], x, create_graph=True)


@pytest.mark.slow
@needs_compiler
def test_compiled_equals_eager():
    x, weight, labels = case()
    compiled = torch.compile(chunked_cross_entropy, fullgraph=True)
    expected = results(chunked_cross_entropy, x, weight, labels, 10)
    for ours, theirs in zip(results(compiled, x, weight, labels, 10), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
