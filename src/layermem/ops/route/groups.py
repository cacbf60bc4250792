"""``GroupBuffer``: the slots of one forward, routed and differentiated in groups of layers.

A router's product is thin: it has R rows. Routers are known when a forward begins, so that what
several layers read of several slots is one fat product. Slots lie below each other,
X = [slot_0; slot_1; ...], [L R, C], for keys and one for values; so do the gradients of a group's
routes, D = [d out_a; ...; d out_(b-1)] for the layers a to b - 1; W has the group's routers below
each other, with zeros for slots that a router does not read.

    the group begins    P = W[:, :a] @ X[:a]                     what its layers read of older slots
    layer l             out_l = P_l + W_l[:, a:l+1] @ X[a:l+1]
    backward, routes    only keep their incoming gradients, as rows of D
    backward, begin     d W = D @ X[:b]^T                         after all routes of the group
    backward, slot j    d X_j = sum over later groups g of (W_g[:, a:b]^T @ D_g)_j + W[:, j]^T @ D

What later groups send is computed for a whole group at once, when the first of its slots asks.
All products leave out the layers that nobody reads, as windows and pruned routers have them.

Autograd keeps the order by *tokens*, tensors without content: a group's begin, the slots and the
routes make and take them so that each depends on all that came before it,

    begin of a group <--- slot a <--- slot a+1 <--- ... <--- slot b-1 <--- begin of the next group
                            ^            ^                      ^
                         route a     route a+1              route b-1

and the backward of a slot runs after those of all routes that have read it, that of a begin after
those of its group's slots and routes. So a layer has as many edges in a deep model as in a shallow
one. D belongs to one backward pass.

Letters: L layers, R heads, B batch, T tokens, E head width, C = B T E.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, final

import torch
from torch import Tensor

from layermem.ops.route.buffer import Routers, SlotBuffer, Sources
from layermem.ops.route.deferred import pair_up, refuse_second_derivatives
from layermem.ops.route.naive import Slot
from layermem.ops.route.products import (
    Pair,
    Router,
    add_product,
    as_slot,
    pieces_of,
    runs_of,
    stack_rows,
    sum_of_runs,
    sum_products,
    view_slots,
)
from layermem.ops.shared_gradient import Grads, autocast_disabled, of_running_pass

# Of the gradients of their routers, which are zero above the diagonal.
_LAYERS_OF_A_PRODUCT = 16


@dataclass(frozen=True)
class _Group:
    """The layers ``first`` to ``last`` - 1, what each reads, and their routers."""

    first: int
    last: int
    heads: int
    # By layer with a router: all of its sources.
    sources: dict[int, Sequence[int]]
    # By layer with a router: how many weights it has, one or one of keys and one of values.
    counts: dict[int, int]
    # Of keys and of values, [(last - first) * R, last * R] each: one matrix where all have one.
    weights: Pair

    @property
    def is_apart(self) -> bool:
        """Whether keys and values have weights of their own in some layer."""
        return self.weights[0] is not self.weights[1]

    def block(self, part: int, layers: range, slots: range) -> Tensor:
        """Return the weights by which ``layers`` read the keys (0) or values (1) of ``slots``."""
        rows = range(layers.start - self.first, layers.stop - self.first)
        return self.weights[part][self.rows(rows), self.rows(slots)]

    def rows(self, layers: range) -> slice:
        """Return the rows of layers in a matrix that begins with layer 0."""
        return slice(layers.start * self.heads, layers.stop * self.heads)

    def own(self, layers: range) -> slice:
        """Return the rows of layers of the group in a matrix that begins with its first layer."""
        return slice(
            (layers.start - self.first) * self.heads, (layers.stop - self.first) * self.heads
        )

    def read(self, layers: Iterable[int], slots: range) -> list[int]:
        """Return which of ``slots`` some of ``layers`` read, ascending."""
        return sorted(set(slots) & set[int]().union(*(self.sources[i] for i in layers)))

    def readers(self, layers: Iterable[int], slots: range) -> list[int]:
        """Return which of ``layers`` read some of ``slots``, ascending."""
        return [i for i in sorted(layers) if not set(slots).isdisjoint(self.sources[i])]


@final
class GroupBuffer(SlotBuffer):
    """Slots with routes and gradients in groups of ``group_size`` layers."""

    def __init__(self, routers: Routers, group_size: int, sources: Sources | None = None) -> None:
        super().__init__(routers, sources)
        self._group_size = group_size
        # Of the forward: single layers may run without gradients, the first one too.
        self._has_gradients = torch.is_grad_enabled()

    def _begin(self, key: Tensor, value: Tensor) -> None:
        if min(key.element_size(), value.element_size()) == 2:
            self._group_size = len(self._routers)
        heads, columns = self._heads, key.numel() // self._heads
        # Two allocations: autograd saves the routed values, and routed keys only after rope.
        self._matrices = [x.new_empty(len(self._routers) * heads, columns) for x in (key, value)]
        self._tape = _Tape(key.shape) if self._has_gradients else None
        self._token = key.new_empty(0)
        keys, values = (view_slots(matrix, key.shape) for matrix in self._matrices)
        self._kept = list(zip(keys, values, strict=True))

    def _keep(self, layer: int, key: Tensor, value: Tensor) -> Slot:
        if layer % self._group_size == 0:
            self._begin_group(layer)
        if self._tape is None:
            return self._place(layer, key, value)
        slot: Slot = _Append.apply(partial(self._place, layer), key, value)
        # Also where this layer runs without gradients: those of others go by its token.
        with torch.enable_grad():
            self._token = _Link.apply(self._tape, self._group, layer, self._token, *slot)
        return slot

    def _place(self, layer: int, key: Tensor, value: Tensor) -> Slot:
        kept = self._kept[layer]
        # All slots share one storage. Of ``data`` each has its own version counter, so that writing
        # a later slot does not count as a change of those that autograd has saved. Of views torch
        # refuses changes in place, which the backward would miss.
        return kept[0].data.copy_(key)[:], kept[1].data.copy_(value)[:]

    def _begin_group(self, first: int) -> None:
        """Begin the group of layer ``first``: compute what its layers read of older slots."""
        last, heads = min(first + self._group_size, len(self._routers)), self._heads
        routers = {i: r for i in range(first, last) if (r := self._routers[i]) is not None}
        sources, counts = (
            {i: self._sources[i] for i in routers},
            {i: len(r) for i, r in routers.items()},
        )
        keys, values = self._matrices
        of_keys = of_values = keys.new_zeros((last - first) * heads, last * heads)
        if 2 in counts.values() or keys.dtype != values.dtype:
            of_values = torch.zeros_like(of_keys, dtype=values.dtype)
        group = _Group(first, last, heads, sources, counts, (of_keys, of_values))
        self._group = group
        with torch.no_grad():
            for i, router in routers.items():
                start = 0
                for run in runs_of(sources[i]):
                    columns = slice(start, start + len(run) * heads)
                    for part in (0, 1) if group.is_apart else (0,):
                        weight = router[min(part, len(router) - 1)]
                        group.block(part, range(i, i + 1), run).copy_(weight[:, columns])
                    start = columns.stop
        if self._tape is not None and routers:
            self._tape.groups.append(group)
            with torch.enable_grad():
                self._token = _Begin.apply(
                    self._tape, group, self._slots, self._token, *chain(*routers.values())
                )
        self._sum_older(group)

    def _sum_older(self, group: _Group) -> None:
        older = range(group.first)
        readers = group.readers(group.sources, older)
        # Layers from the first to the last that reads older slots.
        self._span = range(readers[0], readers[-1] + 1) if readers else range(0)
        if readers:
            # No longer than a group: so is what a tile of the sum reads at a time.
            runs = pieces_of(group.read(readers, older), self._group_size)
            self._partials = [
                sum_products(
                    [group.block(part, self._span, run) for run in runs],
                    [matrix[group.rows(run)] for run in runs],
                )
                for part, matrix in enumerate(self._matrices)
            ]

    def _route(self, layer: int, router: Router) -> Slot:
        if self._tape is None:
            return self._complete_route(layer)
        slot: Slot = _Route.apply(
            partial(self._complete_route, layer), self._tape, self._group, layer, self._token
        )
        return slot

    def _complete_route(self, layer: int) -> Slot:
        """Add what a layer reads of its own group's slots, and return its route."""
        group, own = self._group, range(layer, layer + 1)
        runs = runs_of(group.read((layer,), range(group.first, layer + 1)))
        totals: list[Tensor | None] = [None, None]
        if layer in self._span:
            start = (layer - self._span.start) * group.heads
            totals = [matrix[start : start + group.heads] for matrix in self._partials]
        with autocast_disabled(self._matrices[0]):
            key, value = (
                sum_of_runs(
                    [group.block(part, own, run) for run in runs],
                    [matrix[group.rows(run)] for run in runs],
                    total,
                )
                for part, (total, matrix) in enumerate(zip(totals, self._matrices, strict=True))
            )
        return as_slot(key, self._shape), as_slot(value, self._shape)


