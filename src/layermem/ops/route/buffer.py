"""``SlotBuffer``: the slots of one forward in one allocation, routed in groups of layers.

A router's product is thin: it has R rows. Where all routers are known when a forward begins, what
the layers of a group read of *older* slots, those before the group, is one fat product.

An example with groups of 2 layers. Layers 2 and 3 have routers W_2 [R, 3 R] and W_3 [R, 4 R]. The
buffer holds the slots below each other, X = [slot_0; slot_1; ...], [L R, C]:

    the group begins    [P_2; P_3] = [W_2[:, :2R]; W_3[:, :2R]] @ X[:2R]
    layer 2             out_2 = P_2 + W_2[:, 2R:] @ X[2R:3R]                    in place
    layer 3             out_3 = P_3 + W_3[:, 2R:] @ X[2R:4R]                    in place

``grouped.py`` has the backward.

Letters: L layers, R heads, B batch, T tokens, E head width, C = B T E.
It does not know: layers, rope, caches, which routers are known when a forward begins.
"""

from collections.abc import Sequence
from typing import final, overload

import torch
from torch import Tensor

from layermem.ops.route import grouped, naive
from layermem.ops.route.grouped import Group, Tape
from layermem.ops.route.naive import Slot
from layermem.ops.route.products import add_product, sum_products, unflatten

# Up to this many numbers in a key and without gradients, as at decoding, a call costs more than its
# arithmetic: all layers are one group, and keys and values are routed by one product.
_FEW = 16384


@final
class SlotBuffer(Sequence[Slot]):
    """The slots of one forward and their routes; as a sequence, the slots so far.

    ``weights[l]`` [R, (l + 1) * R] is the router of layer l, None if it has none. Layer after layer
    calls ``append`` with its slot and then, if it has a router, ``route``.
    """

    def __init__(self, weights: Sequence[Tensor | None], group_size: int) -> None:
        self._weights = weights
        self._group_size = group_size
        self._slots: list[Slot] = []

    def __len__(self) -> int:
        return len(self._slots)

    @overload
    def __getitem__(self, index: int) -> Slot: ...
    @overload
    def __getitem__(self, index: slice) -> list[Slot]: ...
    def __getitem__(self, index: int | slice) -> Slot | list[Slot]:
        return self._slots[index]

    def append(self, key: Tensor, value: Tensor) -> Slot:
        """Keep the slot of the next layer, [B, R, T, E] each, and return it as it is kept."""
        layer = len(self._slots)
        if not layer:
            self._allocate(key)
        if key.shape != self._shape or value.shape != self._shape:
            raise ValueError(
                f"the keys and values of all layers must have the shape {list(self._shape)} of the "
                f"first key, got {list(key.shape)} and {list(value.shape)} at layer {layer}"
            )
        if layer % self._group_size == 0:
            self._begin_group(layer)
        slot = self._rows[layer]
        if self._tape is None:
            slot[0].copy_(key)
            slot[1].copy_(value)
        else:
            slot = grouped.append(self._tape, self._group, layer, slot, key, value)
        self._slots.append(slot)
        return slot

    def route(self, weight: Tensor) -> Slot:
        """Compute ``naive.route`` of all slots so far, with the router of the last slot's layer."""
        layer = len(self._slots) - 1
        if weight is not self._weights[layer]:
            # Another weight than was announced when the forward began.
            return naive.route(self._slots, weight)
        if self._tape is None:
            return self._complete_route(layer, weight)
        first = self._group.first
        return grouped.route(
            lambda: self._complete_route(layer, weight),
            self._tape,
            self._group,
            layer,
            self._tokens[layer - first],
            weight,
            self._slots[first:],
        )

    def _allocate(self, key: Tensor) -> None:
        """Allocate the slots of all layers, like the first key."""
        self._shape = key.shape
        batch, heads, tokens, width = key.shape
        depth, columns = len(self._weights), key.numel() // heads
        self._tape = Tape(key.shape) if torch.is_grad_enabled() else None
        # One matrix [L * R, 2 C] with keys and values side by side, or one for keys and one for
        # values: autograd saves the routed values, and routed keys only after rope.
        count = 1
        if self._tape is None and key.numel() <= _FEW:
            self._group_size, count = depth, 2
        sizes = (depth * heads, columns * count)
        self._matrices = [key.new_empty(sizes) for _ in range(3 - count)]
        parts = [part for m in self._matrices for part in m.split(columns, dim=1)]
        shape = (depth, heads, batch, tokens, width)
        keys, values = (part.view(shape).transpose(1, 2).unbind() for part in parts)
        self._rows = list(zip(keys, values, strict=True))

    def _begin_group(self, first: int) -> None:
        """Begin the group of layer ``first``: compute what its layers read of older slots."""
        last = min(first + self._group_size, len(self._weights))
        weights, heads, like = self._weights[first:last], self._shape[1], self._matrices[0]
        # Not needed without gradients, where no slot is older.
        stacked = like.new_zeros((last - first) * heads, last * heads)
        if first or self._tape is not None:
            with torch.no_grad():
                for i, weight in enumerate(weights):
                    if weight is not None:
                        stacked[i * heads : (i + 1) * heads, : weight.shape[1]] = weight
        self._group = Group(first=first, last=last, stacked=stacked)
        if self._tape is not None:
            self._tokens = grouped.begin(self._tape, self._group, weights, self._slots)
        size, older = self._group_size * heads, first * heads
        self._partials = [
            sum_products(stacked[:, :older].split(size, dim=1), matrix[:older].split(size))
            for matrix in self._matrices
            if first
        ]

    def _complete_route(self, layer: int, weight: Tensor) -> Slot:
        """Add what a layer reads of its own group's slots, in place, and return its route."""
        heads, first = self._shape[1], self._group.first
        older, end = first * heads, (layer + 1) * heads
        weight = weight.detach()[:, older:].to(self._matrices[0].dtype)
        if first:
            rows = slice((layer - first) * heads, (layer - first + 1) * heads)
            outs = [
                add_product(partial[rows], weight, matrix[older:end])
                for partial, matrix in zip(self._partials, self._matrices, strict=True)
            ]
        else:
            outs = [torch.mm(weight, matrix[:end]) for matrix in self._matrices]
        if len(outs) == 1:
            outs = list(outs[0].chunk(2, dim=1))
        return unflatten(outs[0], self._shape), unflatten(outs[1], self._shape)
