"""Weighted sums over depth as their equations.

Letters: S states, C sums, B batch, T tokens, D width.
"""

import torch
from torch import Tensor

from layermem.ops.gradients import autocast_disabled

Weights = Tensor
"""Constant [C, S], per channel [C, S, D] or per token [B, T, C, S]."""

_LETTERS = {2: "cs", 3: "csd", 4: "btcs"}


def mix(x: Tensor, weights: Weights, dtype: torch.dtype) -> Tensor:
    """Return the C sums over s of weights[c, s] * x[s], [C, B, T, D], of states x [S, B, T, D].

    They are summed in float32 at least and rounded once, to ``dtype``.
    """
    with autocast_disabled(x):
        x = x.to(widest(x.dtype))
        equation = f"{_LETTERS[weights.dim()]},sbtd->cbtd"
        return torch.einsum(equation, weights.to(x.dtype), x).to(dtype)


def score(x: Tensor, vectors: Tensor) -> Tensor:
    """Return vectors[c] . x[s] for every token, [B, T, C, S], in float32 at least."""
    with autocast_disabled(x):
        x = x.to(widest(x.dtype))
        return torch.einsum("cd,sbtd->btcs", vectors.to(x.dtype), x)


def widest(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to compute in: float32 at least."""
    return torch.promote_types(dtype, torch.float32)
