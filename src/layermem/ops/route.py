"""Routing over depth: a layer attends to a weighted sum of the slots of all layers so far.

    out_l = W_l [slot_0; ...; slot_l]                                               (equation (2))

``naive`` is this line. Where all routers are at hand when a forward begins (``begin``), its layers
share a buffer. Of keys, and of values, with C = B T E:

    X [L R, C]      the slots of all layers
    W [L R, L R]    their routers, zero for what a layer does not read
    D [L R, C]      the gradients of their routes

    forward,  layer l:   X[l] = slot_l;      out_l    = W[l, :l+1] @ X[:l+1]     one product
    backward, layer l:   D[l] = d out_l;     d slot_l = W[l:, l]^T @ D[l:]       one product
    backward, begin:                         d W      = D @ X^T                  one product in all

A layer takes X from the layer before it, writes its slot and hands X on, so that X has one reader.
By convention the gradient of X is D: autograd's own chain hands D down, and each layer writes its
rows before it reads those of the layers above. X itself comes down as the gradient of a token, a
tensor of its shape that takes no memory. So a layer has as many edges in a deep model as in a
shallow one, and the begin gets what the gradients of all routers need.

A pass that begins below the last layer (a loss on hidden states) is handed nothing, or zeros: each
layer then adds its slot to a new X. In eager mode it has it, as a view; a compiler has to keep it.

Letters: L layers, S slots of a route, R rows of a router (heads, or one), B batch, T tokens, E width.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, final

import torch
from torch import Tensor
from torch.nn.functional import pad

Slot = tuple[Tensor, Tensor]
"""The key and the value of one layer before rope, [B, heads, T, E] each."""
Router = tuple[Tensor, ...]
"""The weight of keys and values, or one of keys and one of values."""
# Up to this many numbers in an input without gradients, as at decoding, a call costs more than its
# arithmetic.
_FEW = 16384
_only_naive = False


def route(slots: "Sequence[Slot] | Slots", weight: Tensor, value_weight: Tensor | None = None) -> Slot:
    """Compute the weighted sum of slots, ``out[h] = sum_{s, g} weight[h, s * R + g] * slot_s[g]``.

    ``slots`` are S pairs (key, value) of shape [B, R, T, E]; ``weight`` is [R, S * R], slot major,
    head minor, or [1, S], a scalar a slot for all of its heads. It is applied to keys, and to
    values unless they have a ``value_weight`` of that shape. Returns (key, value), each
    [B, R, T, E]. A weight of heads may have another number of rows: that of output heads.
    """
    if isinstance(slots, Slots):
        return slots.route()
    value_weight = weight if value_weight is None else value_weight
    _check_shapes(slots, weight, value_weight)
    keys, values = zip(*slots, strict=True)
    return naive(keys, weight), naive(values, value_weight)


def naive(parts: Sequence[Tensor], weight: Tensor) -> Tensor:
    """Return W [slot_0; ...; slot_(S-1)] of the keys or of the values of slots."""
    rows = weight.shape[1] // len(parts)
    stacked = torch.cat([part.transpose(0, 1).reshape(rows, -1) for part in parts])
    with _no_autocast(stacked):
        return _as_slot(weight.to(stacked.dtype) @ stacked, parts[0].shape)


@contextmanager
def using_naive() -> Iterator[None]:
    """Let no forward inside the block share a buffer: ``naive`` alone has second derivatives."""
    global _only_naive
    before, _only_naive = _only_naive, True
    try:
        yield
    finally:
        _only_naive = before


class Slots(ABC):
    """What the memory of one layer reads where layers share a buffer: the slots so far.

    The layer calls ``append`` with its own slot and, if it has a router, ``route``.
    """

    own: Slot
    # What the layer hands to the next one.
    handed: tuple[Tensor, ...] = ()

    def __getitem__(self, index: Literal[-1]) -> Slot:
        """Return the own slot, as a sequence of slots does."""
        return self.own

    @abstractmethod
    def append(self, key: Tensor, value: Tensor) -> None:
        """Take the slot of the layer, [B, R, T, E] each."""

    @abstractmethod
    def route(self) -> Slot:
        """Return what the layer attends to."""


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


def begin(
    routers: Sequence[Router | None],
    sources: Sequence[Sequence[int]],
    like: Tensor,
    *,
    may_end_early: bool = True,
) -> Shared | None:
    """Return what the layers of one forward share; None: their slots go from layer to layer.

    ``routers[l]`` is the router of layer l, None if it has none; ``sources[l]`` are the S layers
    that it reads, ascending, its own last. ``like`` is a tensor of the forward. Returns None unless
    all weights lie whole in one memory, and under ``torch.func`` and ``torch.jit``. ``may_end_early``:
    whether a backward pass may begin below the last layer.
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
        self.routed = [router is not None for router in routers]
        self.last = max(layer for layer, routed in enumerate(self.routed) if routed)
        self.first_read = [own[0] for own in sources]
        self.rows, self.may_end_early = rows, may_end_early
        apart = any(router is not None and len(router) == 2 for router in routers)
        # W, with the graph to the routers.
        self.handed = tuple(_stack(routers, sources, rows, part) for part in range(1 + apart))
        dtype = torch.get_autocast_dtype(like.device.type) if _is_autocast(like) else like.dtype
        self.weights = [weight.detach().to(dtype) for weight in self.handed]

    def handed_to(self, layer: int) -> int:
        return len(self.handed) if layer == 0 else 4 * (layer <= self.last)

    def slots(self, layer: int, handed: tuple[Tensor, ...]) -> Slots:
        return _Buffered(self, layer, handed)


