"""What the layers of one forward share: whether they share a buffer, and which.

    Routes      one product and one autograd node a layer (``route.py``): training, compiled code
    Inference   eager, without gradients: the same products, written where they are read
    None        slots go from layer to layer, and a memory routes them by equation (2): where
                weights are not at hand when a forward begins, and for second derivatives

A layer is handed tensors by the layer before it and hands tensors on, so that activation
checkpointing may run it twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from layermem.ops.route import Begin, Layer, Place, Router, Slot, far_rows, parts_of
from layermem.ops.rows import new_rows

# Up to this many numbers in an input without gradients, groups cost more calls than they save.
_FEW = 2048
# Layers of a group, at least, and groups of a model, at most.
_GROUP = 8
_only_naive = False


@contextmanager
def using_naive() -> Iterator[None]:
    """Let no forward inside the block share a buffer: ``route`` of slots has second derivatives."""
    global _only_naive
    before, _only_naive = _only_naive, True
    try:
        yield
    finally:
        _only_naive = before


def begin(
    routers: Mapping[int, Router | None],
    sources: Mapping[int, Sequence[int]],
    like: Tensor,
    *,
    may_end_early: bool = True,
) -> "Shared | None":
    """Return what the layers of one forward share; None: their slots go from layer to layer.

    ``routers`` are those of the layers that have slots, by layer, ascending, None of a first one
    that has none; ``sources`` are the S layers that each reads, ascending, its own last. ``like``
    is a tensor of the forward. Returns None unless all weights lie whole in one memory, and under
    ``torch.func`` and ``torch.jit``. ``may_end_early``: whether a backward pass may begin below the
    last layer. Compiled layers that share a buffer would then return wrong gradients of routers, so
    a compiler gets None unless this is False.
    """
    rows = next((len(router[0]) for router in routers.values() if router is not None), 0)
    traced = torch.compiler.is_compiling()
    if not rows or _only_naive or not _is_ordinary(like) or (traced and may_end_early):
        return None
    for layer, router in routers.items():
        shape = (rows, len(sources[layer]) * rows)
        if not all(_is_at_hand(weight, shape, like) for weight in router or ()):
            return None
    without_gradients = not (traced or torch.is_grad_enabled() or _is_autocast(like))
    return (Inference if without_gradients else Routes)(routers, sources, rows, like)


class Slots:
    """The slots so far: ``shared.slots(layer, handed)``, at first of ``handed = shared.handed``.

    A layer calls ``append`` with its slot, and its router with these; ``handed`` is for the next.
    """

    own: Slot
    # What the layer hands to the next one.
    handed: tuple[Tensor, ...] = ()

    def __getitem__(self, index: Literal[-1]) -> Slot:
        return self.own

    def append(self, key: Tensor, value: Tensor) -> None:
        """Take the slot of the layer, [B, R, T, E] each."""
        raise NotImplementedError

    def route(self) -> Slot:
        """Return what the layer attends to."""
        raise NotImplementedError


class _Routers:
    """The routers of the layers that share a buffer, each in its place among these layers."""

    def __init__(
        self,
        routers: Mapping[int, Router | None],
        sources: Mapping[int, Sequence[int]],
        rows: int,
        like: Tensor,
    ) -> None:
        self.places = {layer: place for place, layer in enumerate(routers)}
        self.routers, self.rows = list(routers.values()), rows
        self.sources = [tuple(self.places[j] for j in sources[layer]) for layer in routers]
        self.parts = max(len(router) for router in self.routers if router is not None)
        is_exact = like.dtype.itemsize >= 4 and not _is_autocast(like)
        in_groups = is_exact and like.is_cpu and not torch.compiler.is_compiling()
        layers = len(self.routers)
        self.group = min(layers, max(_GROUP, layers // _GROUP)) if in_groups else layers

    def stacked(self, part: int, layers: slice = slice(None)) -> Tensor:
        """Return the rows of W of some layers, of keys (0) or of values (1)."""
        rows, depth, weights = self.rows, len(self.routers), []
        like = next(router for router in self.routers if router is not None)[0]
        for router, own in zip(self.routers[layers], self.sources[layers], strict=True):
            if router is None:
                weights.append(like.new_zeros(rows, depth * rows))
            elif _has_no_gaps(own):
                after = depth - 1 - own[-1]
                weights.append(pad(router[part], (own[0] * rows, after * rows)))
            else:
                blocks = dict(zip(own, router[part].split(rows, dim=1), strict=True))
                zeros = like.new_zeros(rows, rows)
                weights.append(torch.cat([blocks.get(j, zeros) for j in range(depth)], dim=1))
        return torch.cat(weights)


@final
class Routes(_Routers):
    """What layers hand on where gradients are needed, or code is compiled: X, and W at first."""

    def __init__(self, *routers_and_sources: Any) -> None:
        super().__init__(*routers_and_sources)
        like = routers_and_sources[-1]
        # W with the graph to the routers: what the first layer is handed.
        self.handed = tuple(self.stacked(part) for part in range(self.parts))
        # The dtype of slots, but for norms under autocast.
        autocast = _is_autocast(like)
        self.dtype = torch.get_autocast_dtype(like.device.type) if autocast else like.dtype
        self.weights = [weight.detach().to(self.dtype) for weight in self.handed]

    def weights_in(self, dtype: torch.dtype) -> list[Tensor]:
        """Return W without its graph, rounded once. A layer may run twice, and changes nothing."""
        if dtype == self.dtype:
            return self.weights
        return [weight.detach().to(dtype) for weight in self.handed]

    def place(self, layer: int) -> Place:
        """Return where a layer is, by its place."""
        layers, routes = len(self.routers), self.routers[layer] is not None
        first_read, is_last = self.sources[layer][0], layer + 1 == layers
        return Place(layer, layers, self.rows, self.group, first_read, routes, is_last)

    def handed_to(self, layer: int) -> int:
        """Return how many tensors a layer is handed."""
        place = self.places[layer]
        return self.place(place).n_handed if place else len(self.handed)

    def handed_by(self, layer: int) -> int:
        """Return how many tensors a layer hands on."""
        place = self.place(self.places[layer])
        return 0 if place.is_last else place.n_handed

    def slots(self, layer: int, handed: tuple[Tensor, ...]) -> Slots:
        """Return the slots for a layer, from what it is handed."""
        return _Buffered(self, self.place(self.places[layer]), handed)


@final
class _Buffered(Slots):
    def __init__(self, routes: Routes, place: Place, handed: tuple[Tensor, ...]) -> None:
        self.routes, self.place, self.handed = routes, place, handed

    def append(self, key: Tensor, value: Tensor) -> None:
        self.own, self.dtype = (key, value), torch.promote_types(key.dtype, value.dtype)
        if self.place.layer == 0:
            sizes = 2 * key.numel() // self.place.rows, self.place.group * self.place.rows
            weight, value_weight = (*self.handed, None)[:2]
            self.handed = Begin.apply((*sizes, self.dtype), weight, value_weight)
        if not self.place.routes:
            self.handed = self._run()

    def route(self) -> Slot:
        *handed, key, value = self._run()
        self.handed = tuple(handed)
        return key.to(self.own[0].dtype), value.to(self.own[1].dtype)

    def _run(self) -> Any:
        weights, slot = (
            self.routes.weights_in(self.dtype),
            (part.to(self.dtype) for part in self.own),
        )
        return Layer.apply(self.place, *self.handed, *weights, *slot)


@final
class Inference(_Routers, Slots):
    """The slots of a forward without gradients, which serve all layers, one after the other.

    Keys lie beside values, X [L R, 2 C], so that one router for both is one product. What layers
    attend to is computed where it is read, in groups of layers unless tokens are few.
    """

    def __init__(self, *routers_and_sources: Any) -> None:
        super().__init__(*routers_and_sources)
        if routers_and_sources[-1].numel() <= _FEW:
            self.group = len(self.routers)

    def handed_to(self, layer: int) -> int:
        """Return how many tensors a layer is handed: X is here."""
        return 0

    handed_by = handed_to

    def slots(self, layer: int, handed: tuple[Tensor, ...]) -> Slots:
        """Return the slots for a layer."""
        self._at = self.places[layer]
        return self

    def append(self, key: Tensor, value: Tensor) -> None:
        if self._at == 0:
            count = len(self.routers) * self.rows
            self._x = new_rows(key, count, 2 * key.numel() // self.rows)
            self._slots = _as_slots(self._x, key.shape)
        if self._at % self.group == 0:
            self._begin_group(key.shape)
        self.own = self._slots[self._at]
        self.own[0].copy_(key)
        self.own[1].copy_(value)

    def route(self) -> Slot:
        at, rows, first = self._at % self.group, self.rows, self._at - self._at % self.group
        router, own = self.routers[self._at], self.sources[self._at]
        assert router is not None, "a layer without a router does not route"
        out = self._products[at]
        # Of the group alone.
        near = [j for j in own if j >= first] if first else own
        read = self._x[near[0] * rows : (near[-1] + 1) * rows]
        if not _has_no_gaps(near):
            read = torch.cat([self._x[j * rows : (j + 1) * rows] for j in near])
        halves = parts_of(read, len(router)), parts_of(out, len(router))
        for weight, x, total in zip(router, *halves, strict=True):
            weight = weight.to(x.dtype)
            if first:
                total.addmm_(weight[:, (len(own) - len(near)) * rows :], x)
            else:
                torch.mm(weight, x, out=total)
        return self._routed[at]

    def _begin_group(self, shape: torch.Size) -> None:
        """Make the rows of a group's layers, with what they read of the layers below the group."""
        first, rows = self._at, self.rows
        layers = slice(first, first + self.group)
        count = len(self.routers[layers])
        if first:
            w = [self.stacked(i, layers)[:, : first * rows] for i in range(self.parts)]
            products = far_rows([part.to(self._x.dtype) for part in w], self._x[: first * rows])
        else:
            products = new_rows(self._x, count * rows, self._x.shape[1])
        self._products, self._routed = products.chunk(count), _as_slots(products, shape)


