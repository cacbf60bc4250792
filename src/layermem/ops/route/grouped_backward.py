"""The backward of routing in groups: each gradient in products as wide as a group of layers.

The backward of a route only keeps its incoming gradient, as rows of its group's matrix
D = [d out_a; ...; d out_(b-1)], [(b - a) R, C] for the layers a to b - 1. What is computed from it:

    begin of the group    after all of its routes. The gradients of its routers in one product,
                          D @ [slot_0; ...; slot_(b-1)]^T, of which router l has the first
                          (l + 1) R columns
    slot j of the group   after all of its readers, which read an alias of it (``ops/stored.py``).
                          Its gradient from later groups is computed for the whole group at once,
                          by its first slot to come:
                          sum over later groups g of W_g[:, slots a to b - 1]^T @ D_g
                          To this each slot adds what its own group sends, W[:, slot j]^T @ D

where W_g has the weights of a group's routers below each other, zero for slots that a router does
not read. Autograd keeps this order, because a group's begin is an input of its routes (as a
*token*, a tensor without memory) and slots are inputs of the begins and routes that read them.

D is kept by backward pass, until the pass ends (``GroupGradients``), so that partial, repeated and
nested passes do not mix. With ``create_graph=True`` gradients are those of ``naive.route`` instead.

Letters: R heads, B batch, T tokens, E head width, C = B T E.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from layermem.ops.route.differentiable import route_gradients
from layermem.ops.route.naive import Slot

Grads = tuple[Tensor | None, ...]


@dataclass(frozen=True, kw_only=True)
class Group:
    """The layers ``first`` to ``last`` - 1 and their routers' weights below each other."""

    first: int
    last: int
    # [(last - first) * R, last * R]; zero where a layer has no router or does not read a slot.
    stacked: Tensor


class GroupGradients(ABC):
    """The gradients of the outputs of a group's routes in one backward pass, and their products.

    ``shape`` is that of a key or a value, [B, R, T, E].
    """

    def __init__(self, group: Group, shape: torch.Size) -> None:
        self.group, self.shape = group, shape
        # The layers whose routes the pass has come by.
        self.routed: set[int] = set()
        # The slots of the group that its routes have read.
        self.own_slots: Sequence[Slot] = ()

    @abstractmethod
    def write(self, layer: int, d_key: Tensor | None, d_value: Tensor | None) -> None:
        """Keep the gradient of the output of a layer's route; one of the two may be None, zero."""

    @abstractmethod
    def receive(self, later: Sequence[Self]) -> None:
        """Compute what the slots of this group receive from later groups, and keep it."""

    @abstractmethod
    def forget_received(self) -> None:
        """Free what ``receive`` has kept."""

    @abstractmethod
    def slot_gradient(self, layer: int) -> Slot | None:
        """Return what a slot has received and what its own group sends; None if it is nothing."""

    @abstractmethod
    def router_gradients(self, slots: Sequence[Slot]) -> Tensor:
        """Return the gradients of the group's routers below each other, [(b - a) R, slots * R]."""


class Tape:
    """What the autograd nodes of one forward share."""

    def __init__(self, shape: torch.Size, new_gradients: type[GroupGradients]) -> None:
        # That of a key or a value, [B, R, T, E].
        self.shape = shape
        self.groups: list[Group] = []
        self._new_gradients = new_gradients
        self._passes: dict[int, _Pass] = {}

    def gradients(self, group: Group) -> GroupGradients:
        """Return the gradients of a group in the running backward pass."""
        gradients = self._current_pass().gradients
        if group.first not in gradients:
            gradients[group.first] = self._new_gradients(group, self.shape)
        return gradients[group.first]

    def _current_pass(self) -> "_Pass":
        """Return what the running backward pass has left so far; it is dropped when that ends."""
        pass_id = torch._C._current_graph_task_id()
        if pass_id not in self._passes:
            self._passes[pass_id] = _Pass()

            def drop() -> None:
                self._passes.pop(pass_id, None)

            torch.autograd.Variable._execution_engine.queue_callback(drop)
        return self._passes[pass_id]

    def slot_gradient(self, group: Group, layer: int) -> Slot | None:
        """Return the gradient of a slot from all routes that have read it in the running pass.

        What later groups send is computed once in a pass, for the first slot of a group to ask.
        """
        own, current = self.gradients(group), self._current_pass()
        if current.receiver is not own:
            if current.receiver is not None:
                current.receiver.forget_received()
            current.receiver = own
            later = [
                current.gradients[other.first]
                for other in self.groups
                if other.first > group.first and other.first in current.gradients
            ]
            own.receive([gradients for gradients in later if gradients.routed])
        return own.slot_gradient(layer)


