"""``MatrixBuffer``: routing in groups by products of matrices, for a CPU.

The slots of a forward lie below each other in one allocation, X = [slot_0; slot_1; ...], [L R, C],
for keys and one for values: what several layers read of several slots is one product of matrices.
The partial sums of a group are one allocation too, to which each layer adds in place; so are the
gradients of its routes' outputs, which are copied there.

Letters: L layers, R heads, B batch, T tokens, E head width, C = B T E.
"""

from collections.abc import Sequence
from typing import Self, final

import torch
from torch import Tensor

from layermem.ops.route.grouped import GroupedBuffer
from layermem.ops.route.grouped_backward import Group, GroupGradients
from layermem.ops.route.naive import Slot
from layermem.ops.route.products import (
    add_product,
    stack_rows,
    sum_products,
    unflatten,
    view_slots,
)


@final
class MatrixGradients(GroupGradients):
    """Gradients as matrices [(b - a) R, C] of the layers a to b - 1, for keys and for values."""

    def __init__(self, group: Group, shape: torch.Size) -> None:
        super().__init__(group, shape)
        self._matrices: list[Tensor] = []
        # The layers whose rows hold nothing yet.
        self._missing = set(range(group.first, group.last))
        self._received: list[Tensor] = []

    def write(self, layer: int, d_key: Tensor | None, d_value: Tensor | None) -> None:
        """Copy the gradient of a route's output into its rows."""
        if not self._matrices:
            like = d_value if d_key is None else d_key
            assert like is not None, "a node without gradients does not run"
            rows = (self.group.last - self.group.first) * self.shape[1]
            columns = self.shape.numel() // self.shape[1]
            self._matrices = [like.new_empty(rows, columns) for _ in range(2)]
        for matrix, grad in zip(self._matrices, (d_key, d_value), strict=True):
            kept = unflatten(self._rows(matrix, layer), self.shape)
            kept.zero_() if grad is None else kept.copy_(grad)
        self._missing.discard(layer)

    def receive(self, later: Sequence[Self]) -> None:
        columns = slice(self.group.first * self.shape[1], self.group.last * self.shape[1])
        weights = [other.group.stacked[:, columns].t() for other in later]
        self._received = [
            sum_products(weights, [other._matrices[i] for other in later]) for i in (0, 1) if later
        ]

    def forget_received(self) -> None:
        self._received = []

    def slot_gradient(self, layer: int) -> Slot | None:
        heads = self.shape[1]
        start = (layer - self.group.first) * heads
        received = [matrix[start : start + heads] for matrix in self._received]
        if not self._matrices:
            if not received:
                return None
            key, value = received
        else:
            self._fill_missing(layer)
            weight = self.group.stacked[start:, layer * heads : (layer + 1) * heads].t()
            key, value = (
                add_product(received[i], weight, matrix[start:])
                if received
                else torch.mm(weight, matrix[start:])
                for i, matrix in enumerate(self._matrices)
            )
        return unflatten(key, self.shape), unflatten(value, self.shape)

    def router_gradients(self, slots: Sequence[Slot]) -> Tensor:
        self._fill_missing(self.group.first)
        keys, values = (stack_rows(part) for part in zip(*slots, strict=True))
        d_keys, d_values = self._matrices
        return add_product(torch.mm(d_keys, keys.t()), d_values, values.t())

    def _fill_missing(self, start: int) -> None:
        """Set the rows of layers from ``start`` on that the pass has not reached to zero."""
        for layer in [layer for layer in self._missing if layer >= start]:
            for matrix in self._matrices:
                self._rows(matrix, layer).zero_()
            self._missing.discard(layer)

    def _rows(self, matrix: Tensor, layer: int) -> Tensor:
        heads = self.shape[1]
        start = (layer - self.group.first) * heads
        return matrix[start : start + heads]


@final
class MatrixBuffer(GroupedBuffer):
    """Slots, routes and gradients as rows of matrices."""

    gradients = MatrixGradients

    def _allocate(self, key: Tensor) -> None:
        heads, columns = key.shape[1], key.numel() // key.shape[1]
        # A matrix [L * R, C] for keys and one for values: autograd saves the routed values, and
        # routed keys only after rope.
        self._matrices = [key.new_empty(len(self._weights) * heads, columns) for _ in range(2)]
        keys, values = (view_slots(matrix, key.shape) for matrix in self._matrices)
        self._rows = list(zip(keys, values, strict=True))

    def _place(self, layer: int, key: Tensor, value: Tensor) -> Slot:
        kept = self._rows[layer]
        # All slots share one storage. Of ``data`` each has its own version counter, so that writing
        # a later slot does not count as a change of those that autograd has saved. Of views torch
        # refuses changes in place, which the tape would miss.
        return kept[0].data.copy_(key)[:], kept[1].data.copy_(value)[:]

    def _sum_older(self, group: Group) -> None:
        heads = self._shape[1]
        size, older = self._group_size * heads, group.first * heads
        self._partials = [
            sum_products(group.stacked[:, :older].split(size, dim=1), matrix[:older].split(size))
            for matrix in self._matrices
            if older
        ]

    def _complete_route(self, layer: int, weight: Tensor) -> Slot:
        """Add what a layer reads of its own group's slots, in place, and return its route."""
        heads, first = self._shape[1], self._group.first
        older, end = first * heads, (layer + 1) * heads
        weight = weight.detach()[:, older:].to(self._like.dtype)
        if first:
            rows = slice((layer - first) * heads, (layer - first + 1) * heads)
            key, value = (
                add_product(partial[rows], weight, matrix[older:end])
                for partial, matrix in zip(self._partials, self._matrices, strict=True)
            )
        else:
            key, value = (torch.mm(weight, matrix[:end]) for matrix in self._matrices)
        return unflatten(key, self._shape), unflatten(value, self._shape)
