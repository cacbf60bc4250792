"""Matrices with rows and columns that sum to one, by Sinkhorn's iteration."""

import torch
from torch import Tensor

from layermem.ops.sinkhorn import naive
from layermem.ops.sinkhorn.fused import Sinkhorn


def sinkhorn(logits: Tensor, rounds: int) -> Tensor:
    """Return ``naive.sinkhorn``, whose backward saves the logits alone."""
    # torch.compile and torch.func differentiate the formula.
    traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if torch.is_grad_enabled() and not traced:
        result: Tensor = Sinkhorn.apply(logits, rounds)
        return result
    return naive.sinkhorn(logits, rounds)


__all__ = ["sinkhorn"]
