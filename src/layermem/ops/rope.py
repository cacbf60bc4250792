"""Turning pairs of numbers by angles, forward and back, without the copies autograd would make.

Letters: B batch, T tokens, E head width.
It does not know: where the angles come from, depth, caches.
"""

from typing import Any

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x [B, heads, T, E] by the angles whose cosines and sines are [B, T, E].

    The pairs are (i, i + E / 2), and the numbers those of ``x * cos + (-right, left) * sin``.
    """
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    # Where gradients are traced by others, they see the formula: a compiler fuses it anyway.
    traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if traced or not torch.is_grad_enabled():
        return _formula(x, cos, sin)
    return _Rotate.apply(x, cos, sin)


def _formula(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The formula, term by term in place: the same numbers to the last bit."""
    half = x.shape[-1] // 2
    out = x * cos
    out[..., :half].sub_(x[..., half:] * sin[..., :half])
    out[..., half:].add_(x[..., :half] * sin[..., half:])
    return out


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        left, right = sin.chunk(2, dim=-1)
        # The transpose of a turn: by the opposite angle.
        back = -torch.cat((right, left), dim=-1)
        turn = _formula if torch.is_grad_enabled() else _turned
        return turn(d_y, cos, back), None, None
