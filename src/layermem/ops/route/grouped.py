"""The backward of routing in groups: each gradient in products as wide as a group of layers.

The backward of a route only copies its incoming gradient into the rows of its group's matrix
D = [d out_a; ...; d out_(b-1)], [(b - a) R, C] for the layers a to b - 1. What is computed from it:

    begin of the group    after all of its routes. The gradients of its routers in one product,
                          D @ [slot_0; ...; slot_(b-1)]^T, of which router l has the first
                          (l + 1) R columns
    slot j of the group   after all of its readers. Its gradient from later groups is computed for
                          the whole group at once, by its first slot to come:
                          sum over later groups g of W_g[:, slots a to b - 1]^T @ D_g
                          To this each slot adds what its own group sends, W[:, slot j]^T @ D

where W_g has the weights of a group's routers below each other, zero for slots that a router does
not read. Autograd keeps this order, because a group's begin is an input of its routes (as a
*token*, a tensor without memory) and slots are inputs of the begins and routes that read them.

Matrices D are kept by backward pass, until the pass ends, so that partial, repeated and nested
passes do not mix. With ``create_graph=True`` gradients are those of ``naive.route`` instead.

Letters: R heads, B batch, T tokens, E head width, C = B T E.
It does not know: how a forward computes its routes, layers, rope, caches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from layermem.ops.route.differentiable import route_gradients
from layermem.ops.route.naive import Slot
from layermem.ops.route.products import add_product, stack_rows, sum_products, unflatten

Grads = tuple[Tensor | None, ...]


@dataclass(frozen=True, kw_only=True)
class Group:
    """The layers ``first`` to ``last`` - 1 and their routers' weights below each other."""

    first: int
    last: int
    # [(last - first) * R, last * R]; zero where a layer has no router or does not read a slot.
    stacked: Tensor


class Tape:
    """What the autograd nodes of one forward share."""

    def __init__(self, shape: torch.Size) -> None:
        # That of a key or a value, [B, R, T, E].
        self.shape = shape
        self.groups: list[Group] = []
        self._passes: dict[int, _Pass] = {}

    def current_pass(self) -> "_Pass":
        """Return what the running backward pass has left so far; it is dropped when that ends."""
        pass_id = torch._C._current_graph_task_id()
        if pass_id not in self._passes:
            self._passes[pass_id] = _Pass()

            def drop() -> None:
                self._passes.pop(pass_id, None)

            torch.autograd.Variable._execution_engine.queue_callback(drop)
        return self._passes[pass_id]

    def slot_gradient(self, group: Group, layer: int) -> Slot | None:
        """Return the gradient of a slot from all routes that have read it in the running pass."""
        current, heads = self.current_pass(), self.shape[1]
        received = self._receive(group, current)
        own = current.gradients.get(group.first)
        start = (layer - group.first) * heads
        if own is None:
            if received is None:
                return None
            key, value = (matrix[start : start + heads] for matrix in received)
        else:
            own.fill_missing(layer)
            weight = group.stacked[start:, layer * heads : (layer + 1) * heads].t()
            key, value = (
                torch.mm(weight, matrix[start:])
                if received is None
                else add_product(received[i][start : start + heads], weight, matrix[start:])
                for i, matrix in enumerate(own.matrices)
            )
        return unflatten(key, self.shape), unflatten(value, self.shape)

    def _receive(self, group: Group, current: "_Pass") -> Sequence[Tensor] | None:
        """Return the gradients of all slots of a group from later groups; None if there are none.

        They are computed once in a pass, for the first slot of the group that asks.
        """
        if current.receiver is not group:
            columns = slice(group.first * self.shape[1], group.last * self.shape[1])
            later = [
                (other.stacked[:, columns].t(), current.gradients[other.first].matrices)
                for other in self.groups
                if other.first > group.first and other.first in current.gradients
            ]
            weights = [weight for weight, _ in later]
            current.receiver, current.received = group, []
            for i in (0, 1) if later else ():
                parts = [matrices[i] for _, matrices in later]
                current.received.append(sum_products(weights, parts))
        return current.received or None


@dataclass
class _Pass:
    """What the nodes of one forward leave for each other in one backward pass."""

    # By the first layer of a group.
    gradients: "dict[int, _Gradients]" = field(default_factory=dict)
    # The gradients of the slots of the group ``receiver`` from later groups.
    receiver: Group | None = None
    received: list[Tensor] = field(default_factory=list)


