"""``GroupedBuffer``: the slots of one forward in one allocation, routed in groups of layers.

A router's product is thin: it has R rows. Where all routers are known when a forward begins, what
the layers of a group read of *older* slots, those before the group, is one fat product.

An example with groups of 2 layers. Layers 2 and 3 have routers W_2 [R, 3 R] and W_3 [R, 4 R]. The
buffer holds the slots below each other, X = [slot_0; slot_1; ...], [L R, C]:

    the group begins    [P_2; P_3] = [W_2[:, :2R]; W_3[:, :2R]] @ X[:2R]
    layer 2             out_2 = P_2 + W_2[:, 2R:] @ X[2R:3R]                    in place
    layer 3             out_3 = P_3 + W_3[:, 2R:] @ X[2R:4R]                    in place

``grouped_backward.py`` has the backward.

Letters: L layers, R heads, B batch, T tokens, E head width, C = B T E.
It does not know: layers, rope, caches, which routers are known when a forward begins.
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from layermem.ops.route import grouped_backward
from layermem.ops.route.buffer import SlotBuffer
from layermem.ops.route.grouped_backward import Group, Tape
from layermem.ops.route.naive import Slot
from layermem.ops.route.products import add_product, sum_products, unflatten, view_slots


@final
class GroupedBuffer(SlotBuffer):
    """Slots with routes and gradients in groups of ``group_size`` layers."""

    def __init__(self, weights: Sequence[Tensor | None], group_size: int) -> None:
        super().__init__(weights)
        self._group_size = group_size

    def _begin(self, key: Tensor) -> None:
        heads, columns = key.shape[1], key.numel() // key.shape[1]
        self._tape = Tape(key.shape) if torch.is_grad_enabled() else None
        # A matrix [L * R, C] for keys and one for values: autograd saves the routed values, and
        # routed keys only after rope.
        self._matrices = [key.new_empty(len(self._weights) * heads, columns) for _ in range(2)]
        keys, values = (view_slots(matrix, key.shape) for matrix in self._matrices)
        self._rows = list(zip(keys, values, strict=True))

    def _keep(self, layer: int, key: Tensor, value: Tensor) -> Slot:
        if layer % self._group_size == 0:
            self._begin_group(layer)
        slot = self._rows[layer]
        if self._tape is not None:
            return grouped_backward.append(self._tape, self._group, layer, slot, key, value)
        slot[0].copy_(key)
        slot[1].copy_(value)
        return slot

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
            self._tokens = grouped_backward.begin(self._tape, self._group, weights, self._slots)
        size, older = self._group_size * heads, first * heads
        self._partials = [
            sum_products(stacked[:, :older].split(size, dim=1), matrix[:older].split(size))
            for matrix in self._matrices
            if first
        ]

    def _route(self, layer: int, weight: Tensor) -> Slot:
        if self._tape is None:
            return self._complete_route(layer, weight)
        first = self._group.first
        return grouped_backward.route(
            lambda: self._complete_route(layer, weight),
            self._tape,
            self._group,
            layer,
            self._tokens[layer - first],
            weight,
            self._slots[first:],
        )

    def _complete_route(self, layer: int, weight: Tensor) -> Slot:
        """Add what a layer reads of its own group's slots, in place, and return its route."""
        heads, first = self._shape[1], self._group.first
        older, end = first * heads, (layer + 1) * heads
        weight = weight.detach()[:, older:].to(self._matrices[0].dtype)
        if first:
            rows = slice((layer - first) * heads, (layer - first + 1) * heads)
            key, value = (
                add_product(partial[rows], weight, matrix[older:end])
                for partial, matrix in zip(self._partials, self._matrices, strict=True)
            )
        else:
            key, value = (torch.mm(weight, matrix[:end]) for matrix in self._matrices)
        return unflatten(key, self._shape), unflatten(value, self._shape)
