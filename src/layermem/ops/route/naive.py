"""Equation (2) of the paper written out: the reference that every faster implementation equals.

Letters: B batch, T tokens, R key-value heads, E head width, S slots.
"""

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from layermem.ops.route.shapes import check_shapes

Slot = tuple[Tensor, Tensor]


def route(slots: Sequence[Slot], weight: Tensor, value_weight: Tensor | None = None) -> Slot:
    """Sum over slots and heads: ``out[h] = sum_{s, g} weight[h, s * R + g] * slot_s[g]``.

    ``slots`` are S pairs (key, value) of shape [B, R, T, E]; ``weight`` is [R, S * R], slot major,
    head minor, or [1, S], a scalar a slot for all of its heads. It is applied to keys, and to
    values unless there is a ``value_weight`` for them. Returns (key, value), each [B, R, T, E]. A
    weight of heads may have another number of rows than R: the number of output heads.
    """
    value_weight = weight if value_weight is None else value_weight
    check_shapes(slots, weight, value_weight)
    keys, values = zip(*slots, strict=True)
    return _weighted_sum(keys, weight), _weighted_sum(values, value_weight)


def _weighted_sum(parts: Sequence[Tensor], weight: Tensor) -> Tensor:
    dtype = parts[0].dtype
    weights = weight.unflatten(1, (len(parts), -1)).unbind(1)
    # Sum in float32 at least, also under autocast, and round to the dtype of the parts once.
    wide = torch.promote_types(dtype, torch.float32)
    with torch.autocast(parts[0].device.type, enabled=False):
        products = (
            torch.einsum("hg,bgrte->bhrte", weight.to(wide), _as_heads(part, weight).to(wide))
            for part, weight in zip(parts, weights, strict=True)
        )
        return reduce(torch.add, products).flatten(1, 2).to(dtype)


def _as_heads(part: Tensor, weight: Tensor) -> Tensor:
    """Return a key or value [B, R, T, E] with its heads in as many groups as there are columns."""
    return part.unflatten(1, (weight.shape[1], -1))
