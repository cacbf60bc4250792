"""``SlotBuffer``: the slots of one forward, which its layers share, and its two plain kinds.

``SmallBuffer`` is for few tokens without gradients, as at decoding; ``TracedBuffer`` for code that
torch.compile traces. ``groups.py`` has the one for training and prompts.

Letters: L layers, R heads, B batch, T tokens, E head width, C = B T E.
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from operator import is_
from typing import final, overload

import torch
from torch import Tensor

from layermem.ops.route import naive
from layermem.ops.route.naive import Slot
from layermem.ops.route.products import Router, as_router, as_rows, as_slot, view_slots

Routers = Sequence[Router | Tensor | None]
Sources = Sequence[Sequence[int]]


class SlotBuffer(Sequence[Slot]):
    """The slots of one forward and their routes; as a sequence, the slots so far.

    ``routers[l]`` is the router of layer l, a weight [R, S * R] or [1, S] for keys and values or
    one for each, None if it has none; ``sources[l]`` are the S layers that it reads, ascending, its
    own last (all so far, if they are not given). Layer after layer calls ``append`` with its slot
    and then, if it has a router, ``route``.
    """

    def __init__(self, routers: Routers, sources: Sources | None = None) -> None:
        self._routers = list(map(as_router, routers))
        self._sources = sources or [range(layer + 1) for layer in range(len(routers))]
        # Rows of a router's weight, and of a slot in a matrix: those of heads, or one.
        self._heads = next((len(r[0]) for r in self._routers if r is not None), 1)
        self._slots: list[Slot] = []
        # The layer that was routed last, and its route.
        self._last_route: tuple[int, Slot] | None = None

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
            self._shape = key.shape
            if self._heads not in (1, key.shape[1]):
                raise ValueError(
                    f"routers of {self._heads} heads do not fit slots of {key.shape[1]} heads"
                )
            self._begin(key, value)
        if key.shape != self._shape or value.shape != self._shape:
            raise ValueError(
                f"the keys and values of all layers must have the shape {list(self._shape)} of the "
                f"first key, got {list(key.shape)} and {list(value.shape)} at layer {layer}"
            )
        slot = self._keep(layer, key, value)
        self._slots.append(slot)
        return slot

    def route(self, *router: Tensor) -> Slot:
        """Compute ``naive.route`` of the sources of the last slot's layer, with its router."""
        layer = len(self._slots) - 1
        announced = self._routers[layer] or ()
        if len(router) == len(announced) and all(map(is_, router, announced)):
            # Asked twice, by a hook that calls the router again, it is computed once.
            if self._last_route is None or self._last_route[0] != layer:
                self._last_route = layer, self._route(layer, router)
            return self._last_route[1]
        # Another weight than was announced when the forward began.
        return naive.route([self._slots[j] for j in self._sources[layer]], *router)

    @abstractmethod
    def _begin(self, key: Tensor, value: Tensor) -> None:
        """Prepare for slots like the first key and value."""

    @abstractmethod
    def _keep(self, layer: int, key: Tensor, value: Tensor) -> Slot:
        """Keep the slot of a layer and return it as it is kept."""

    @abstractmethod
    def _route(self, layer: int, router: Router) -> Slot:
        """Compute the route of a layer, whose slot is the last that was kept."""


@final
class SmallBuffer(SlotBuffer):
    """Slots without gradients; each route is one product.

    A call costs more than its arithmetic here. Slots and routes of all layers are two allocations,
    whose views are made once for a forward, and keys and values lie side by side.
    """

    def _begin(self, key: Tensor, value: Tensor) -> None:
        if key.dtype != value.dtype:
            raise ValueError(
                f"keys are {key.dtype} and values {value.dtype}, which attention does not take "
                "together: convert the model to one dtype (model.to(dtype)), or use torch.autocast"
            )
        depth, columns = len(self._routers), key.numel() // self._heads
        sizes = (depth * self._heads, 2 * columns)
        # Row (l, r) has head r of layer l: its key, then its value.
        self._matrix, routes = key.new_empty(sizes), key.new_empty(sizes)
        self._kept, self._routed = (
            list(zip(*(view_slots(part, key.shape) for part in m.split(columns, 1)), strict=True))
            for m in (self._matrix, routes)
        )
        self._products = routes.chunk(depth)
        self._halves = slice(columns), slice(columns, None)

    def _keep(self, layer: int, key: Tensor, value: Tensor) -> Slot:
        slot = self._kept[layer]
        slot[0].copy_(key)
        slot[1].copy_(value)
        return slot

    def _route(self, layer: int, router: Router) -> Slot:
        if router[0].dtype != self._matrix.dtype:
            router = tuple(weight.to(self._matrix.dtype) for weight in router)
        own, heads = self._sources[layer], self._heads
        if layer - own[0] < len(own):
            rows = self._matrix[own[0] * heads : (layer + 1) * heads]
        else:
            places = _rows_of(tuple(own), heads, self._matrix.device)
            rows = self._matrix.index_select(0, places)
        out = self._products[layer]
        if len(router) == 1:
            torch.mm(router[0], rows, out=out)
        else:
            for weight, half in zip(router, self._halves, strict=True):
                torch.mm(weight, rows[:, half], out=out[:, half])
        return self._routed[layer]


