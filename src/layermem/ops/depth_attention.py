"""Scores and sums over depth at each token: attention in which a token sees itself in S layers.

    score    out[b, t, g, s] = query[b, g, t] . key_s[b, g, t]
    mix      out[b, g, t] = sum_s weight[b, t, g, s] value_s[b, g, t]
    store    marks a key or value that several of these will read

Each of the first two is the other's gradient. Only their arguments are saved for the backward, and
nothing as large as all keys is made: sources are added one after the other.

The gradient of a key or value is a sum over its readers of weight[..., s] * x, where x is the query
of a score or the gradient of a mixture. A reader leaves the two factors with the node of a stored
tensor, which adds the products in place (``ops/shared_gradient.py``). Under torch.compile and
torch.func the equations are differentiated as written.

Letters: B batch, G heads, T tokens, E head width, S sources.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from layermem.ops.shared_gradient import (
    Grads,
    add,
    autocast_disabled,
    find_node,
    is_traced,
    leave,
    readable,
    share,
)


def score(query: Tensor, keys: Sequence[Tensor]) -> Tensor:
    """Return the products [B, T, G, S] of a query with S keys, [B, G, T, E] each.

    They are computed in float32 at least. In memory the last dimension comes first.
    """
    return score_naive(query, keys) if is_traced() else _Score.apply(query, *map(readable, keys))


def mix(weight: Tensor, values: Sequence[Tensor]) -> Tensor:
    """Return the sum [B, G, T, E] of S values by weights [B, T, G, S].

    It is computed in float32 at least and rounded to the values' dtype once.
    """
    return mix_naive(weight, values) if is_traced() else _Mix.apply(weight, *map(readable, values))


def store(x: Tensor) -> Tensor:
    """Return the same key or value, whose gradient is computed once for all its readers."""
    if not torch.is_grad_enabled() or is_traced():
        return x
    stored = x.view_as(x)
    share(_gather, stored)
    return stored


def score_naive(query: Tensor, keys: Sequence[Tensor]) -> Tensor:
    """Compute ``score`` with autograd's ordinary gradients."""
    wide = _wide(query)
    products = [(query.to(wide) * key.to(wide)).sum(-1) for key in keys]
    return torch.stack(products, dim=-1).transpose(1, 2)


def mix_naive(weight: Tensor, values: Sequence[Tensor]) -> Tensor:
    """Compute ``mix`` with autograd's ordinary gradients."""
    dtype, wide = values[0].dtype, _wide(values[0])
    total = torch.zeros_like(values[0], dtype=wide)
    for w, value in zip(_columns(weight), values, strict=True):
        total = total + w.to(wide) * value.to(wide)
    return total.to(dtype)


def _gather(parts: list[tuple[Tensor, Tensor]], direct: Grads) -> Grads:
    """Add the products of weights and x that readers have left."""
    if not parts:
        return direct
    like = parts[0][1]
    total = torch.zeros_like(like, dtype=_wide(like))
    for w, x in parts:
        total.addcmul_(x.to(total.dtype), w.to(total.dtype))
    return add((total.to(like.dtype),), direct)


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, *keys: Tensor) -> Tensor:
        ctx.save_for_backward(query, *keys)
        ctx.nodes = [find_node(key, _gather) for key in keys]
        batch, heads, tokens, width = query.shape
        query = query.transpose(1, 2).to(_wide(query))
        out = query.new_empty(len(keys), batch * tokens * heads)
        product = torch.empty_like(query, memory_format=torch.contiguous_format)
        ones = query.new_ones(width)
        with autocast_disabled(query):
            for key, row in zip(keys, out.unbind(), strict=True):
                torch.mul(query, key.transpose(1, 2), out=product)
                # Much faster than a sum over a short dimension.
                torch.mv(product.view(-1, width), ones, out=row)
        return out.view(len(keys), batch, tokens, heads).movedim(0, -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Grads:
        query, *keys = ctx.saved_tensors
        needs_query, *needs = ctx.needs_input_grad
        d_query = mix(grad, keys).to(query.dtype) if needs_query else None
        return d_query, *_hand_back(grad, query, keys, ctx.nodes, needs)


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, *values: Tensor) -> Tensor:
        ctx.save_for_backward(weight, *values)
        ctx.nodes = [find_node(value, _gather) for value in values]
        wide = _wide(values[0])
        out = torch.zeros_like(values[0], dtype=wide)
        for w, value in zip(_columns(weight.to(wide)), values, strict=True):
            out.addcmul_(value.to(wide), w)
        return out.to(values[0].dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Grads:
        weight, *values = ctx.saved_tensors
        needs_weight, *needs = ctx.needs_input_grad
        d_weight = score(grad, values).to(weight.dtype) if needs_weight else None
        return d_weight, *_hand_back(weight, grad, values, ctx.nodes, needs)


def _hand_back(
    weight: Tensor,
    x: Tensor,
    sources: Sequence[Tensor],
    nodes: Sequence[Any],
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """Return the gradient weight[..., s] * x of each source; of one with a node, leave it there."""
    gradients: list[Tensor | None] = []
    for w, source, node, is_needed in zip(_columns(weight), sources, nodes, needs, strict=True):
        # A second derivative sees only gradients that pass through autograd.
        if is_needed and node is not None and not torch.is_grad_enabled():
            leave(node, (w, x))
            is_needed = False
        gradients.append((w * x).to(source.dtype) if is_needed else None)
    return gradients


def _columns(weight: Tensor) -> list[Tensor]:
    """Return weight [B, T, G, S] as S views [B, G, T, 1]."""
    return list(weight.transpose(1, 2)[..., None, :].unbind(-1))


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
