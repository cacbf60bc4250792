"""What the layers of one forward share: whether they share a buffer, and which.

    ``Routes``      one product and one autograd node a layer (``route.py``): training, prompts,
                    compiled code
    ``FewTokens``   few calls a layer: eager, without gradients, few tokens, as at decoding
    None            slots go from layer to layer, and a memory routes them by equation (2): where
                    weights are not at hand when a forward begins, and for second derivatives

A layer is handed tensors by the layer before it and hands tensors on, so that activation
checkpointing may run it twice.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from layermem.ops.route import Begin, Layer, Place, Router, Slot, Slots

# Up to this many numbers in an input without gradients, a call costs more than its arithmetic.
_FEW = 16384
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
    routers: Sequence[Router | None],
    sources: Sequence[Sequence[int]],
    like: Tensor,
    *,
    may_end_early: bool = True,
) -> "Shared | None":
    """Return what the layers of one forward share; None: their slots go from layer to layer.

    ``routers[l]`` is the router of layer l, None if it has none; ``sources[l]`` are the S layers
    that it reads, ascending, its own last. ``like`` is a tensor of the forward. Returns None unless
    all weights lie whole in one memory, and under ``torch.func`` and ``torch.jit``.
    ``may_end_early``: whether a backward pass may begin below the last layer.
    """
    rows = next((len(router[0]) for router in routers if router is not None), 0)
    if not rows or _only_naive or not _is_ordinary(like):
        return None
    for router, own in zip(routers, sources, strict=True):
        shape = (rows, len(own) * rows)
        if not all(_is_at_hand(weight, shape, like) for weight in router or ()):
            return None
    few = like.numel() <= _FEW and not torch.is_grad_enabled() and not _is_autocast(like)
    if few and not torch.compiler.is_compiling():
        return FewTokens(routers, sources, rows)
    return Routes(routers, sources, rows, like, may_end_early=may_end_early)


class Shared(ABC):
    """What the layers of one forward share, who hand a buffer from one to the next."""

    # What the first layer is handed.
    handed: tuple[Tensor, ...] = ()

    @abstractmethod
    def handed_to(self, layer: int) -> int:
        """Return how many tensors a layer is handed."""

    @abstractmethod
    def slots(self, layer: int, handed: tuple[Tensor, ...]) -> Slots:
        """Return the slots for a layer, from what it is handed."""


@final
class Routes(Shared):
    """The routers of all layers below each other: W, and which layers have one."""

    def __init__(
        self,
        routers: Sequence[Router | None],
        sources: Sequence[Sequence[int]],
        rows: int,
        like: Tensor,
        *,
        may_end_early: bool = True,
    ) -> None:
        self.last = max(i for i, router in enumerate(routers) if router is not None)
        routers = routers[: self.last + 1]
        self.routed = [router is not None for router in routers]
        self.first_read = [own[0] for own in sources]
        self.rows, self.may_end_early = rows, may_end_early
        apart = any(router is not None and len(router) == 2 for router in routers)
        # W, with the graph to the routers.
        self.handed = tuple(
            _stack(routers, sources[: len(routers)], rows, part) for part in range(1 + apart)
        )
        # That of slots, but for norms under autocast.
        is_autocast = _is_autocast(like)
        self.dtype = torch.get_autocast_dtype(like.device.type) if is_autocast else like.dtype
        self.weights = [weight.detach().to(self.dtype) for weight in self.handed]
        is_exact = self.dtype.itemsize >= 4
        in_groups = is_exact and like.is_cpu and not torch.compiler.is_compiling()
        self.group = max(_GROUP, len(routers) // _GROUP) if in_groups else len(routers)

    def weights_for(self, key: Tensor, value: Tensor) -> list[Tensor]:
        """Return W without its graph, in the dtypes of a slot: of both parts, or of each."""
        if key.dtype == value.dtype == self.dtype:
            return self.weights
        # Each rounded once. A layer may run twice, and changes nothing here.
        keys, values = self.handed[0].detach(), self.handed[-1].detach()
        is_one = len(self.handed) == 1 and key.dtype == value.dtype
        return [keys.to(key.dtype), *([] if is_one else [values.to(value.dtype)])]

    def begin(self, key: Tensor, value: Tensor, handed: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return what the first layer begins with, from its slot and W with its graph."""
        sizes = key.numel() // self.rows, self.group * self.rows
        weight, value_weight = (*handed, None)[:2]
        dtypes = key.dtype, value.dtype
        out: tuple[Tensor, ...] = Begin.apply(*sizes, dtypes, weight, value_weight)
        return out

    def handed_to(self, layer: int) -> int:
        if layer == 0:
            return len(self.handed)
        return 0 if layer > self.last else 4 + 2 * (self.group < len(self.routed))

    def slots(self, layer: int, handed: tuple[Tensor, ...]) -> Slots:
        return _Buffered(self, layer, handed)


