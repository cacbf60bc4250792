"""``SmallBuffer``: slots of few tokens without gradients, as at decoding.

There a call costs more than its arithmetic. Slots and routes of all layers are two allocations,
whose views are made once for a forward, keys and values lie side by side, and a route is one
product of the whole router with all slots so far.

Letters: L layers, R heads, B batch, T tokens, E head width, C = B T E.
"""

from typing import final

import torch
from torch import Tensor

from layermem.ops.route.buffer import SlotBuffer
from layermem.ops.route.naive import Slot
from layermem.ops.route.products import view_slots


@final
class SmallBuffer(SlotBuffer):
    """Slots without gradients; each route is one product."""

    def _begin(self, key: Tensor) -> None:
        depth, columns = len(self._weights), key.numel() // key.shape[1]
        sizes = (depth * key.shape[1], 2 * columns)
        # Row (l, r) has head r of layer l: its key, then its value.
        self._matrix, routes = key.new_empty(sizes), key.new_empty(sizes)
        self._kept, self._routed = (
            list(zip(*(view_slots(part, key.shape) for part in m.split(columns, 1)), strict=True))
            for m in (self._matrix, routes)
        )
        self._products = routes.chunk(depth)

    def _keep(self, layer: int, key: Tensor, value: Tensor) -> Slot:
        slot = self._kept[layer]
        slot[0].copy_(key)
        slot[1].copy_(value)
        return slot

    def _route(self, layer: int, weight: Tensor) -> Slot:
        if weight.dtype != self._matrix.dtype:
            weight = weight.to(self._matrix.dtype)
        torch.mm(weight, self._matrix[: weight.shape[1]], out=self._products[layer])
        return self._routed[layer]