Shared = Routes | Inference


def _as_slots(matrix: Tensor, shape: torch.Size) -> list[Slot]:
    """Return the rows of layers [L R, 2 C] as views, a key and a value [B, R, T, E] of each."""
    batch, heads, tokens, width = shape
    parts = (
        half.view(-1, heads, batch, tokens, width).transpose(1, 2).unbind()
        for half in matrix.unflatten(1, (2, -1)).unbind(1)
    )
    return list(zip(*parts, strict=True))


def _has_no_gaps(layers: Sequence[int]) -> bool:
    return layers[-1] - layers[0] < len(layers)


def _is_ordinary(tensor: Tensor) -> bool:
    """Whether a tensor is computed with as it is, or by a compiler."""
    return torch.compiler.is_compiling() or (
        type(tensor) is Tensor
        and not torch.jit.is_tracing()  # type: ignore[attr-defined]
        and not torch._C._are_functorch_transforms_active()
    )


def _is_at_hand(weight: Tensor, shape: tuple[int, int], like: Tensor) -> bool:
    """Whether this is a whole weight in memory. FSDP gathers a layer's only when it runs."""
    return (
        type(weight) in (Tensor, torch.nn.Parameter)
        and weight.shape == shape
        and weight.device == like.device
        # While a compiler traces, tensors have no memory; what FSDP has sharded has another type.
        and (torch.compiler.is_compiling() or weight.untyped_storage().size() > 0)
    )


def _is_autocast(tensor: Tensor) -> bool:
    # The meta device has no autocast, and asking for it is an error.
    return not tensor.is_meta and torch.is_autocast_enabled(tensor.device.type)
