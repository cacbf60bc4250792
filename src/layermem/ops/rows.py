"""Matrices whose rows, a power of two apart, would displace each other from a CPU's cache."""

import torch
from torch import Tensor

APART = 16  # numbers between two rows, about a line of the cache


def new_rows(like: Tensor, count: int, columns: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return an empty matrix [count, columns]."""
    if not like.is_cpu or torch.compiler.is_compiling():
        return like.new_empty(count, columns, dtype=dtype)
    return like.new_empty(count, columns + APART, dtype=dtype)[:, :columns]


def lower_product(d: Tensor, x: Tensor, group: int) -> Tensor:
    """Return D @ X^T, in groups of rows without what is above the diagonal."""
    if group >= len(d):
        return d @ x.t()
    out = d.new_zeros(len(d), len(x))
    for start in range(0, len(d), group):
        rows, columns = slice(start, start + group), slice(start + group)
        torch.mm(d[rows], x[columns].t(), out=out[rows, columns])
    return out