@dataclass
class _Pass:
    """What the nodes of one forward leave for each other in one backward pass."""

    # By the first layer of a group.
    gradients: dict[int, GroupGradients] = field(default_factory=dict)
    # The group whose slots are receiving their gradients.
    receiver: GroupGradients | None = None


def append(
    place: Callable[[int, Tensor, Tensor], Slot],
    tape: Tape,
    group: Group,
    layer: int,
    key: Tensor,
    value: Tensor,
) -> tuple[Slot, Slot]:
    """Return what ``place`` returns, a slot as it is kept, and its alias, which is what ``begin``
    and ``route`` take: its gradient comes from the tape."""
    slot: Slot = _Append.apply(place, layer, key, value)
    alias: Slot = _Gather.apply(tape, group, layer, *slot)
    return slot, alias


def begin(
    tape: Tape, group: Group, weights: Sequence[Tensor | None], older: Sequence[Slot]
) -> list[Tensor | None]:
    """Announce a group, with the weights of its layers and the aliases of older slots; return the
    token of each layer's route."""
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
    """Return what ``compute`` returns: the route of ``layer``. ``own_slots`` are the aliases of the
    group's slots so far."""
    tensors = (tensor for slot in own_slots for tensor in slot)
    slot: Slot = _Route.apply(compute, tape, group, layer, token, weight, *tensors)
    return slot


class _Append(torch.autograd.Function):
    """Keep a slot; in the backward, the identity."""

    @staticmethod
    def forward(
        ctx: Any,
        place: Callable[[int, Tensor, Tensor], Slot],
        layer: int,
        key: Tensor,
        value: Tensor,
    ) -> Slot:
        ctx.set_materialize_grads(False)
        return place(layer, key, value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Grads:
        return None, None, *grads


class _Gather(torch.autograd.Function):
    """Return the alias of a slot; in the backward, its gradient from all of its readers."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, group: Group, layer: int, key: Tensor, value: Tensor) -> Slot:
        ctx.set_materialize_grads(False)
        ctx.tape, ctx.group, ctx.layer = tape, group, layer
        return key.detach(), value.detach()

    @staticmethod
    def backward(ctx: Any, *direct: Tensor | None) -> Grads:
        """Add the gradient from the tape to ``direct``, which came by autograd's own way."""
        total = None if torch.is_grad_enabled() else ctx.tape.slot_gradient(ctx.group, ctx.layer)
        if total is None:
            return None, None, None, *direct
        sums = (
            grad if other is None else grad + other
            for grad, other in zip(total, direct, strict=True)
        )
        return None, None, None, *sums


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
        gradients = ctx.tape.gradients(ctx.group)
        d_tensors: list[Tensor | None] = [None] * len(needs)
        weights, older = _split(ctx.saved_tensors, len(layers))
        if gradients.routed and any(needs[: len(layers)]):
            total = gradients.router_gradients((*older, *gradients.own_slots))
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
        gradients = ctx.tape.gradients(ctx.group)
        gradients.write(ctx.layer, d_key, d_value)
        gradients.routed.add(ctx.layer)
        # The group's begin needs all of its slots that were read: those of the last route to read.
        if len(tensors) > 2 * len(gradients.own_slots):
            gradients.own_slots = _pair_up(tensors)
        return *nothing, *(None for _ in ctx.needs_input_grad[4:])


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
