"""Root-mean-square norm that keeps its input alone for the backward.

Written as its formula, autograd would keep the input, the scaled input and, in half precision,
float32 copies of them: two to five times what a norm must remember. Here the forward is the
formula, operation by operation (so that it equals Hugging Face's LLaMA bit for bit), and the
backward derives the rest again from the input and one number per token.

It does not know: modules, configs.
"""

from typing import Any

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale x [..., D] to unit mean square, times the weight [D]."""
    # Where gradients are traced by others, they see the formula: a compiler fuses it anyway.
    traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if torch.is_grad_enabled() and not traced:
        return _RMSNorm.apply(x, weight, eps)
    return _formula(x, weight, eps)[0]


def _formula(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    # The mean square is taken in float32 at least; the result comes down before the weight.
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype), scale


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y, scale = _formula(x, weight, eps)
        ctx.save_for_backward(x, weight, scale)
        ctx.eps = eps
        return y

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        needs_x, needs_weight, _ = ctx.needs_input_grad
        if torch.is_grad_enabled():
            # Somebody differentiates twice: the formula's own gradients.
            wanted = [t for t, need in ((x, needs_x), (weight, needs_weight)) if need]
            y, _ = _formula(x, weight, ctx.eps)
            found = iter(torch.autograd.grad(y, wanted, d_y, create_graph=True))
            return next(found) if needs_x else None, next(found) if needs_weight else None, None

        unit = x * scale
        product = d_y * unit
        d_weight = product.flatten(0, -2).sum(0).to(weight.dtype) if needs_weight else None
        if not needs_x:
            return None, d_weight, None
        # d x = scale * (w d_y - unit * mean(w d_y * unit)), in the memory of what is done with.
        along = (product @ weight.to(product.dtype))[..., None] / x.shape[-1]
        d_x = torch.mul(d_y, weight, out=product) if product.dtype == d_y.dtype else d_y * weight
        d_x = (d_x - unit.mul_(along)).mul_(scale)
        return d_x.to(x.dtype), d_weight, None