@final
class _Buffered(Slots):
    def __init__(self, routes: Routes, layer: int, handed: tuple[Tensor, ...]) -> None:
        self.routes, self.layer, self.handed = routes, layer, handed

    def append(self, key: Tensor, value: Tensor) -> None:
        self.own = key, value
        if self.layer == 0:
            self.handed = self.routes.begin(key, value, self.handed)
        if self.handed and not self.routes.routed[self.layer]:
            self.handed = self._run()

    def route(self) -> Slot:
        *handed, key, value = self._run()
        self.handed = tuple(handed)
        return key, value

    def _run(self) -> Any:
        routes, layer = self.routes, self.layer
        at = Place(
            *(layer, routes.first_read[layer], routes.rows, routes.group, routes.handed_to(1)),
            routes=routes.routed[layer],
            is_last=layer == routes.last,
            may_end_early=routes.may_end_early,
        )
        return Layer.apply(at, *self.handed, *routes.weights_for(*self.own), *self.own)


def _stack(
    routers: Sequence[Router | None], sources: Sequence[Sequence[int]], rows: int, part: int
) -> Tensor:
    """Return W of keys (0) or of values (1)."""
    like = next(router for router in routers if router is not None)[0]
    depth, weights = len(routers), []
    for router, own in zip(routers, sources, strict=True):
        if router is None:
            weights.append(like.new_zeros(rows, depth * rows))
        elif own[-1] - own[0] < len(own):
            after = depth - 1 - own[-1]
            weights.append(pad(router[part % len(router)], (own[0] * rows, after * rows)))
        else:
            blocks = dict(zip(own, router[part % len(router)].split(rows, dim=1), strict=True))
            zeros = like.new_zeros(rows, rows)
            weights.append(torch.cat([blocks.get(j, zeros) for j in range(depth)], dim=1))
    return torch.cat(weights)


@final
class FewTokens(Shared, Slots):
    """The slots of a few tokens, which serve all layers, one after the other."""

    def __init__(
        self, routers: Sequence[Router | None], sources: Sequence[Sequence[int]], rows: int
    ) -> None:
        self._routers, self._sources, self._rows = routers, sources, rows

    def handed_to(self, layer: int) -> int:
        return 0

    def slots(self, layer: int, handed: tuple[Tensor, ...]) -> Slots:
        self._layer = layer
        return self

    def append(self, key: Tensor, value: Tensor) -> None:
        if self._layer == 0:
            self._begin(key)
        self.own = self._kept[self._layer]
        self.own[0].copy_(key)
        self.own[1].copy_(value)

    def route(self) -> Slot:
        router, own, rows = self._routers[self._layer], self._sources[self._layer], self._rows
        assert router is not None, "layers without a router do not route"
        if router[0].dtype != self._x.dtype:
            router = tuple(weight.to(self._x.dtype) for weight in router)
        if own[-1] - own[0] < len(own):
            read = self._x[own[0] * rows : (own[-1] + 1) * rows]
        else:
            read = torch.cat([self._x[j * rows : (j + 1) * rows] for j in own])
        out = self._products[self._layer]
        if len(router) == 1:
            torch.mm(router[0], read, out=out)
        else:
            for weight, half in zip(router, self._halves, strict=True):
                torch.mm(weight, read[:, half], out=out[:, half])
        return self._routed[self._layer]

    def _begin(self, key: Tensor) -> None:
        columns = key.numel() // self._rows
        sizes = len(self._routers) * self._rows, 2 * columns
        self._x, routes = key.new_empty(sizes), key.new_empty(sizes)
        self._kept, self._routed = (
            list(zip(*(_views(half, key.shape) for half in m.split(columns, 1)), strict=True))
            for m in (self._x, routes)
        )
        self._products = routes.chunk(len(self._routers))
        self._halves = slice(columns), slice(columns, None)


def _views(matrix: Tensor, shape: torch.Size) -> Sequence[Tensor]:
    """Return the keys (or values) of a matrix [L R, C] as L views [B, R, T, E] like ``shape``."""
    batch, heads, tokens, width = shape
    return matrix.view(-1, heads, batch, tokens, width).transpose(1, 2).unbind()


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