@dataclass
class _GroupGradients:
    """The gradients of a group's routes in one backward pass, for keys and for values."""

    # [(last - first) * R, C] each, allocated when the first gradient comes.
    matrices: list[Tensor] = field(default_factory=list)
    # The layers whose gradients have come, and slots that the group's routers have read.
    routed: set[int] = field(default_factory=set)
    slots: dict[int, Slot] = field(default_factory=dict)


@dataclass
class _Pass:
    """What the nodes of one forward leave for each other in one backward pass."""

    # By the first layer of a group.
    gradients: dict[int, _GroupGradients] = field(default_factory=dict)
    # The group whose slots are receiving their gradients, its slots that later groups have read,
    # and what these sent.
    receiver: int = -1
    received_by: range = range(0)
    received: list[Tensor] = field(default_factory=list)


class _Tape:
    """What the autograd nodes of one forward share; ``shape`` is that of a key, [B, R, T, E]."""

    def __init__(self, shape: torch.Size) -> None:
        self.shape = shape
        self.groups: list[_Group] = []
        self._passes: dict[int, _Pass] = {}

    def gradients(self, group: _Group) -> _GroupGradients:
        """Return the gradients of a group's routes in the running backward pass."""
        current = of_running_pass(self._passes, _Pass)
        return current.gradients.setdefault(group.first, _GroupGradients())

    def write(self, group: _Group, layer: int, grads: Grads) -> None:
        """Copy the gradient of a route into its rows; one of key and value may be None, zero."""
        gradients = self.gradients(group)
        if not gradients.matrices:
            sizes = (group.last - group.first) * group.heads, self.shape.numel() // group.heads
            gradients.matrices = [weight.new_empty(sizes) for weight in group.weights]
        for matrix, grad in zip(gradients.matrices, grads, strict=True):
            rows = as_slot(matrix[group.own(range(layer, layer + 1))], self.shape)
            rows.zero_() if grad is None else rows.copy_(grad)
        gradients.routed.add(layer)

    def slot_gradient(self, group: _Group, layer: int) -> Grads:
        """Return the gradient of a slot from all routes that have read it in the running pass."""
        current, own = of_running_pass(self._passes, _Pass), self.gradients(group)
        if current.receiver != group.first:
            self._receive(current, group)
        slot, sums = range(layer, layer + 1), None
        if layer in current.received_by:
            start = (layer - current.received_by.start) * group.heads
            sums = [matrix[start : start + group.heads] for matrix in current.received]
        if runs := runs_of(group.readers(own.routed, slot)):
            with autocast_disabled(own.matrices[0]):
                sums = [
                    sum_of_runs(
                        [group.block(part, run, slot).t() for run in runs],
                        [own.matrices[part][group.own(run)] for run in runs],
                        total,
                    )
                    for part, total in enumerate(sums or (None, None))
                ]
        return (None, None) if sums is None else tuple(as_slot(s, self.shape) for s in sums)

    def _receive(self, current: _Pass, group: _Group) -> None:
        """Compute what the slots of a group receive from later groups, and keep it."""
        current.receiver, current.received_by, current.received = group.first, range(0), []
        slots, read, senders = range(group.first, group.last), set[int](), []
        for later in self.groups:
            gradients = current.gradients.get(later.first)
            if later.first > group.first and gradients is not None:
                layers = later.readers(gradients.routed, slots)
                read.update(later.read(layers, slots))
                senders += [(later, run, gradients) for run in runs_of(layers)]
        if senders:
            by = current.received_by = range(min(read), max(read) + 1)
            current.received = [
                sum_products(
                    [later.block(part, run, by).t() for later, run, _ in senders],
                    [g.matrices[part][later.own(run)] for later, run, g in senders],
                )
                for part in (0, 1)
            ]

    def router_gradients(self, group: _Group) -> dict[int, list[Tensor]]:
        """Return the gradients of the routers whose routes the running pass has come by."""
        gradients, heads = self.gradients(group), group.heads
        grads: dict[int, list[Tensor]] = {}
        # In half precision the two products of a router for both are added in float32.
        apart = group.is_apart or group.weights[0].element_size() == 2
        for layers in pieces_of(sorted(gradients.routed), _LAYERS_OF_A_PRODUCT):
            d_routes = [matrix[group.own(layers)] for matrix in gradients.matrices]
            # Of keys and of values, or of both.
            totals = [
                part.new_empty(len(part), layers.stop * heads) for part in d_routes[: 1 + apart]
            ]
            for run in runs_of(group.read(layers, range(layers.stop))):
                slots = (gradients.slots[j] for j in run)
                keys, values = (stack_rows(part, heads) for part in zip(*slots, strict=True))
                columns = [total[:, group.rows(run)] for total in totals]
                torch.mm(d_routes[0], keys.t(), out=columns[0])
                if apart:
                    torch.mm(d_routes[1], values.t(), out=columns[1])
                else:
                    add_product(columns[0], d_routes[1], values.t())
            for layer, *of_layer in zip(layers, *(t.split(heads) for t in totals), strict=True):
                runs = runs_of(group.sources[layer])
                of_weights = [
                    torch.cat([rows[:, group.rows(run)] for run in runs], dim=1)
                    for rows in of_layer
                ]
                if group.counts[layer] < len(of_weights):
                    of_keys, of_values = (
                        part.float() if part.element_size() == 2 else part for part in of_weights
                    )
                    of_weights = [of_keys + of_values]
                grads[layer] = of_weights
        return grads


