"""Cross-entropy of a linear head over the vocabulary, computed for a chunk of tokens at a time.

The logits are the largest tensor of a micro-batch by far: of 32 sequences of 2,048 tokens and a
vocabulary of 50,257 they take 13 GB in float32, and their gradient as much again. Here only those
of one chunk exist at a time. Their gradient is computed in the forward, right after them, so that
the logits need not be computed twice; saved for the backward are the gradients of the hidden states
[N, D] and of the head [V, D].

Letters: N tokens, D width, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

# A label that has no loss, as in torch and transformers.
IGNORE_INDEX = -100


def naive_cross_entropy(x: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the losses of x [N, D] and the loss of each token [N], from all logits."""
    logits = linear(x, weight)
    # The softmax is computed in float32 at least.
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    losses = cross_entropy(wide, labels, ignore_index=IGNORE_INDEX, reduction="none")
    return losses.sum(), losses


def chunked_cross_entropy(
    x: Tensor, weight: Tensor, labels: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """Return what ``naive_cross_entropy`` returns, from the logits of ``chunk`` tokens at a time.

    The sum is differentiable; the losses of single tokens are not.
    """
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return _ChunkedCrossEntropy.apply(x, weight, labels, chunk)
    losses, _, _ = _losses_and_gradients(x, weight, labels, chunk, (False, False))
    return losses.sum(), losses


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, labels: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor]:
        needs = ctx.needs_input_grad[:2]
        losses, d_x, d_weight = _losses_and_gradients(x, weight, labels, chunk, needs)
        ctx.save_for_backward(d_x, d_weight)
        ctx.mark_non_differentiable(losses)
        return losses.sum(), losses

    @staticmethod
    def backward(ctx: Any, d_total: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                "the chunked loss has no second derivatives (create_graph=True); leave loss_chunk "
                "out, or use naive_cross_entropy"
            )
        gradients = (None if d is None else d * d_total.to(d.dtype) for d in ctx.saved_tensors)
        return (*gradients, None, None)


def _losses_and_gradients(
    x: Tensor, weight: Tensor, labels: Tensor, chunk: int, needs: tuple[bool, bool]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the losses [N], and the gradients of their sum for x and weight where needed."""
    narrow_x, narrow_weight = x, weight
    if torch.is_autocast_enabled(x.device.type):
        # Cast once, not for every chunk.
        dtype = torch.get_autocast_dtype(x.device.type)
        narrow_x, narrow_weight = x.to(dtype), weight.to(dtype)
    losses, d_x = [], []
    # A sum over chunks in 16 bits would lose more the more chunks there are.
    summed = torch.promote_types(weight.dtype, torch.float32)
    d_weight = torch.zeros_like(weight, dtype=summed) if needs[1] else None
    for part, target in zip(narrow_x.split(chunk), labels.split(chunk), strict=True):
        logits = linear(part, narrow_weight)
        # The softmax is computed in float32 at least; its gradient is rounded once.
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        ignored = (target == IGNORE_INDEX)[:, None]
        label = target[:, None].masked_fill(ignored, 0)
        total = logits.logsumexp(1, keepdim=True)
        losses.append((total - logits.gather(1, label)).masked_fill(ignored, 0.0)[:, 0])
        if not any(needs):
            continue
        # d logits = softmax(logits) - one_hot(label), written over the logits.
        d_logits = logits.sub_(total).exp_()
        d_logits.scatter_add_(1, label, torch.full_like(total, -1.0)).masked_fill_(ignored, 0.0)
        d_logits = d_logits.to(part.dtype)
        if needs[0]:
            d_x.append((d_logits @ narrow_weight).to(x.dtype))
        if d_weight is not None:
            d_weight += d_logits.T @ part
    if d_weight is not None:
        d_weight = d_weight.to(weight.dtype)
    return torch.cat(losses), torch.cat(d_x) if needs[0] else None, d_weight
