"""A residual stream of several states: project, read and write it with few passes over it.

Norm, projection, read and write each add a part to the gradient of the streams H:

    project    Z = norm(H) P^T      dH += dZ P (scaled) + c H
    read       x = w H              dH += w^T dx
    write      H' = M H + v y       dH += M^T dH'

``streams = hold(streams)`` makes them share it: the backward of each leaves a function that adds
its part to a sum, and one node makes the sum when all have run (``ops/shared_gradient.py``). With
``create_graph=True``, under torch.compile and torch.func the formulas of ``naive`` are
differentiated.

Letters: N tokens of all sequences, n streams, D width, K outputs of a projection.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from layermem.ops.shared_gradient import (
    Grads,
    equation_gradients,
    find_node,
    is_traced,
    leave,
    readable,
    share,
)
from layermem.ops.streams import naive
from layermem.ops.streams.naive import as_projected

# From the sum of the parts so far, None at first, to the sum with one more; it may change the sum.
Add = Callable[[Tensor | None], Tensor]


def _is_fused() -> bool:
    return torch.is_grad_enabled() and not is_traced()


def hold(streams: Tensor) -> Tensor:
    """Return streams [N, n, D] for the functions below, which make their gradient in one place."""
    if not _is_fused():
        return streams
    held = streams.view_as(streams)
    share(_gather, held)
    return held


def project(streams: Tensor, matrix: Tensor, eps: float) -> Tensor:
    """Return ``naive.project``."""
    function = _Project.apply if _is_fused() else naive.project
    return function(readable(streams), matrix, eps)


def read(streams: Tensor, weights: Tensor) -> Tensor:
    """Return ``naive.read``."""
    function = _Read.apply if _is_fused() else naive.read
    return function(readable(streams), weights)


def write(streams: Tensor, y: Tensor, mixing: Tensor, weights: Tensor) -> Tensor:
    """Return ``naive.write``."""
    function = _Write.apply if _is_fused() else naive.write
    return function(readable(streams), y, mixing, weights)


def _gather(parts: list[Add], direct: Grads) -> Grads:
    (total,) = direct
    total = total.clone() if total is not None and parts else total
    for part in parts:
        total = part(total)
    return (total,)


def _hand_on(ctx: Any, part: Add) -> Tensor | None:
    """Leave a part of the gradient at the node of the streams; return it if there is no node."""
    if not ctx.needs_input_grad[0]:
        return None
    if ctx.node is None:
        return part(None)
    leave(ctx.node, part)
    return None


def _naive_gradients(ctx: Any, function: Callable[..., Tensor], grad: Tensor) -> Grads:
    """Return gradients that can themselves be differentiated (``create_graph=True``)."""
    return equation_gradients(function, ctx.saved_tensors, ctx.needs_input_grad, (grad,))


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, streams: Tensor, matrix: Tensor, eps: float) -> Tensor:
        x = as_projected(streams, matrix).to(matrix.dtype)
        squares = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        scale = squares.div_(x.shape[-1]).add_(eps).rsqrt_()
        projected = nn.functional.linear(x, matrix).mul_(scale)
        ctx.eps, ctx.node = eps, find_node(streams, _gather)
        ctx.save_for_backward(streams, matrix, scale, projected)
        return projected

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Grads:
        streams, matrix, scale, projected = ctx.saved_tensors
        if torch.is_grad_enabled():
            formula, needs = partial(naive.project, eps=ctx.eps), ctx.needs_input_grad[:2]
            return *equation_gradients(formula, (streams, matrix), needs, (grad,)), None
        x = as_projected(streams, matrix)
        wide, scaled = x.to(matrix.dtype).flatten(0, -2), (grad * scale).flatten(0, -2)
        # The norm's own part: the projection falls as x grows.
        factor = (grad * projected).sum(-1, keepdim=True)
        factor = factor.mul_(scale.square()).div_(-x.shape[-1]).flatten(0, -2)
        # As it is now: an optimiser may step by the matrix's gradient before the part is added.
        used = matrix.clone() if ctx.node is not None else matrix

        def part(total: Tensor | None) -> Tensor:
            if total is None or total.dtype != used.dtype:
                out = (scaled @ used).addcmul_(wide, factor).view(streams.shape)
                return out.to(streams.dtype) if total is None else total.add_(out)
            total.view_as(wide).addmm_(scaled, used).addcmul_(wide, factor)
            return total

        d_matrix = scaled.mT @ wide if ctx.needs_input_grad[1] else None
        return _hand_on(ctx, part), d_matrix, None


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, streams: Tensor, weights: Tensor) -> Tensor:
        ctx.node = find_node(streams, _gather)
        ctx.save_for_backward(streams, weights)
        return torch.bmm(weights, streams)[:, 0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Grads:
        if torch.is_grad_enabled():
            return _naive_gradients(ctx, naive.read, grad)
        streams, weights = ctx.saved_tensors
        column, row = weights.mT, grad[:, None]

        def part(total: Tensor | None) -> Tensor:
            return column * row if total is None else total.addcmul_(column, row)

        d_weights = torch.bmm(row, streams.mT) if ctx.needs_input_grad[1] else None
        return _hand_on(ctx, part), d_weights


class _Write(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, streams: Tensor, y: Tensor, mixing: Tensor, weights: Tensor) -> Tensor:
        ctx.node = find_node(streams, _gather)
        ctx.save_for_backward(streams, y, mixing, weights)
        return torch.bmm(mixing, streams).addcmul_(weights, y[:, None])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Grads:
        if torch.is_grad_enabled():
            return _naive_gradients(ctx, naive.write, grad)
        streams, y, mixing, weights = ctx.saved_tensors

        def part(total: Tensor | None) -> Tensor:
            mixed = torch.bmm(mixing.mT, grad)
            return mixed if total is None else mixed.add_(total)

        _, needs_y, needs_mixing, needs_weights = ctx.needs_input_grad
        d_y = torch.bmm(weights.mT, grad)[:, 0] if needs_y else None
        d_mixing = torch.bmm(grad, streams.mT) if needs_mixing else None
        d_weights = torch.bmm(y[:, None], grad.mT).mT if needs_weights else None
        return _hand_on(ctx, part), d_y, d_mixing, d_weights


__all__ = ["hold", "project", "read", "write"]
