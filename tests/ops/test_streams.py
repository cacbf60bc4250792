"""Streams: outputs and gradients of the fused functions equal those of the formulas."""

import pytest
import torch

from layermem.ops import streams as ops
from layermem.ops.streams import naive

SHAPES = [(7, 4, 5), (3, 1, 8), (1, 3, 2), (130, 2, 33)]


def tensors(shape, dtype, outputs=6, *, by_stream=True):
    count, n, width = shape
    generator = torch.Generator().manual_seed(sum(shape))

    def draw(*size):
        return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)

    matrix = draw(outputs, width if by_stream else n * width)
    inputs = (draw(*shape), matrix, draw(count, 1, n), draw(count, width), draw(count, n, n))
    inputs = (*inputs, draw(count, n, 1))
    return [x.requires_grad_() for x in inputs]


def run(functions, inputs):
    """Project, read and write; return the outputs, the write depending on the projection."""
    project, read, write = functions
    streams, matrix, reading, y, mixing, writing = inputs
    projected = project(streams, matrix, 1e-6)
    x = read(streams, reading)
    after = write(streams, y + x, mixing, writing * projected.flatten(1).mean(-1)[:, None, None])
    return projected, x, after


def gradients(outputs, inputs):
    loss = sum(
        (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum()
        for out in outputs
    )
    return torch.autograd.grad(loss, inputs)


NAIVE = (naive.project, naive.read, naive.write)
FUSED = (ops.project, ops.read, ops.write)


@pytest.mark.parametrize("held", [True, False], ids=["held", "alone"])
@pytest.mark.parametrize("by_stream", [True, False], ids=["by-stream", "together"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fused_equals_the_formulas(shape, by_stream, held):
    inputs = tensors(shape, torch.float64, by_stream=by_stream)
    expected = run(NAIVE, inputs)
    streams = ops.hold(inputs[0]) if held else inputs[0]
    got = run(FUSED, [streams, *inputs[1:]])
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(gradients(got, inputs), gradients(expected, inputs))


def test_a_projection_in_float32_of_half_precision_streams():
    inputs = tensors((5, 4, 6), torch.bfloat16)
    inputs[1] = inputs[1].detach().float().requires_grad_()
    expected = naive.project(inputs[0], inputs[1], 1e-6)
    got = ops.project(ops.hold(inputs[0]), inputs[1], 1e-6)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected)
    ours, theirs = (torch.autograd.grad(x.square().sum(), inputs[:2]) for x in (got, expected))
    torch.testing.assert_close(ours, theirs)


def test_the_held_gradient_is_added_to_others():
    """A reader that is no function of this package, and two backward passes over one graph."""
    inputs = tensors((7, 4, 5), torch.float64)
    held = ops.hold(inputs[0])
    expected = [*run(NAIVE, inputs), inputs[0].square()]
    got = [*run(FUSED, [held, *inputs[1:]]), held.square()]

    def twice(outputs):
        loss = sum(out.square().sum() for out in outputs)
        return [torch.autograd.grad(loss, inputs, retain_graph=True) for _ in range(2)]

    torch.testing.assert_close(twice(got), twice(expected))


def test_a_pass_that_skips_the_streams_leaves_nothing_behind():
    inputs = tensors((7, 4, 5), torch.float64)
    held = ops.hold(inputs[0])
    outputs = run(FUSED, [held, *inputs[1:]])
    loss = sum(out.square().sum() for out in outputs)
    torch.autograd.grad(loss, inputs[1:], retain_graph=True)
    (got,) = torch.autograd.grad(loss, inputs[:1])
    (expected,) = torch.autograd.grad(sum(o.square().sum() for o in run(NAIVE, inputs)), inputs[:1])
    torch.testing.assert_close(got, expected)


def test_a_retained_gradient_of_the_streams_is_whole():
    inputs = tensors((7, 4, 5), torch.float64)
    held = ops.hold(inputs[0])
    held.retain_grad()
    sum(out.square().sum() for out in run(FUSED, [held, *inputs[1:]])).backward()
    torch.testing.assert_close(held.grad, inputs[0].grad)


def test_outputs_do_not_read_memory_that_was_not_written(monkeypatch):
    inputs = tensors((7, 4, 5), torch.float64)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True)
    try:
        got = run(FUSED, [ops.hold(inputs[0]), *inputs[1:]])
        grads = gradients(got, inputs)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(x.isfinite().all() for x in (*got, *grads))


@pytest.mark.parametrize("held", [True, False], ids=["held", "alone"])
@pytest.mark.parametrize("by_stream", [True, False], ids=["by-stream", "together"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_second_derivatives_are_those_of_the_formulas(shape, by_stream, held):
    results = []
    for functions, hold in ((FUSED, ops.hold if held else lambda x: x), (NAIVE, lambda x: x)):
        inputs = tensors(shape, torch.float64, by_stream=by_stream)
        outputs = run(functions, [hold(inputs[0]), *inputs[1:]])
        loss = sum(out.square().sum() for out in outputs)
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        second = torch.autograd.grad(sum(grad.square().sum() for grad in first), inputs)
        results.append([*(grad.detach() for grad in first), *second])
    torch.testing.assert_close(*results)
