"""Matrices whose rows and columns sum to one, by Sinkhorn's iteration, and its short backward.

After every round the matrix is diag(u) K diag(v), K = exp(logits), where from u = 1

    v = 1 / (K^T u)        columns sum to one
    u = 1 / (K v)          rows sum to one

so that a round multiplies with K and keeps two vectors in place of two matrices. Autograd would
save two matrices a round, 40 for 20 rounds. The backward saves the logits alone and computes the
vectors again; with ``create_graph=True`` the gradient is that of the formula.

Inside ``_Sinkhorn`` tensors are [n, n, N], the matrices last: sums over n are sums of long rows.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from layermem.ops.shared_gradient import equation_gradients, is_traced


def sinkhorn(logits: Tensor, rounds: int) -> Tensor:
    """Compute ``naive``, with a backward that saves the logits alone."""
    if torch.is_grad_enabled() and not is_traced():
        result: Tensor = _Sinkhorn.apply(logits, rounds)
        return result
    return naive(logits, rounds)


def naive(logits: Tensor, rounds: int) -> Tensor:
    """Return exp(logits) [N, n, n]; each round divides columns, then rows, by their sums."""
    # Without effect: the first division takes a factor of a column away.
    matrix = (logits - logits.amax(-2, keepdim=True)).exp()
    for _ in range(rounds):
        matrix = matrix / matrix.sum(-2, keepdim=True)
        matrix = matrix / matrix.sum(-1, keepdim=True)
    return matrix


class _Sinkhorn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, rounds: int) -> Tensor:
        ctx.save_for_backward(logits)
        ctx.rounds = rounds
        kernel = _kernel(logits)
        rows, columns = _iterate(kernel, rounds)
        return kernel.mul_(rows[-1][:, None]).mul_(columns[-1]).permute(2, 0, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (logits,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            formula = partial(naive, rounds=ctx.rounds)
            return *equation_gradients(formula, (logits,), (True,), (grad,)), None
        kernel = _kernel(logits)
        rows, columns = _iterate(kernel, ctx.rounds)
        u, v = rows[-1], columns[-1]
        weighted = grad.permute(1, 2, 0) * kernel
        # d_kernel is the gradient of K; it is multiplied by K at the end, for the exponential.
        d_kernel = grad.permute(1, 2, 0) * u[:, None] * v
        d_u, d_v = (weighted * v).sum(1), (weighted * u[:, None]).sum(0)
        for k in range(ctx.rounds, 0, -1):
            d_sums = (d_u * rows[k].square()).neg_()
            d_kernel.addcmul_(d_sums[:, None], columns[k])
            d_v = (kernel * d_sums[:, None]).sum(0).add_(d_v)
            d_sums = (d_v * columns[k].square()).neg_()
            d_kernel.addcmul_(rows[k - 1][:, None], d_sums)
            d_u, d_v = (kernel * d_sums).sum(1), torch.zeros_like(d_v)
        return d_kernel.mul_(kernel).permute(2, 0, 1), None


def _kernel(logits: Tensor) -> Tensor:
    """Return exp(logits) [n, n, N], the largest entry of each column one."""
    logits = logits.permute(1, 2, 0)
    return (logits - logits.amax(0, keepdim=True)).exp_().contiguous()


def _iterate(kernel: Tensor, rounds: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return u and v [n, N] before the first round and after each one."""
    rows, columns = [torch.ones_like(kernel[:, 0])], [torch.ones_like(kernel[0])]
    for _ in range(rounds):
        columns.append((kernel * rows[-1][:, None]).sum(0).reciprocal_())
        rows.append((kernel * columns[-1]).sum(1).reciprocal_())
    return rows, columns
