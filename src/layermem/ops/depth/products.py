"""The products of sums over depth, without an intermediate as large as all states.

Of a layer, sums by constant weights and by weights per token are one product each. Sums by weights
per channel are added up state by state; a compiler fuses them.

Letters: S states, C sums, B batch, T tokens, N = B T, D width. States are x [S, B, T, D], in
float32 at least.
"""

import torch
from torch import Tensor

from layermem.ops.depth.naive import Weights

# On a CPU the product of so many tokens stays in the cache until it is added.
_TILE = 128


def mix(x: Tensor, weights: Weights, dtype: torch.dtype) -> Tensor:
    """Compute ``naive.mix``."""
    weights, shape = weights.to(x.dtype), x.shape[1:]
    if weights.dim() == 4:
        sums = torch.bmm(weights.flatten(0, 1), _by_token(x)).to(dtype)
        return sums.transpose(0, 1).contiguous().view(weights.shape[2], *shape)
    if weights.dim() == 2:
        return (weights @ x.flatten(1)).view(len(weights), *shape).to(dtype)
    if torch.compiler.is_compiling():
        return (weights[:, :, None, None] * x).sum(1).to(dtype)
    sums = x.new_zeros(len(weights), *shape)
    for c, of_sum in enumerate(weights):
        for row, weight in zip(x, of_sum, strict=True):
            sums[c].addcmul_(row, weight)
    return sums.to(dtype)


def mix_weight_gradient(x: Tensor, weights: Weights, grads: Tensor) -> Weights:
    """Return the gradient of the weights of ``mix`` from that of its sums [C, B, T, D]."""
    grads = grads.to(x.dtype)
    if weights.dim() == 4:
        rows = grads.flatten(1, 2).transpose(0, 1)
        gradient = torch.bmm(rows, _by_token(x).transpose(1, 2)).view(weights.shape)
    elif weights.dim() == 2:
        gradient = grads.flatten(1) @ x.flatten(1).t()
    elif torch.compiler.is_compiling():
        gradient = (grads[:, None] * x).sum((2, 3))
    else:
        columns = [(grads * row).flatten(1, 2).sum(1) for row in x]
        gradient = torch.stack(columns, dim=1)
    return gradient.to(weights.dtype)


def add_mix_gradient(total: Tensor | None, x: Tensor, weights: Weights, grads: Tensor) -> Tensor:
    """Return ``total``, what is known of the gradient of x, plus that of ``mix``; in place."""
    weights, grads = weights.to(x.dtype), grads.to(x.dtype)
    if weights.dim() == 4:
        return _add_by_token(total, weights, grads.flatten(1, 2).transpose(0, 1), x.shape)
    if weights.dim() == 2:
        rows = grads.flatten(1)
        if total is None or torch.compiler.is_compiling():
            product = (weights.t() @ rows).view(x.shape)
            return product if total is None else total + product
        if len(weights) == 1 or not total.is_contiguous():
            for weight, grad in zip(weights, grads, strict=True):
                total.addcmul_(weight[:, None, None, None], grad)
        else:
            total.view(len(x), -1).addmm_(weights.t(), rows)
        return total
    if torch.compiler.is_compiling():
        product = (weights[:, :, None, None] * grads[:, None]).sum(0)
        return product if total is None else total + product
    total = torch.zeros_like(x) if total is None else total
    for row, of_state in zip(total, weights.unbind(1), strict=True):
        for weight, grad in zip(of_state, grads, strict=True):
            row.addcmul_(grad, weight)
    return total


def score(x: Tensor, vectors: Tensor) -> Tensor:
    """Compute ``naive.score``."""
    by_token = _by_token(x)
    # In this order: twice as fast on a CPU as the transposed product.
    scores = torch.bmm(vectors.to(x.dtype).expand(len(by_token), -1, -1), by_token.transpose(1, 2))
    return scores.unflatten(0, x.shape[1:3])


def score_vectors_gradient(x: Tensor, vectors: Tensor, grads: Tensor) -> Tensor:
    """Return the gradient of the vectors of ``score`` from that of its output [B, T, C, S]."""
    return torch.bmm(grads.flatten(0, 1), _by_token(x)).sum(0).to(vectors.dtype)


def add_score_gradient(total: Tensor | None, x: Tensor, vectors: Tensor, grads: Tensor) -> Tensor:
    """Return ``total``, what is known of the gradient of x, plus that of ``score``; in place."""
    rows = vectors.to(x.dtype).expand(x.shape[1] * x.shape[2], -1, -1)
    return _add_by_token(total, grads, rows, x.shape)


def _add_by_token(total: Tensor | None, weights: Tensor, rows: Tensor, shape: torch.Size) -> Tensor:
    """Return ``total`` plus the products of weights [B, T, C, S] and rows [N, C, D]; in place."""
    columns = weights.flatten(0, 1).transpose(1, 2)
    if total is None or torch.compiler.is_compiling():
        product = torch.bmm(columns, rows).unflatten(0, shape[1:3]).movedim(2, 0)
        return product if total is None else total + product
    by_token = total.movedim(0, 2).view(*columns.shape[:2], shape[3])
    if columns.shape[2] == 1:
        by_token.addcmul_(columns, rows)
        return total
    step = _TILE if total.device.type == "cpu" else max(1, len(rows))
    for start in range(0, len(rows), step):
        tokens = slice(start, start + step)
        by_token[tokens].add_(torch.bmm(columns[tokens], rows[tokens]))
    return total


def _by_token(x: Tensor) -> Tensor:
    """Return states as [N, S, D]."""
    return x.flatten(1, 2).transpose(0, 1)


# Of ``score`` and of ``mix``: the gradient of the weights, and what adds that of the states.
GRADIENTS = (
    (score_vectors_gradient, add_score_gradient),
    (mix_weight_gradient, add_mix_gradient),
)
