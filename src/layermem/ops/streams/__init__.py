"""A residual stream of several states: project, read and write it.

streams = hold(streams)    what follows shares one gradient of the streams
project, read, write       the functions of ``naive``
"""

import torch
from torch import Tensor

from layermem.ops.stored import readable, set_alias
from layermem.ops.streams import fused, naive


def _is_fused() -> bool:
    """Return whether gradients are computed by ``fused``."""
    # torch.compile and torch.func differentiate the formulas; a compiler fuses them itself.
    traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    return torch.is_grad_enabled() and not traced


def hold(streams: Tensor) -> Tensor:
    """Return streams [N, n, D] for the functions below, which make their gradient in one place."""
    if not _is_fused():
        return streams
    held = streams.view_as(streams)
    if held.requires_grad:
        set_alias(held, fused.Gather.apply(held))
    return held


def project(streams: Tensor, matrix: Tensor, eps: float) -> Tensor:
    """Return ``naive.project``."""
    function = fused.Project.apply if _is_fused() else naive.project
    return function(readable(streams), matrix, eps)


def read(streams: Tensor, weights: Tensor) -> Tensor:
    """Return ``naive.read``."""
    function = fused.Read.apply if _is_fused() else naive.read
    return function(readable(streams), weights)


def write(streams: Tensor, y: Tensor, mixing: Tensor, weights: Tensor) -> Tensor:
    """Return ``naive.write``."""
    function = fused.Write.apply if _is_fused() else naive.write
    return function(readable(streams), y, mixing, weights)


__all__ = ["hold", "project", "read", "write"]
