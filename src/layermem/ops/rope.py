"""The rotation of rotary position embeddings, with a backward that saves only the angles.

Letters: B batch, T tokens, E head width.
"""

from typing import Any

import torch
from torch import Tensor

from layermem.ops.gradients import is_traced

# Up to this many numbers a call costs more than its arithmetic.
_FEW = 16384


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [B, heads, T, E] by the angles whose cosines and sines are [B, T, E].

    Numbers i and i + E / 2 are a pair, as in Hugging Face's LLaMA: with x = (left, right) the
    result is ``x * cos + (-right, left) * sin``.
    """
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if _saves_tensors():
        return _Rotate.apply(cos, *sin.chunk(2, dim=-1), x)[0]
    return _formula(x, cos, sin)


def rotate_both(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate a query [B, H, T, E] and a key [B, G, T, E] in one go."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if _saves_tensors():
        return _Rotate.apply(cos, *sin.chunk(2, dim=-1), query, key)
    if torch.compiler.is_compiling() or query.numel() > _FEW:
        return _formula(query, cos, sin), _formula(key, cos, sin)
    both = _formula(torch.cat((query, key), dim=1), cos, sin)
    heads = query.shape[1]
    return both[:, :heads], both[:, heads:]


def _saves_tensors() -> bool:
    return torch.is_grad_enabled() and not is_traced()


def _formula(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class _Rotate(torch.autograd.Function):
    """The formula with one new tensor for each input, bit for bit the same."""

    @staticmethod
    def forward(
        ctx: Any, cos: Tensor, left: Tensor, right: Tensor, *xs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(cos, left, right)
        half, outs = left.shape[-1], tuple(x * cos for x in xs)
        for x, out in zip(xs, outs, strict=True):
            out[..., :half].sub_(x[..., half:] * left)
            out[..., half:].add_(x[..., :half] * right)
        return outs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # The transpose of a rotation is the rotation by the opposite angle.
        cos, left, right = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, None, None, *_Rotate.apply(cos, -right, -left, *grads)
        half, outs = left.shape[-1], [grad * cos for grad in grads]
        for grad, out in zip(grads, outs, strict=True):
            out[..., :half].addcmul_(grad[..., half:], right)
            out[..., half:].addcmul_(grad[..., :half], left, value=-1)
        return None, None, None, *outs
