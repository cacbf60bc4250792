"""Streams: project, read and write are their equations; half precision saves no wider copy."""

import pytest
import torch

from layermem.ops import streams as ops


def tensors(dtype=torch.float64, *, by_stream):
    generator = torch.Generator().manual_seed(1)

    def draw(*size):
        return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)

    count, n, width, outputs = 7, 4, 5, 6
    matrix = draw(outputs, width if by_stream else n * width)
    inputs = (draw(count, n, width), matrix, draw(count, 1, n), draw(count, width))
    return [x.requires_grad_() for x in (*inputs, draw(count, n, n), draw(count, n, 1))]


@pytest.mark.parametrize("by_stream", [True, False], ids=["by-stream", "together"])
def test_each_is_its_equation(by_stream):
    streams, matrix, reading, y, mixing, writing = tensors(by_stream=by_stream)
    x = streams if by_stream else streams.flatten(1)
    unit = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(ops.project(streams, matrix, 1e-6), unit @ matrix.T)
    expected = torch.einsum("oj,ojd->od", reading[:, 0], streams)
    torch.testing.assert_close(ops.read(streams, reading), expected)
    mixed = torch.einsum("oij,ojd->oid", mixing, streams)
    expected = mixed + torch.einsum("oi,od->oid", writing[..., 0], y)
    torch.testing.assert_close(ops.write(streams, y, mixing, writing), expected)


def test_a_projection_in_float32_of_half_precision_streams():
    half, matrix, *_ = tensors(torch.bfloat16, by_stream=True)
    matrix = matrix.detach().float().requires_grad_()
    wide = half.detach().float().requires_grad_()
    expected, saved = ops.project(wide, matrix, 1e-6), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        got = ops.project(half, matrix, 1e-6)
    assert got.dtype == torch.float32
    assert {x.dtype for x in saved if x.shape != matrix.shape} == {torch.bfloat16}
    torch.testing.assert_close(got, expected)
    ours = torch.autograd.grad(got.square().sum(), (half, matrix))
    theirs = torch.autograd.grad(expected.square().sum(), (wide, matrix))
    torch.testing.assert_close(ours[0], theirs[0].bfloat16())
    torch.testing.assert_close(ours[1], theirs[1])
