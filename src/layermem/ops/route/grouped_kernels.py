"""``KernelBuffer``: routing in groups by Triton kernels, for half precision on a GPU.

Slots stay where the projections left them, token major, and kernels read them through pointers:
keeping a slot copies nothing. So do gradients of routes' outputs that are token major already. A
group of layers takes these launches, each for keys and values:

    forward     the group begins    older slots are read, a partial sum is written for each layer
                each layer          its partial sum and the group's slots so far are read
    backward    each slot           its partial sum and the gradients of its group are read
                its first slot      later gradients are read, a partial sum is written for each slot
                the begin           the group's gradients and all slots are read: its routers'

Partial sums are in float32 (of float64 in float64): what is rounded is a route, or the gradient of
a slot, once. Nothing depends on the order in which programs run: the same inputs give the same
bits. ``benchmarks/traffic.py`` counts what is read and written.

Letters: S slots, R heads, B batch, T tokens, E head width.
"""

from collections.abc import Sequence
from typing import Self, final

import torch
from torch import Tensor

from layermem.ops.route import launches
from layermem.ops.route.grouped import GroupedBuffer
from layermem.ops.route.grouped_backward import Group, GroupGradients
from layermem.ops.route.naive import Slot


@final
class KernelGradients(GroupGradients):
    """Gradients as the tensors that came, by layer."""

    def __init__(self, group: Group, shape: torch.Size) -> None:
        super().__init__(group, shape)
        self._grads: dict[int, Slot] = {}
        # What slots receive from later groups, not rounded.
        self._received: dict[int, Slot] = {}

    def write(self, layer: int, d_key: Tensor | None, d_value: Tensor | None) -> None:
        """Keep the gradient of a route's output; it is copied if it is not token major."""
        d_key = torch.zeros_like(d_value) if d_key is None and d_value is not None else d_key
        d_value = torch.zeros_like(d_key) if d_value is None and d_key is not None else d_value
        assert d_key is not None and d_value is not None, "a node without gradients does not run"
        self._grads[layer] = launches.readable(d_key), launches.readable(d_value)

    def receive(self, later: Sequence[Self]) -> None:
        columns = slice(self.group.first * self.shape[1], self.group.last * self.shape[1])
        blocks = [
            other._rows(layer)[:, columns] for other in later for layer in sorted(other._grads)
        ]
        if blocks:
            grads = [other._grads[layer] for other in later for layer in sorted(other._grads)]
            sums = launches.gather_group(torch.cat(blocks).t(), grads)
            self._received = dict(enumerate(sums, self.group.first))

    def forget_received(self) -> None:
        self._received = {}

    def slot_gradient(self, layer: int) -> Slot | None:
        heads = self.shape[1]
        received = self._received.pop(layer, None)
        readers = [reader for reader in sorted(self._grads) if reader >= layer]
        if not readers:
            if received is None:
                return None
            dtype = self.group.stacked.dtype
            return received[0].to(dtype), received[1].to(dtype)
        columns = slice(layer * heads, (layer + 1) * heads)
        weight = torch.cat([self._rows(reader)[:, columns] for reader in readers]).t()
        return launches.gather(weight, [self._grads[reader] for reader in readers], received)

    def router_gradients(self, slots: Sequence[Slot]) -> Tensor:
        heads, layers = self.shape[1], sorted(self._grads)
        # Hooks on saved tensors may have returned copies that lie otherwise.
        parts = [(launches.readable(key), launches.readable(value)) for key, value in slots]
        found = launches.gram_group([self._grads[layer] for layer in layers], parts)
        if len(layers) == self.group.last - self.group.first:
            return found
        total = found.new_zeros((self.group.last - self.group.first) * heads, found.shape[1])
        for layer, rows in zip(layers, found.split(heads), strict=True):
            start = (layer - self.group.first) * heads
            total[start : start + heads] = rows
        return total

    def _rows(self, layer: int) -> Tensor:
        """Return the weight of a layer's router."""
        start = (layer - self.group.first) * self.shape[1]
        return self.group.stacked[start : start + self.shape[1]]


@final
class KernelBuffer(GroupedBuffer):
    """Slots and routes as kernels read and write them, token major."""

    gradients = KernelGradients

    def _allocate(self, key: Tensor) -> None:
        """Slots stay where they are."""

    def _place(self, layer: int, key: Tensor, value: Tensor) -> Slot:
        # All slots have the dtype of the first key, which the kernels read them as.
        dtype = self._like.dtype
        return launches.readable(key.to(dtype)), launches.readable(value.to(dtype))

    def _sum_older(self, group: Group) -> None:
        heads = self._shape[1]
        layers = [i for i in range(group.first, group.last) if self._weights[i] is not None]
        self._partials: dict[int, Slot] = {}
        if not group.first or not layers:
            return
        rows = [
            group.stacked[(i - group.first) * heads : (i - group.first + 1) * heads] for i in layers
        ]
        weight = group.stacked if len(layers) == group.last - group.first else torch.cat(rows)
        sums = launches.gather_group(weight[:, : group.first * heads], self._slots)
        self._partials = dict(zip(layers, sums, strict=True))

    def _complete_route(self, layer: int, weight: Tensor) -> Slot:
        first = self._group.first
        weight = weight.detach()[:, first * self._shape[1] :].to(self._like.dtype)
        return launches.gather(weight, self._slots[first:], self._partials.pop(layer, None))
