"""Weighted sums over depth as their equations.

Letters: S states, C sums, B batch, T tokens, D width.
"""

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from layermem.ops.shared_gradient import autocast_disabled

Weights = Tensor
"""Constant [C, S], per channel [C, S, D] or per token [B, T, C, S]."""


def mix(states: Sequence[Tensor], weights: Weights) -> Tensor:
    """Return the C sums over j of weights[c, j] * states[j], [C, B, T, D].

    They are summed in float32 at least and rounded once, to the dtype of the states.
    """
    dtype = common_dtype(states)
    wide = torch.promote_types(dtype, torch.float32)
    sums = []
    for c in range(count_sums(weights)):
        total = sum(
            (column(weights, c, j).to(wide) * x.to(wide) for j, x in enumerate(states)),
            start=torch.zeros((), dtype=wide, device=weights.device),
        )
        sums.append(total.to(dtype))
    return torch.stack(sums)


def score(states: Sequence[Tensor], vectors: Tensor) -> Tensor:
    """Return vectors[c] . states[j] for every token, [B, T, C, S], in float32 at least."""
    wide = torch.promote_types(common_dtype(states), torch.float32)
    # Autocast would compute the products in half precision.
    with autocast_disabled(vectors):
        return torch.stack([x.to(wide) @ vectors.to(wide).t() for x in states], dim=-1)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """Return 1 / sqrt(mean(x^2) + eps) of every token, [B, T], in float32 at least."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.rsqrt(wide.square().mean(-1) + eps)


def count_sums(weights: Weights) -> int:
    """Return C."""
    return weights.shape[2] if weights.dim() == 4 else weights.shape[0]


def column(weights: Weights, c: int, j: int) -> Tensor:
    """Return what multiplies state j in sum c: [], [D] or [B, T, 1]."""
    return weights[:, :, c, j, None] if weights.dim() == 4 else weights[c, j]


def common_dtype(states: Sequence[Tensor]) -> torch.dtype:
    """Return the dtype to which all states can be promoted."""
    return reduce(torch.promote_types, {x.dtype for x in states})