class _Gradients:
    """The gradients of the outputs of a group's routes: matrices [(b - a) R, C]."""

    def __init__(self, group: Group, shape: torch.Size, like: Tensor) -> None:
        self.group, self.shape = group, shape
        rows = (group.last - group.first) * shape[1]
        columns = shape.numel() // shape[1]
        self.matrices = [like.new_empty(rows, columns) for _ in range(2)]
        self.routed: set[int] = set()
        self.missing = set(range(group.first, group.last))
        # The slots of the group that its routes have read.
        self.own_slots: Sequence[Slot] = ()

    def write(self, layer: int, d_key: Tensor | None, d_value: Tensor | None) -> None:
        """Copy the gradient of a route's output into its rows."""
        for matrix, grad in zip(self.matrices, (d_key, d_value), strict=True):
            rows = unflatten(self._rows(matrix, layer), self.shape)
            rows.zero_() if grad is None else rows.copy_(grad)
        self.routed.add(layer)
        self.missing.discard(layer)

    def fill_missing(self, start: int) -> None:
        """Set the rows of layers from ``start`` on that the pass has not reached to zero."""
        for layer in [layer for layer in self.missing if layer >= start]:
            for matrix in self.matrices:
                self._rows(matrix, layer).zero_()
            self.missing.discard(layer)

    def _rows(self, matrix: Tensor, layer: int) -> Tensor:
        heads = self.shape[1]
        start = (layer - self.group.first) * heads
        return matrix[start : start + heads]


def append(tape: Tape, group: Group, layer: int, kept: Slot, key: Tensor, value: Tensor) -> Slot:
    """Copy a slot into ``kept`` and return it, with a gradient that comes from the tape."""
    slot: Slot = _Append.apply(tape, group, layer, kept, key, value)
    return slot


def begin(
    tape: Tape, group: Group, weights: Sequence[Tensor | None], older: Sequence[Slot]
) -> list[Tensor | None]:
    """Announce a group, with the weights of its layers; return the token of each layer's route."""
    tape.groups.append(group)
    routers = [weight for weight in weights if weight is not None]
    if not routers:
        return [None] * len(weights)
    tensors = (tensor for slot in older for tensor in slot)
    layers = [group.first + i for i, weight in enumerate(weights) if weight is not None]
    tokens = iter(_Begin.apply(tape, group, layers, *routers, *tensors))
    return [None if weight is None else next(tokens) for weight in weights]


def route(
    compute: Callable[[], Slot],
    tape: Tape,
    group: Group,
    layer: int,
    token: Tensor | None,
    weight: Tensor,
    own_slots: Sequence[Slot],
) -> Slot:
    """Return what ``compute`` returns: the route of ``layer``, which has the group's slots so far
    in ``own_slots``."""
    tensors = (tensor for slot in own_slots for tensor in slot)
    slot: Slot = _Route.apply(compute, tape, group, layer, token, weight, *tensors)
    return slot


class _Append(torch.autograd.Function):
    """Keep a slot; in the backward, its gradient from all of its readers."""

    @staticmethod
    def forward(
        ctx: Any, tape: Tape, group: Group, layer: int, kept: Slot, key: Tensor, value: Tensor
    ) -> Slot:
        ctx.set_materialize_grads(False)
        ctx.tape, ctx.group, ctx.layer = tape, group, layer
        # All slots share one storage. Of ``data`` each has its own version counter, so that writing
        # a later slot does not count as a change of those that autograd has saved. Of views torch
        # refuses changes in place, which the tape would miss.
        return kept[0].data.copy_(key)[:], kept[1].data.copy_(value)[:]

    @staticmethod
    def backward(ctx: Any, *direct: Tensor | None) -> Grads:
        """Add the gradient from the tape to ``direct``, which came by autograd's own way."""
        total = None if torch.is_grad_enabled() else ctx.tape.slot_gradient(ctx.group, ctx.layer)
        if total is None:
            return None, None, None, None, *direct
        sums = (
            grad if other is None else grad + other
            for grad, other in zip(total, direct, strict=True)
        )
        return None, None, None, None, *sums