class _Append(torch.autograd.Function):
    """Keep a slot; in the backward, the identity."""

    @staticmethod
    def forward(ctx: Any, place: Callable[..., Slot], key: Tensor, value: Tensor) -> Slot:
        ctx.set_materialize_grads(False)
        return place(key, value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Grads:
        return None, *grads


class _Link(torch.autograd.Function):
    """Make the token of a slot's routes; in the backward, the gradient that these have for it."""

    @staticmethod
    def forward(
        ctx: Any, tape: _Tape, group: _Group, layer: int, token: Tensor, *slot: Tensor
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.tape, ctx.group, ctx.layer = tape, group, layer
        ctx.save_for_backward(*slot)
        return token.detach()

    @staticmethod
    def backward(ctx: Any, _: Tensor | None) -> Grads:
        refuse_second_derivatives()
        key, value = ctx.saved_tensors
        ctx.tape.gradients(ctx.group).slots[ctx.layer] = key, value
        needed = any(ctx.needs_input_grad[4:])
        grads = ctx.tape.slot_gradient(ctx.group, ctx.layer) if needed else (None, None)
        return None, None, None, None, *grads


class _Begin(torch.autograd.Function):
    """Make the token of a group's first slot; in the backward, the gradients of its routers.

    Of the older slots those are saved that the group reads.
    """

    @staticmethod
    def forward(
        ctx: Any, tape: _Tape, group: _Group, older: Sequence[Slot], token: Tensor, *routers: Tensor
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.tape, ctx.group = tape, group
        ctx.older = group.read(group.sources, range(group.first))
        ctx.save_for_backward(*routers, *chain(*(older[j] for j in ctx.older)))
        return token.detach()

    @staticmethod
    def backward(ctx: Any, _: Tensor | None) -> Grads:
        refuse_second_derivatives()
        group, saved = ctx.group, ctx.saved_tensors
        count = sum(group.counts.values())
        d_weights: list[Tensor | None] = [None] * count
        needs = ctx.needs_input_grad[4:]
        if any(needs):
            slots = ctx.tape.gradients(group).slots
            slots.update(zip(ctx.older, pair_up(saved[count:]), strict=True))
            with autocast_disabled(saved[0]):
                grads = ctx.tape.router_gradients(group)
            of_layers = [
                total
                for layer, n_weights in group.counts.items()
                for total in grads.get(layer, [None] * n_weights)
            ]
            d_weights = [
                total.to(weight.dtype) if need and total is not None else None
                for total, weight, need in zip(of_layers, saved[:count], needs, strict=True)
            ]
        return None, None, None, None, *d_weights


class _Route(torch.autograd.Function):
    """The route of one layer, which reads its slots from the buffer."""

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[[], Slot],
        tape: _Tape,
        group: _Group,
        layer: int,
        token: Tensor,
    ) -> Slot:
        ctx.set_materialize_grads(False)
        ctx.tape, ctx.group, ctx.layer = tape, group, layer
        key, value = compute()
        # Routes of one group share a storage, which each changes in its own rows.
        return key.data, value.data

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Grads:
        refuse_second_derivatives()
        if any(grad is not None for grad in grads):
            ctx.tape.write(ctx.group, ctx.layer, grads)
        return (None,) * 5
