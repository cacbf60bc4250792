"""The root-mean-square norm, with a backward that saves its input and one number for each token.

Why this is not the norm of transformers or torch (saved tensors on a CPU, in sizes of the input):

    norm                                  float32    bfloat16    equals Hugging Face's LLaMA
    transformers' ``LlamaRMSNorm``        2          3           yes
    ``torch.nn.functional.rms_norm``      2          4           in float32 only: it rounds once,
                                                                 LLaMA also before the weight
    this one                              1          1           yes, bit for bit

The forward is LLaMA's formula, operation by operation; the backward computes the scaled input again
from what was saved.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from layermem.ops.gradients import equation_gradients, is_traced

# In which torch's norm on a CPU computes the formula bit for bit.
_EQUAL_TO_TORCH = (torch.float32, torch.float64)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale x [..., D] to unit mean square, times the weight [D]."""
    traced = is_traced()
    if torch.is_grad_enabled() and not traced:
        return _RMSNorm.apply(x, weight, eps)
    if not traced and x.is_cpu and x.dtype == weight.dtype and x.dtype in _EQUAL_TO_TORCH:
        # The same operations in one call: of a few tokens a call costs more than its arithmetic.
        return torch.rms_norm(x, weight.shape, weight, eps)
    return _formula(x, weight, eps)


def _formula(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    # Computed in float32 at least; the result is rounded before the weight.
    return weight * (x * _scale(x, eps)).to(x.dtype)


def _scale(x: Tensor, eps: float) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = _scale(x, eps)
        ctx.save_for_backward(x, weight, scale)
        ctx.eps = eps
        return weight * (x * scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        if torch.is_grad_enabled():
            # Under create_graph=True: the gradients of the formula, which can be differentiated.
            formula, needs = partial(_formula, eps=ctx.eps), ctx.needs_input_grad[:2]
            return *equation_gradients(formula, (x, weight), needs, (d_y,)), None

        unit = x * scale
        product = d_y * unit
        d_weight = product.flatten(0, -2).sum(0).to(weight.dtype)
        # d x = scale * (w d_y - unit * mean(w d_y * unit)), in place.
        total = (product @ weight.to(product.dtype))[..., None]
        d_x = torch.mul(d_y, weight, out=product)
        d_x = d_x.addcmul_(unit, total, value=-1 / x.shape[-1]).mul_(scale)
        return d_x.to(x.dtype), d_weight, None