@final
class TracedBuffer(SlotBuffer):
    """Slots with routes in groups of layers and autograd's ordinary gradients, for torch.compile.

    A graph in which every layer reads every earlier slot by an operation of its own has as many
    nodes as there are pairs of layers. Here a layer reads the slots of its own group singly, and
    what the layers of a group read of an older group is one product, so that a layer of a deep
    model has hardly more nodes than one of a shallow model. Every layer reads all slots so far:

        X_g                 [slot_a; ...; slot_(b-1)], the slots of group g below each other
        the group begins    P = sum over older groups g of W[:, X_g] @ X_g     for all its layers
        layer l             out_l = P_l + sum over own slots j <= l of W_l[:, j] @ slot_j

    Autograd saves a slot twice, singly and in X_g, unless the compiler computes X_g again.
    """

    def __init__(self, routers: Routers, group_size: int) -> None:
        super().__init__(routers)
        self._group_size = group_size
        # Keys and values side by side, or, where they have weights of their own, apart.
        self._n_parts = max(len(router) for router in self._routers if router is not None)
        # For each part, slots of the running group [R, C] and older groups [group_size * R, C].
        self._own: list[list[Tensor]] = [[] for _ in range(self._n_parts)]
        self._older: list[list[Tensor]] = [[] for _ in range(self._n_parts)]
        self._partials: dict[int, list[Tensor]] = {}

    def _begin(self, key: Tensor, value: Tensor) -> None:
        """Nothing is allocated before it is computed."""

    def _keep(self, layer: int, key: Tensor, value: Tensor) -> Slot:
        if layer and layer % self._group_size == 0:
            for own, older in zip(self._own, self._older, strict=True):
                older.append(torch.cat(own))
                own.clear()
            self._begin_group(layer)
        parts = [as_rows(part, self._heads) for part in (key, value)]
        if self._n_parts == 1:
            parts = [torch.cat(parts, dim=1)]
        for own, part in zip(self._own, parts, strict=True):
            own.append(part)
        return key, value

    def _begin_group(self, first: int) -> None:
        """Compute what the layers of a group read of older groups."""
        heads, size = self._heads, self._group_size
        group = range(first, min(first + size, len(self._routers)))
        routers: dict[int, Router] = {}
        for i in group:
            router = self._routers[i]
            if router is not None:
                routers[i] = router
        if not routers:
            return
        self._partials = {i: [] for i in routers}
        for part, older in enumerate(self._older):
            weights = []
            for router in routers.values():
                weight = _of_part(router, part)[:, : first * heads]
                weights.append(weight.to(older[0].dtype))
            total = _sum_products(torch.cat(weights).split(size * heads, dim=1), older)
            for i, partial in zip(routers, total.split(heads), strict=True):
                self._partials[i].append(partial)

    def _route(self, layer: int, router: Router) -> Slot:
        heads, partials = self._heads, self._partials.get(layer)
        sums = []
        for part, own in enumerate(self._own):
            weight = _of_part(router, part)[:, -len(own) * heads :].to(own[0].dtype)
            total = None if partials is None else partials[part]
            sums.append(_sum_products(weight.split(heads, dim=1), own, total))
        key, value = sums[0].chunk(2, dim=1) if self._n_parts == 1 else sums
        return as_slot(key, self._shape), as_slot(value, self._shape)


def _of_part(router: Router, part: int) -> Tensor:
    """Return the weight of keys (0) or of values (1), which may be one."""
    return router[min(part, len(router) - 1)]


def _sum_products(
    weights: Sequence[Tensor], parts: Sequence[Tensor], total: Tensor | None = None
) -> Tensor:
    """Return the total, if there is one, plus the sum of weights[i] @ parts[i]."""
    for weight, part in zip(weights, parts, strict=True):
        total = torch.mm(weight, part) if total is None else torch.addmm(total, weight, part)
    assert total is not None, "there is at least one slot"
    return total


@lru_cache(maxsize=1024)
def _rows_of(layers: tuple[int, ...], heads: int, device: torch.device) -> Tensor:
    """Return the rows of layers in a matrix [L R, C].

    They are kept on their device: while a CUDA graph is captured nothing may be copied there.
    """
    rows = [layer * heads + head for layer in layers for head in range(heads)]
    return torch.tensor(rows, device=device)
