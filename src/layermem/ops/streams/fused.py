"""The functions of ``naive`` with fewer passes over the streams.

Norm, projection, read and write each add a part to the gradient of the streams H:

    project    Z = norm(H) P^T      dH += dZ P (scaled) + c H
    read       x = w H              dH += w^T dx
    write      H' = M H + v y       dH += M^T dH'

Left to autograd, each would make a tensor as large as the streams, and autograd would add them one
after the other. Here their backward leaves a function that adds the part to a sum, and ``Gather``
makes the sum when all of them have run: they read an alias of the streams, which it has made
(``ops/stored.py``). Where there is none, each returns its part, as autograd would have it.

With ``create_graph=True`` the gradients are those of ``naive``.

Letters: N tokens of all sequences, n streams, D width, K outputs of a projection.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from layermem.ops.differentiable import equation_gradients
from layermem.ops.streams import naive
from layermem.ops.streams.naive import as_projected

# From the sum of the parts so far, None at first, to the sum with one more; it may change the sum.
Add = Callable[[Tensor | None], Tensor]
Grads = tuple[Tensor | None, ...]


class Gather(torch.autograd.Function):
    """Return an alias of the streams; in the backward, sum the parts of their gradient."""

    @staticmethod
    def forward(ctx: Any, streams: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        # What the functions that follow leave in the backward: (id of the backward pass, part).
        ctx.pending = []
        ctx.stored = streams.grad_fn
        return streams.detach()

    @staticmethod
    def backward(ctx: Any, direct: Tensor | None) -> Tensor | None:
        current_pass = torch._C._current_graph_task_id()
        parts = [part for pass_id, part in ctx.pending if pass_id == current_pass]
        ctx.pending = []
        total = direct.clone() if direct is not None and parts else direct
        for part in parts:
            total = part(total)
        return total


_GatherNode = Gather._backward_cls


def _node_of(streams: Tensor) -> Any | None:
    """Return the node of ``Gather`` that made the alias, None if there is none."""
    return streams.grad_fn if isinstance(streams.grad_fn, _GatherNode) else None


def _hand_on(ctx: Any, part: Add) -> Tensor | None:
    """Leave a part of the gradient at the node of the streams; return it if there is no node."""
    if not ctx.needs_input_grad[0]:
        return None
    if ctx.node is None:
        return part(None)
    ctx.node.pending.append((torch._C._current_graph_task_id(), part))
    return None


def _naive_gradients(ctx: Any, function: Callable[..., Tensor], grad: Tensor) -> Grads:
    """Return gradients that can themselves be differentiated (``create_graph=True``)."""
    return tuple(equation_gradients(function, ctx.saved_tensors, ctx.needs_input_grad, (grad,)))


class Project(torch.autograd.Function):
    """``naive.project``."""

    @staticmethod
    def forward(ctx: Any, streams: Tensor, matrix: Tensor, eps: float) -> Tensor:
        x = as_projected(streams, matrix).to(matrix.dtype)
        squares = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        scale = squares.div_(x.shape[-1]).add_(eps).rsqrt_()
        projected = nn.functional.linear(x, matrix).mul_(scale)
        ctx.eps, ctx.node = eps, _node_of(streams)
        ctx.save_for_backward(streams, matrix, scale, projected)
        return projected

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Grads:
        streams, matrix, scale, projected = ctx.saved_tensors
        if torch.is_grad_enabled():

            def project(streams: Tensor, matrix: Tensor) -> Tensor:
                return naive.project(streams, matrix, ctx.eps)

            needs = ctx.needs_input_grad[:2]
            return *equation_gradients(project, (streams, matrix), needs, (grad,)), None
        x = as_projected(streams, matrix)
        wide, scaled = x.to(matrix.dtype).flatten(0, -2), (grad * scale).flatten(0, -2)
        # The norm's own part: the projection falls as x grows.
        factor = (grad * projected).sum(-1, keepdim=True)
        factor = factor.mul_(scale.square()).div_(-x.shape[-1]).flatten(0, -2)

        def part(total: Tensor | None) -> Tensor:
            if total is None or total.dtype != matrix.dtype:
                out = (scaled @ matrix).addcmul_(wide, factor).view(streams.shape)
                return out.to(streams.dtype) if total is None else total.add_(out)
            total.view_as(wide).addmm_(scaled, matrix).addcmul_(wide, factor)
            return total

        d_matrix = scaled.mT @ wide if ctx.needs_input_grad[1] else None
        return _hand_on(ctx, part), d_matrix, None


class Read(torch.autograd.Function):
    """``naive.read``."""

    @staticmethod
    def forward(ctx: Any, streams: Tensor, weights: Tensor) -> Tensor:
        ctx.node = _node_of(streams)
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


class Write(torch.autograd.Function):
    """``naive.write``."""

    @staticmethod
    def forward(ctx: Any, streams: Tensor, y: Tensor, mixing: Tensor, weights: Tensor) -> Tensor:
        ctx.node = _node_of(streams)
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
