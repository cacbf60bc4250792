"""The products of routing from plain matrix products, on packed slots.

A slot lies head major, [R, B T E], from the moment it is stored. A route is a sum of plain matrix
products over slots, ``out += W[:, slot] @ slot``: nothing is concatenated, nothing is copied per
layer, and what autograd keeps is the slots themselves, once. Router gradients are products of
packed gradients and packed slots over B T E at once.

Letters: S slots, R heads, M heads that come out, B batch, T tokens, E head width, C = B T E.
It does not know: autograd, layers, rope, caches.
"""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from layermem.ops.route.deferred import Products
from layermem.ops.route.naive import Slot

# Up to this many numbers in a key, as at decoding, time goes into launches: one product is best.
_FEW = 16384
# Slots below each other in one product of the router's gradient.
_GROUP = 4


@final
class Packed(Products):
    """Flat slots are matrices [R, C]."""

    def lay(self, key: Tensor, value: Tensor) -> Slot:
        keep = key.numel() <= _FEW and not torch.is_grad_enabled()
        return (key, value) if keep else (_pack(key), _pack(value))

    def flat(self, slot: Slot) -> Slot:
        key, value = slot
        return key.transpose(0, 1).flatten(1), value.transpose(0, 1).flatten(1)

    def route(self, weight: Tensor, slots: Sequence[Slot], nodes: Sequence[Any]) -> Slot:
        key = slots[0][0]
        if key.numel() <= _FEW:
            return _route_few(weight, slots)
        parts = self._flats(slots, nodes)
        return self.gather(weight.to(key.dtype).split(key.shape[1], dim=1), parts, key.shape)

    def gather(self, columns: Sequence[Tensor], grads: Sequence[Slot], shape: torch.Size) -> Slot:
        keys, values = zip(*grads, strict=True)
        return _unpack(_sum(columns, keys), shape), _unpack(_sum(columns, values), shape)

    def spread(self, columns: Sequence[Tensor], grads: Slot, shape: torch.Size) -> list[Slot]:
        key, value = grads
        return [(_unpack(c @ key, shape), _unpack(c @ value, shape)) for c in columns]

    def weight_gradient(
        self, weight: Tensor, grads: Slot, slots: Sequence[Slot], nodes: Sequence[Any]
    ) -> Tensor:
        flat, (d_key, d_value) = self._flats(slots, nodes), grads
        if _as_one_product(d_key):
            keys, values = (torch.cat(part) for part in zip(*flat, strict=True))
            product = torch.cat(grads, dim=1) @ torch.cat((keys, values), dim=1).t()
            return product.to(weight.dtype)
        blocks = [
            torch.mm(d_key, key.t()).addmm_(d_value, value.t())
            for key, value in _grouped(flat, nodes)
        ]
        return torch.cat(blocks, dim=1).to(weight.dtype)

    def _flats(self, slots: Sequence[Slot], nodes: Sequence[Any]) -> list[Slot]:
        return [
            node.flat if node and node.flat else self.flat(slot)
            for slot, node in zip(slots, nodes, strict=True)
        ]


def _route_few(weight: Tensor, slots: Sequence[Slot]) -> Slot:
    """Route in as few calls as can be: at one token a call costs more than what it computes."""
    keys, values = zip(*slots, strict=True)
    key, value = torch.cat(keys, dim=1), torch.cat(values, dim=1)
    if weight.dtype != key.dtype:
        weight = weight.to(key.dtype)
    batch, columns, tokens, width = key.shape
    if batch == 1:
        key = torch.mm(weight, key.view(columns, -1))
        value = torch.mm(weight, value.view(columns, -1))
    else:
        weight = weight.expand(batch, -1, -1)
        key = torch.bmm(weight, key.view(batch, columns, -1))
        value = torch.bmm(weight, value.view(batch, columns, -1))
    return key.view(batch, -1, tokens, width), value.view(batch, -1, tokens, width)


def _sum(weights: Sequence[Tensor], parts: Sequence[Tensor]) -> Tensor:
    """Sum weights[i] [M, R] @ parts[i] [R, C] over i, rounded once."""
    if _as_one_product(parts[0]):
        return torch.cat(tuple(weights), dim=1) @ torch.cat(tuple(parts))
    out = torch.mm(weights[0], parts[0])
    for weight, part in zip(weights[1:], parts[1:], strict=True):
        out = out.addmm_(weight, part)
    return out


def _grouped(flat: Sequence[Slot], nodes: Sequence[Any]) -> list[Slot]:
    """Put whole groups of stored slots below each other, once for all routes that read them."""
    whole = len(flat) - len(flat) % _GROUP if len(flat) >= 2 * _GROUP and all(nodes) else 0
    parts: list[Slot] = []
    for i in range(0, whole, _GROUP):
        # Noted with the last of the group: the slots it was made of, and the group.
        notes, members = nodes[i + _GROUP - 1].notes, tuple(map(id, nodes[i : i + _GROUP]))
        if notes.get("members") != members:
            keys, values = zip(*flat[i : i + _GROUP], strict=True)
            notes.update(members=members, group=(torch.cat(keys), torch.cat(values)))
        parts.append(notes["group"])
    return [*parts, *flat[whole:]]


def _as_one_product(part: Tensor) -> bool:
    """Whether to concatenate into a copy that is dropped again, for one product in place of many.

    On a GPU launches are dear; in half precision partial sums would be rounded. In float32 on a CPU
    many small products are faster than one wide one.
    """
    return part.is_cuda or part.dtype not in (torch.float32, torch.float64)


def _pack(x: Tensor) -> Tensor:
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def _unpack(x: Tensor, shape: torch.Size) -> Tensor:
    """[R, C] as [B, R, T, E]."""
    batch, _, tokens, width = shape
    return x.view(-1, batch, tokens, width).transpose(0, 1)
