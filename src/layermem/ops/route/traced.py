"""``TracedBuffer``: routes in groups of layers by ordinary operations, for torch.compile.

A graph in which every layer reads every earlier slot by an operation of its own has as many nodes
as there are pairs of layers, and its backward several times as many. Here a layer reads the slots
of its own group singly, and what the layers of a group read of an older group is one product, so
that a layer of a deep model has hardly more nodes than one of a shallow model:

    X_g                 [slot_a; ...; slot_(b-1)], the slots of group g below each other
    the group begins    P = sum over older groups g of W[:, X_g] @ X_g     for all of its layers
    layer l             out_l = P_l + sum over own slots j <= l of W_l[:, j] @ slot_j

Autograd saves a slot twice, singly and in X_g, unless the compiler computes X_g again.

Letters: R heads, B batch, T tokens, E head width, C = B T E; a slot is a matrix [R, 2 C] here.
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from layermem.ops.route.buffer import SlotBuffer
from layermem.ops.route.naive import Slot
from layermem.ops.route.products import unflatten


@final
class TracedBuffer(SlotBuffer):
    """Slots with routes in groups of ``group_size`` layers and autograd's ordinary gradients."""

    def __init__(self, weights: Sequence[Tensor | None], group_size: int) -> None:
        super().__init__(weights)
        self._group_size = group_size
        # Of the running group, single slots; of older ones, [group_size * R, 2 C].
        self._own: list[Tensor] = []
        self._older: list[Tensor] = []
        self._partials: dict[int, Tensor] = {}

    def _begin(self, key: Tensor) -> None:
        """Nothing is allocated before it is computed."""

    def _keep(self, layer: int, key: Tensor, value: Tensor) -> Slot:
        if layer and layer % self._group_size == 0:
            self._older.append(torch.cat(self._own))
            self._own = []
            self._begin_group(layer)
        self._own.append(
            torch.cat([part.transpose(0, 1).flatten(1) for part in (key, value)], dim=1)
        )
        return key, value

    def _begin_group(self, first: int) -> None:
        """Compute what the layers of a group read of older groups."""
        heads = self._shape[1]
        group = range(first, min(first + self._group_size, len(self._weights)))
        weights = {i: w for i in group if (w := self._weights[i]) is not None}
        if not weights:
            return
        dtype = self._older[0].dtype
        older = torch.cat([w[:, : first * heads].to(dtype) for w in weights.values()])
        partials = _sum_products(older.split(self._group_size * heads, dim=1), self._older)
        self._partials = dict(zip(weights, partials.split(heads), strict=True))

    def _route(self, layer: int, weight: Tensor) -> Slot:
        heads = self._shape[1]
        own = weight[:, -len(self._own) * heads :].to(self._own[0].dtype)
        columns = own.split(heads, dim=1)
        out = _sum_products(columns, self._own, self._partials.get(layer))
        key, value = out.chunk(2, dim=1)
        return unflatten(key, self._shape), unflatten(value, self._shape)


def _sum_products(
    weights: Sequence[Tensor], parts: Sequence[Tensor], total: Tensor | None = None
) -> Tensor:
    """Return the total, if there is one, plus the sum of weights[i] @ parts[i]."""
    for weight, part in zip(weights, parts, strict=True):
        total = torch.mm(weight, part) if total is None else torch.addmm(total, weight, part)
    assert total is not None, "there is at least one slot"
    return total
