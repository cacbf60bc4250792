"""Cross-entropy of a linear head over the vocabulary, a chunk of tokens at a time.

The logits of a micro-batch are its largest tensor by far: 32 sequences of 2,048 tokens have 13 GB
of them over 50,257 words in float32, and the backward as much again. Here only a chunk's are held.
The gradient of the sum of losses needs nothing that comes later, so it is computed with them, and
the head is multiplied with no more often than otherwise; what is kept is the gradient of the
hidden states [N, D] and of the head [V, D].

Letters: N tokens, D width, V vocabulary.
It does not know: modules, sequences, what a label means.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

IGNORED = -100


def naive(x: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the losses of x [N, D], and each one's [N]; all logits at once."""
    logits = linear(x, weight)
    # The softmax is taken in float32 at least.
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    losses = cross_entropy(wide, labels, ignore_index=IGNORED, reduction="none")
    return losses.sum(), losses


def chunked(x: Tensor, weight: Tensor, labels: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Return what ``naive`` returns, with the logits of ``chunk`` tokens at once.

    The sum has gradients; the losses of single tokens have none.
    """
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return _Chunked.apply(x, weight, labels, chunk)
    losses, _, _ = _pass(x, weight, labels, chunk, (False, False))
    return losses.sum(), losses


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, labels: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor]:
        losses, d_x, d_weight = _pass(x, weight, labels, chunk, ctx.needs_input_grad[:2])
        ctx.save_for_backward(d_x, d_weight)
        ctx.mark_non_differentiable(losses)
        return losses.sum(), losses

    @staticmethod
    def backward(ctx: Any, d_total: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError("the loss in chunks has first derivatives alone; compute it whole")
        gradients = (None if d is None else d * d_total.to(d.dtype) for d in ctx.saved_tensors)
        return (*gradients, None, None)


def _pass(
    x: Tensor, weight: Tensor, labels: Tensor, chunk: int, needs: tuple[bool, bool]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the losses [N], and the gradients of their sum for x and weight where needed."""
    narrow_x, narrow_weight = x, weight
    if torch.is_autocast_enabled(x.device.type):
        # Once, not for every chunk.
        dtype = torch.get_autocast_dtype(x.device.type)
        narrow_x, narrow_weight = x.to(dtype), weight.to(dtype)
    losses, d_x = [], []
    d_weight = torch.zeros_like(weight) if needs[1] else None
    for part, wanted in zip(narrow_x.split(chunk), labels.split(chunk), strict=True):
        logits = linear(part, narrow_weight)
        # The softmax is taken in float32 at least; its gradient comes down once.
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        ignored = (wanted == IGNORED)[:, None]
        label = wanted[:, None].masked_fill(ignored, 0)
        total = logits.logsumexp(1, keepdim=True)
        losses.append((total - logits.gather(1, label)).masked_fill(ignored, 0.0)[:, 0])
        if not any(needs):
            continue
        # softmax - one at the label, in the memory of the logits.
        d_logits = logits.sub_(total).exp_()
        d_logits.scatter_add_(1, label, torch.full_like(total, -1.0)).masked_fill_(ignored, 0.0)
        d_logits = d_logits.to(part.dtype)
        if needs[0]:
            d_x.append((d_logits @ narrow_weight).to(x.dtype))
        if d_weight is not None:
            d_weight += d_logits.T @ part
    return torch.cat(losses), torch.cat(d_x) if needs[0] else None, d_weight