@final
class _Buffered(Slots):
    def __init__(self, routes: Routes, layer: int, handed: tuple[Tensor, ...]) -> None:
        self.routes, self.layer, self.handed = routes, layer, handed

    def append(self, key: Tensor, value: Tensor) -> None:
        self.own = key, value
        if self.layer == 0:
            columns = key.numel() // self.routes.rows
            self.handed = _Begin.apply(columns, key.dtype, value.dtype, *self.handed)
        if self.handed and not self.routes.routed[self.layer]:
            self.handed = self._run()

    def route(self) -> Slot:
        *handed, key, value = self._run()
        self.handed = tuple(handed)
        return key, value

    def _run(self) -> Any:
        routes, layer = self.routes, self.layer
        at = layer, routes.first_read[layer], routes.rows
        how = routes.routed[layer], layer == routes.last, routes.may_end_early
        return _Layer.apply(*at, *how, *self.handed, *routes.weights, *self.own)


class _Begin(torch.autograd.Function):
    """Make X and its tokens; in the backward, the gradients of all routers."""

    @staticmethod
    def forward(
        ctx: Any, columns: int, of_keys: torch.dtype, of_values: torch.dtype, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.dtype, ctx.count = weights[0].dtype, len(weights)
        sizes = len(weights[0]), columns
        x = [weights[0].new_empty(sizes, dtype=dtype) for dtype in (of_keys, of_values)]
        return *x, *(part.new_zeros(()).expand_as(part) for part in x)

    @staticmethod
    def backward(ctx: Any, d_k: Tensor, d_v: Tensor, x_k: Tensor, x_v: Tensor) -> Any:
        with _no_autocast(x_k):
            of_keys, of_values = d_k @ x_k.t(), d_v @ x_v.t()
        if ctx.count == 2:
            return None, None, None, of_keys.to(ctx.dtype), of_values.to(ctx.dtype)
        # Products in half precision are not added there.
        wide = torch.promote_types(ctx.dtype, torch.float32)
        return None, None, None, (of_keys.to(wide) + of_values.to(wide)).to(ctx.dtype)


class _Layer(torch.autograd.Function):
    """Write the slot of a layer into X, and route; the last layer hands nothing on."""

    @staticmethod
    def forward(
        ctx: Any,
        layer: int,
        first: int,
        rows: int,
        routes: bool,
        is_last: bool,
        may_end_early: bool,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        x_k, x_v, t_k, t_v, *weights, key, value = tensors
        own, read = slice(layer * rows, (layer + 1) * rows), slice(first * rows, (layer + 1) * rows)
        x = _put(x_k, own, key, key.shape), _put(x_v, own, value, key.shape)
        compiling = torch.compiler.is_compiling()
        slot: Any = (key, value) if may_end_early else ()
        if not compiling:
            ctx.set_materialize_grads(False)
            slot = [_as_slot(part[own], key.shape) for part in x]
        ctx.has_all = is_last and not (compiling and may_end_early)
        ctx.save_for_backward(*weights, *(x if ctx.has_all else slot))
        ctx.own, ctx.routes, ctx.is_last = own, routes, is_last
        ctx.count, ctx.shape = len(weights), key.shape
        handed = () if is_last else (*x, t_k.view_as(t_k), t_v.view_as(t_v))
        if not routes:
            return handed
        with _no_autocast(x_k):
            keys = weights[0].to(x_k.dtype)[own, read] @ x[0][read]
            values = weights[-1].to(x_v.dtype)[own, read] @ x[1][read]
        return *handed, _as_slot(keys, key.shape), _as_slot(values, key.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        _refuse_second_derivatives()
        saved: Any = ctx.saved_tensors
        own, weights, kept = ctx.own, saved[: ctx.count], saved[ctx.count :]
        d: Any = grads[:2]
        x: Any = grads[2:4]
        if ctx.is_last or d[0] is None:
            # The pass begins here. Layers below the last leave the rows of those above them zero.
            sizes = len(weights[0]), ctx.shape.numel() // (own.stop - own.start)
            x = kept if ctx.has_all else [part.new_empty(sizes) for part in kept]
            d = [_new(part, sizes, zero=not ctx.is_last) for part in x]
        if not ctx.has_all and kept:
            x = [_put(part, own, slot, ctx.shape) for part, slot in zip(x, kept, strict=True)]
        of_routes = grads[-2:] if ctx.routes else (None, None)
        d = [_put(part, own, grad, ctx.shape) for part, grad in zip(d, of_routes, strict=True)]
        readers = slice(own.start if ctx.routes else own.stop, None)
        d_slot: list[Tensor | None] = [None, None]
        with _no_autocast(d[0]):
            for i, weight in ((0, weights[0]), (1, weights[-1])):
                if ctx.needs_input_grad[i - 2]:
                    columns = weight.to(d[i].dtype)[readers, own]
                    d_slot[i] = _as_slot(columns.t() @ d[i][readers], ctx.shape)
        return *(None,) * 6, *d, *x, *(None,) * ctx.count, *d_slot


@final
class FewTokens(Shared, Slots):
    """The slots of a few tokens without gradients, as at decoding: few calls, and no autograd.

    Slots and routes of all layers are two allocations, whose views are made once for a forward, and
    keys and values lie side by side. It serves all layers, one after the other.
    """

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


def _put(buffer: Tensor, own: slice, part: Tensor | None, shape: torch.Size) -> Tensor:
    """Return the buffer with a key, value or gradient [B, R, T, E] in its own rows; None is zero.

    It is written in place, by a compiler too.
    """
    if torch.compiler.is_compiling():
        # Inductor writes `index_put` in place; of `slice_scatter` it would rewrite the whole buffer.
        at = torch.arange(own.start, own.stop, device=buffer.device)
        rows = buffer.new_zeros(()) if part is None else part.transpose(0, 1).reshape(len(at), -1)
        return torch.index_put(buffer, (at,), rows)
    # `data` has a version of its own: writing a later slot is no change of those that are saved.
    buffer = buffer.data
    rows = _as_slot(buffer[own], shape)
    if part is None:
        rows.zero_()
    elif rows.data_ptr() != part.data_ptr():
        rows.copy_(part)
    return buffer


def _as_slot(rows: Tensor, shape: torch.Size) -> Tensor:
    """Return the rows of one layer as a view [B, *, T, E] like ``shape`` but for its heads."""
    batch, _, tokens, width = shape
    return rows.view(-1, batch, tokens, width).transpose(0, 1)


def _new(like: Tensor, sizes: tuple[int, int], *, zero: bool) -> Tensor:
    # Anomaly detection looks at all rows, which layers write one after the other.
    zero = zero or (not torch.compiler.is_compiling() and torch.is_anomaly_enabled())
    return like.new_zeros(sizes) if zero else like.new_empty(sizes)


def _refuse_second_derivatives() -> None:
    """Raise ``RuntimeError`` under ``create_graph=True``: the gradients would have no graph."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            "routing on a shared buffer has no second derivatives (create_graph=True); run the "
            "forward and the backward inside layermem.ops.route.using_naive()"
        )


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


def _no_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context without autocast, which would round products to half precision."""
    if _is_autocast(tensor):
        return torch.autocast(tensor.device.type, enabled=False)
    return nullcontext()


def _check_shapes(slots: Sequence[Slot], *weights: Tensor) -> None:
    """Raise ``ValueError`` if slots differ in shape, or if a weight does not fit them."""
    if not slots:
        raise ValueError("route needs at least one slot (a pair of key and value), got none")
    shape = slots[0][0].shape
    for number, slot in enumerate(slots):
        if any(part.shape != shape for part in slot):
            raise ValueError(
                f"the keys and values of all slots must have the shape {list(shape)} of the first "
                f"key, got {[list(part.shape) for part in slot]} in slot {number}"
            )
    heads, count = shape[1], len(slots)
    for weight in weights:
        by_head = weight.ndim == 2 and weight.shape[1] == count * heads
        if weight.shape != weights[0].shape or not (by_head or weight.shape == (1, count)):
            raise ValueError(
                f"the weights of keys and of values for {count} slots of {heads} heads must have "
                f"one shape, with {count * heads} columns or [1, {count}], a scalar a slot; got "
                f"{[list(w.shape) for w in weights]}"
            )