class _Begin(torch.autograd.Function):
    """Make tokens, [2, B, R, T, E] without memory; in the backward, the routers' gradients.

    The tensors are the routers' weights, of the group's ``layers`` in this order, and the keys and
    values of older slots.
    """

    @staticmethod
    def forward(
        ctx: Any, tape: Tape, group: Group, layers: Sequence[int], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.tape, ctx.group, ctx.layers = tape, group, layers
        ctx.save_for_backward(*tensors)
        return tuple(group.stacked.new_zeros(()).expand(2, *tape.shape) for _ in layers)

    @staticmethod
    def backward(ctx: Any, *d_tokens: Tensor | None) -> Grads:
        layers, needs = ctx.layers, ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():
            return None, None, None, *_differentiable_begin(ctx, d_tokens)
        gradients = ctx.tape.current_pass().gradients.get(ctx.group.first)
        d_tensors: list[Tensor | None] = [None] * len(needs)
        if gradients is not None:
            gradients.fill_missing(ctx.group.first)
            weights, older = _split(ctx.saved_tensors, len(layers))
            if any(needs[: len(layers)]):
                total = _weight_gradient(gradients, older)
                heads = ctx.tape.shape[1]
                for i, (layer, weight) in enumerate(zip(layers, weights, strict=True)):
                    if needs[i] and layer in gradients.routed:
                        start = (layer - ctx.group.first) * heads
                        grad = total[start : start + heads, : (layer + 1) * heads]
                        d_tensors[i] = grad.to(weight.dtype).contiguous()
        return None, None, None, *d_tensors


class _Route(torch.autograd.Function):
    """The route of one layer; its tensors are keys and values of its group's slots so far."""

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[[], Slot],
        tape: Tape,
        group: Group,
        layer: int,
        token: Tensor | None,
        weight: Tensor,
        *tensors: Tensor,
    ) -> Slot:
        ctx.set_materialize_grads(False)
        ctx.tape, ctx.group, ctx.layer = tape, group, layer
        ctx.save_for_backward(weight, *tensors)
        key, value = compute()
        # Routes of one group share a storage, which each changes in its own rows: see ``_Append``.
        return key.data, value.data

    @staticmethod
    def backward(ctx: Any, d_key: Tensor | None, d_value: Tensor | None) -> Grads:
        nothing = (None,) * 4
        if d_key is None and d_value is None:
            return *nothing, *(None for _ in ctx.needs_input_grad[4:])
        if torch.is_grad_enabled():
            return *nothing, *_differentiable_route(ctx, d_key, d_value)
        _, *tensors = ctx.saved_tensors
        tape, group = ctx.tape, ctx.group
        gradients = tape.current_pass().gradients
        if group.first not in gradients:
            gradients[group.first] = _Gradients(group, tape.shape, tensors[0])
        gradients[group.first].write(ctx.layer, d_key, d_value)
        # The group's begin needs all of its slots that were read: those of the last route to read.
        if len(tensors) > 2 * len(gradients[group.first].own_slots):
            gradients[group.first].own_slots = _pair_up(tensors)
        return *nothing, *(None for _ in ctx.needs_input_grad[4:])


def _weight_gradient(gradients: _Gradients, older: Sequence[Slot]) -> Tensor:
    """Return the gradients of a group's routers below each other, [(b - a) R, slots * R]."""
    slots = (*older, *gradients.own_slots)
    keys, values = (stack_rows(part) for part in zip(*slots, strict=True))
    d_keys, d_values = gradients.matrices
    return add_product(torch.mm(d_keys, keys.t()), d_values, values.t())


def _differentiable_begin(ctx: Any, d_tokens: Grads) -> Grads:
    """Return gradients of older slots, and of the weights' columns for them, with a graph."""
    weights, older = _split(ctx.saved_tensors, len(ctx.layers))
    d_weights: list[Tensor | None] = [None] * len(weights)
    d_older: list[Tensor | None] = [None] * (2 * len(older))
    columns = ctx.group.first * ctx.tape.shape[1]
    for i, (weight, d_token) in enumerate(zip(weights, d_tokens, strict=True)):
        if older and d_token is not None:
            d_weight, d_slots = route_gradients(older, weight[:, :columns], *d_token.unbind())
            d_weights[i] = nn.functional.pad(d_weight, (0, weight.shape[1] - columns))
            grads = (grad for slot in d_slots for grad in slot)
            d_older = [
                grad if total is None else total + grad
                for total, grad in zip(d_older, grads, strict=True)
            ]
    return _select((*d_weights, *d_older), ctx.needs_input_grad[3:])


def _differentiable_route(ctx: Any, d_key: Tensor | None, d_value: Tensor | None) -> Grads:
    """Return the gradients of the token (what the group's begin needs), of the weight's columns for
    the group's slots and of these slots, with a graph."""
    weight, *tensors = ctx.saved_tensors
    columns = ctx.group.first * ctx.tape.shape[1]
    d_key = torch.zeros_like(tensors[0]) if d_key is None else d_key
    d_value = torch.zeros_like(tensors[1]) if d_value is None else d_value
    d_weight, d_slots = route_gradients(_pair_up(tensors), weight[:, columns:], d_key, d_value)
    d_weight = nn.functional.pad(d_weight, (columns, 0))
    d_tensors = (grad for slot in d_slots for grad in slot)
    token = torch.stack((d_key, d_value))
    return _select((token, d_weight, *d_tensors), ctx.needs_input_grad[4:])


def _select(grads: Grads, needs: Sequence[bool]) -> Grads:
    """Return the gradients that are needed, None for the others."""
    return tuple(grad if need else None for grad, need in zip(grads, needs, strict=True))


def _split(tensors: Sequence[Tensor], n_weights: int) -> tuple[Sequence[Tensor], list[Slot]]:
    """Return the weights and the slots of ``_Begin``."""
    return tensors[:n_weights], _pair_up(tensors[n_weights:])


def _pair_up(tensors: Sequence[Tensor]) -> list[Slot]:
    """Return (key, value, key, value, ...) as pairs."""
    return list(zip(tensors[::2], tensors[1::2], strict=True))
