"""``GroupedBuffer``: slots of one forward that are routed in groups of layers; an interface.

A router's product is thin: it has R rows. Where all routers are known when a forward begins, what
the layers of a group read of *older* slots, those before the group, is one fat product.

An example with groups of 2 layers. Layers 2 and 3 have routers W_2 [R, 3 R] and W_3 [R, 4 R]. With
the slots below each other, X = [slot_0; slot_1; ...], [L R, C]:

    the group begins    [P_2; P_3] = [W_2[:, :2R]; W_3[:, :2R]] @ X[:2R]
    layer 2             out_2 = P_2 + W_2[:, 2R:] @ X[2R:3R]
    layer 3             out_3 = P_3 + W_3[:, 2R:] @ X[2R:4R]

``grouped_matrices.py`` has it in products of matrices, ``grouped_kernels.py`` in kernels for a GPU,
and ``grouped_backward.py`` what both share of the backward.

Letters: L layers, R heads, B batch, T tokens, E head width, C = B T E.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from layermem.ops.route import grouped_backward
from layermem.ops.route.buffer import SlotBuffer
from layermem.ops.route.grouped_backward import Group, GroupGradients, Tape
from layermem.ops.route.naive import Slot


class GroupedBuffer(SlotBuffer):
    """Slots with routes and gradients in groups of ``group_size`` layers."""

    # How gradients are kept and multiplied.
    gradients: ClassVar[type[GroupGradients]]

    def __init__(self, weights: Sequence[Tensor | None], group_size: int) -> None:
        super().__init__(weights)
        self._group_size = group_size
        # What routes read of the slots where there are gradients.
        self._aliases: list[Slot] = []

    def _begin(self, key: Tensor) -> None:
        self._tape = Tape(key.shape, self.gradients) if torch.is_grad_enabled() else None
        # Of the device and dtype of slots.
        self._like = key.new_empty(0)
        self._allocate(key)

    def _keep(self, layer: int, key: Tensor, value: Tensor) -> Slot:
        if layer % self._group_size == 0:
            self._begin_group(layer)
        if self._tape is None:
            return self._place(layer, key, value)
        slot, alias = grouped_backward.append(
            self._place, self._tape, self._group, layer, key, value
        )
        self._aliases.append(alias)
        return slot

    def _begin_group(self, first: int) -> None:
        """Begin the group of layer ``first``: compute what its layers read of older slots."""
        last = min(first + self._group_size, len(self._weights))
        weights, heads = self._weights[first:last], self._shape[1]
        # Not needed without gradients, where no slot is older.
        stacked = self._like.new_zeros((last - first) * heads, last * heads)
        if first or self._tape is not None:
            with torch.no_grad():
                for i, weight in enumerate(weights):
                    if weight is not None:
                        stacked[i * heads : (i + 1) * heads, : weight.shape[1]] = weight
        self._group = Group(first=first, last=last, stacked=stacked)
        if self._tape is not None:
            self._tokens = grouped_backward.begin(self._tape, self._group, weights, self._aliases)
        self._sum_older(self._group)

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
            self._aliases[first:],
        )

    @abstractmethod
    def _allocate(self, key: Tensor) -> None:
        """Allocate memory for slots like ``key``."""

    @abstractmethod
    def _place(self, layer: int, key: Tensor, value: Tensor) -> Slot:
        """Return the slot of a layer where it is kept, as tensors of their own."""

    @abstractmethod
    def _sum_older(self, group: Group) -> None:
        """Compute what the layers of a group that begins read of older slots."""

    @abstractmethod
    def _complete_route(self, layer: int, weight: Tensor) -> Slot:
        """Add what a layer reads of its own group's slots, and return its route."""
