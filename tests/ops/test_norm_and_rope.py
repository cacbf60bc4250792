"""Norm and rope: the formula's numbers to the last bit, its gradients, and less to remember."""

from functools import partial

import pytest
import torch

from layermem.ops import rope
from layermem.ops.norm import rms_norm
from layermem.ops.rope import rotate, rotate_both


def norm_formula(x, weight, eps=1e-6):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def rope_formula(x, cos, sin):
    left, right = x.chunk(2, dim=-1)
    turned = torch.cat((-right, left), dim=-1)
    return x * cos.unsqueeze(1) + turned * sin.unsqueeze(1)


def norm_inputs(dtype=torch.float64, shape=(2, 5, 6)):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(shape[-1], generator=generator, dtype=torch.float64).to(dtype)
    return x.requires_grad_(), weight.requires_grad_()


def rope_inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 3, 6, generator=generator, dtype=torch.float64).to(dtype)
    # Sines and cosines that differ between the halves: the gradient must not lean on them equal.
    angles = torch.randn(2, 5, 6, generator=generator, dtype=torch.float64)
    return x.transpose(1, 2).requires_grad_(), angles.cos().to(dtype), angles.sin().to(dtype)


DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norm_equals_its_formula(dtype):
    x, weight = norm_inputs(dtype)
    got, expected = rms_norm(x, weight, 1e-6), norm_formula(x, weight)
    assert torch.equal(got, expected)
    with torch.no_grad():
        assert torch.equal(rms_norm(x, weight, 1e-6), expected)
    assert_as_good(got, expected, norm_formula, x, weight)


def assert_as_good(got, expected, formula, *inputs):
    """The gradients are no further from float64's than those of the formula."""
    direction = torch.randn(got.shape, generator=torch.Generator().manual_seed(1)).to(got.dtype)
    ours = torch.autograd.grad(got, inputs, direction)
    theirs = torch.autograd.grad(expected, inputs, direction)
    wide = [t.detach().double().requires_grad_() for t in inputs]
    exact = torch.autograd.grad(formula(*wide), wide, direction.double())
    for a, b, true in zip(ours, theirs, exact, strict=True):
        assert a.dtype == b.dtype
        assert (a - true).norm() <= 1.1 * (b - true).norm() + 1e-6 * true.norm()


def test_norm_of_weights_in_float32_and_inputs_in_half():
    x, weight = norm_inputs(torch.float32)
    half = x.detach().bfloat16().requires_grad_()
    got, expected = rms_norm(half, weight, 1e-6), norm_formula(half, weight, 1e-6)
    assert got.dtype == expected.dtype and torch.equal(got, expected)
    assert_as_good(got, expected, norm_formula, half, weight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rope_equals_its_formula(dtype):
    x, cos, sin = rope_inputs(dtype)
    expected, got = rope_formula(x, cos, sin), rotate(x, cos, sin)
    assert torch.equal(got, expected)
    with torch.no_grad():
        assert torch.equal(rotate(x, cos, sin), expected)
    assert_as_good(got, expected, partial(rope_formula, cos=cos.double(), sin=sin.double()), x)


@pytest.mark.parametrize("few", [0, 10**6])
@pytest.mark.parametrize("gradients", [True, False])
def test_queries_and_keys_are_rotated_as_each_alone(few, gradients, monkeypatch):
    monkeypatch.setattr(rope, "_FEW", few)
    x, cos, sin = rope_inputs(torch.float32)
    query, key = x.repeat(1, 2, 1, 1), x.flip(1)
    with torch.set_grad_enabled(gradients):
        got = rotate_both(query, key, cos, sin)
    assert torch.equal(got[0], rope_formula(query, cos, sin))
    assert torch.equal(got[1], rope_formula(key, cos, sin))


def test_derivatives_once_and_twice():
    x, weight = norm_inputs(shape=(2, 3, 4))
    torch.autograd.gradcheck(lambda *a: rms_norm(*a, 1e-3), (x, weight))
    torch.autograd.gradgradcheck(lambda *a: rms_norm(*a, 1e-3), (x, weight))
    got = torch.func.grad(lambda x: rms_norm(x, weight, 1e-3).square().sum())(x.detach())
    expected = torch.autograd.grad(norm_formula(x, weight, 1e-3).square().sum(), x)[0]
    torch.testing.assert_close(got, expected)
    x, cos, sin = rope_inputs()
    torch.autograd.gradcheck(lambda x: rotate(x, cos, sin), (x,))
    torch.autograd.gradgradcheck(lambda x: rotate(x, cos, sin), (x,))


def remembered(function, *inputs):
    """Bytes autograd keeps of a call beyond its inputs."""
    known = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = function(*inputs)
    del out
    return sum(kept.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_remembered(dtype):
    x, weight = norm_inputs(dtype, shape=(4, 64, 32))
    # One float32 per token.
    assert remembered(lambda x, w: rms_norm(x, w, 1e-6), x, weight) == 4 * 64 * 4
    assert remembered(lambda x, w: norm_formula(x, w, 1e-6), x, weight) > x.nbytes
    x, cos, sin = rope_inputs(dtype)
    assert remembered(rotate, x, cos, sin) == 0
