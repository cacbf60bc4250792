"""The routing backend made of plain matrix products, on slots packed head by head.

A packed slot has the shape [B, R, T, E] like any other, and its memory the order [R, B, T, E]:
flat, it is a matrix [R, C] with one row for each head, C = B T E. A route is then a sum of matrix
products, nothing is concatenated or copied per layer, and autograd keeps the slots alone.

An example with R = 2 heads, B = 1, T = 3 tokens, E = 4 and S = 2 slots:

    slot_s, flat    [2, 12]    row h: the 4 numbers of token 0, then of token 1, then of token 2
    W               [2, 4]     columns 0, 1 for the heads of slot_0, columns 2, 3 for slot_1
    out, flat       [2, 12]    = W[:, 0:2] @ slot_0 + W[:, 2:4] @ slot_1
    d W             [2, 4]     = [d out @ slot_0^T, d out @ slot_1^T]

Keys and values are routed by one W each in its own product, and both add to d W.

Letters: S slots, R heads, M output heads, B batch, T tokens, E head width, C = B T E.
"""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from layermem.ops.route.deferred import Backend
from layermem.ops.route.naive import Slot

# Up to this many numbers in a key, as at decoding, the overhead of a call outweighs its arithmetic,
# and one product on concatenated slots is fastest.
_FEW = 16384
# How many slots are concatenated for one product of the router's gradient.
_GROUP = 4


@final
class PackedBackend(Backend):
    """Matrix products; flat slots are matrices [R, C]."""

    def lay_out(self, key: Tensor, value: Tensor) -> Slot:
        is_small = key.numel() <= _FEW and not torch.is_grad_enabled()
        return (key, value) if is_small else (_pack(key), _pack(value))

    def flatten(self, slot: Slot) -> Slot:
        key, value = slot
        return key.transpose(0, 1).flatten(1), value.transpose(0, 1).flatten(1)

    def route(self, weight: Tensor, slots: Sequence[Slot], nodes: Sequence[Any]) -> Slot:
        key = slots[0][0]
        if key.numel() <= _FEW:
            return _route_few(weight, slots)
        parts = self._flatten_all(slots, nodes)
        return self.gather(weight.to(key.dtype).split(key.shape[1], dim=1), parts, key.shape)

    def gather(self, columns: Sequence[Tensor], grads: Sequence[Slot], shape: torch.Size) -> Slot:
        keys, values = zip(*grads, strict=True)
        key, value = _sum_products(columns, keys), _sum_products(columns, values)
        return _unpack(key, shape), _unpack(value, shape)

    def spread(self, columns: Sequence[Tensor], grads: Slot, shape: torch.Size) -> list[Slot]:
        key, value = grads
        return [(_unpack(c @ key, shape), _unpack(c @ value, shape)) for c in columns]

    def weight_gradient(
        self, weight: Tensor, grads: Slot, slots: Sequence[Slot], nodes: Sequence[Any]
    ) -> Tensor:
        flat, (d_key, d_value) = self._flatten_all(slots, nodes), grads
        if _prefer_one_product(d_key):
            keys, values = (torch.cat(part) for part in zip(*flat, strict=True))
            product = torch.cat(grads, dim=1) @ torch.cat((keys, values), dim=1).t()
            return product.to(weight.dtype)
        blocks = [
            torch.mm(d_key, key.t()).addmm_(d_value, value.t())
            for key, value in _concatenate_groups(flat, nodes)
        ]
        return torch.cat(blocks, dim=1).to(weight.dtype)

    def _flatten_all(self, slots: Sequence[Slot], nodes: Sequence[Any]) -> list[Slot]:
        """Return the slots flat; those with a node keep theirs."""
        return [
            node.flat if node and node.flat else self.flatten(slot)
            for slot, node in zip(slots, nodes, strict=True)
        ]


def _route_few(weight: Tensor, slots: Sequence[Slot]) -> Slot:
    """Route small slots by one product for keys and one for values, on concatenated slots."""
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


def _sum_products(weights: Sequence[Tensor], parts: Sequence[Tensor]) -> Tensor:
    """Sum weights[i] [M, R] @ parts[i] [R, C] over i, rounded once."""
    if _prefer_one_product(parts[0]):
        return torch.cat(tuple(weights), dim=1) @ torch.cat(tuple(parts))
    out = torch.mm(weights[0], parts[0])
    for weight, part in zip(weights[1:], parts[1:], strict=True):
        out = out.addmm_(weight, part)
    return out


def _concatenate_groups(flat: Sequence[Slot], nodes: Sequence[Any]) -> list[Slot]:
    """Concatenate every ``_GROUP`` slots into one [_GROUP * R, C]; what is left over stays single.

    Fewer and larger products compute a router's gradient faster. A group is made once: it is kept
    in the scratch of its last slot's node, where the backward of the next router finds it.

    An example with 9 slots, R = 2 and groups of 4. The router of layer 8 has the gradient

        d W [2, 18] = [d out @ group(0..3)^T, d out @ group(4..7)^T, d out @ slot_8^T]

    with groups [8, C], kept with slots 3 and 7. The router of layer 7 uses both again for its d W
    [2, 16]. A router that reads slots 1 to 9 needs other groups, 1 to 4 and 5 to 8,
    which are kept with slots 4 and 8. Of two groups that end with the same slot the later one
    replaces the earlier.
    """
    n_grouped = len(flat) - len(flat) % _GROUP if len(flat) >= 2 * _GROUP and all(nodes) else 0
    parts: list[Slot] = []
    for i in range(0, n_grouped, _GROUP):
        scratch, members = nodes[i + _GROUP - 1].scratch, tuple(map(id, nodes[i : i + _GROUP]))
        if scratch.get("members") != members:
            keys, values = zip(*flat[i : i + _GROUP], strict=True)
            scratch.update(members=members, group=(torch.cat(keys), torch.cat(values)))
        parts.append(scratch["group"])
    return [*parts, *flat[n_grouped:]]


def _prefer_one_product(part: Tensor) -> bool:
    """Whether one product on a temporary concatenation is better than a sum of many products.

    It is on a GPU, where each launch costs time, and in half precision, where each partial sum
    would be rounded. In float32 on a CPU many small products are faster.
    """
    return part.is_cuda or part.dtype not in (torch.float32, torch.float64)


def _pack(x: Tensor) -> Tensor:
    """Return x [B, R, T, E] with its memory in the order [R, B, T, E]."""
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def _unpack(x: Tensor, shape: torch.Size) -> Tensor:
    """Return x [R, C] as [B, R, T, E] like ``shape``, but with as many heads as x has rows."""
    batch, _, tokens, width = shape
    return x.view(-1, batch, tokens, width).transpose(0, 1)
