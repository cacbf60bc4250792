"""Routing whose backward computes the gradient of each slot once, for any backend.

A slot is read by the routers of all later layers. Left to autograd, each of these routes would
compute a gradient for the slot, and autograd would add them one after the other. Here the backward
of a route only hands its incoming gradient to the autograd nodes that gather for the slots, and
each of these nodes sums over all its readers when autograd reaches it. Routes read an alias of a
slot, which such a node has made: see ``ops/stored.py``.

An example with L = 3 layers and R = 2 heads. Layers 1 and 2 have routers W_1 [2, 4], W_2 [2, 6]:

    out_1 = W_1[:, 0:2] slot_0 + W_1[:, 2:4] slot_1
    out_2 = W_2[:, 0:2] slot_0 + W_2[:, 2:4] slot_1 + W_2[:, 4:6] slot_2

The backward runs these nodes in this order:

    route 2    adds (W_2[:, 2j:2j+2]^T, d out_2) to the pending gradients of slots j = 0, 1, 2
    gather 2   d slot_2 = W_2[:, 4:6]^T d out_2
    route 1    adds (W_1[:, 2j:2j+2]^T, d out_1) to the pending gradients of slots j = 0, 1
    gather 1   d slot_1 = W_2[:, 2:4]^T d out_2 + W_1[:, 2:4]^T d out_1
    gather 0   d slot_0 = W_2[:, 0:2]^T d out_2 + W_1[:, 0:2]^T d out_1

Autograd guarantees the part of this order that matters: the node that gathers for a slot runs after
the nodes of all routes that read it.

A slot without such a node gets its gradient from the route itself, as autograd would have
it: under re-entrant checkpointing, behind FSDP's wrappers, under torch.compile, and where a caller
does not use ``store``.

Letters: S slots, R heads, M output heads, B batch, T tokens, E head width.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from layermem.ops.route import naive
from layermem.ops.route.differentiable import route_gradients
from layermem.ops.route.naive import Slot
from layermem.ops.stored import readable, set_alias

Grads = tuple[Tensor | None, ...]


class Backend(ABC):
    """The memory layout of slots, and the products that routing and its backward are made of.

    A *flat* slot (or pair of gradients) is a slot in the shape that the products take; each backend
    has its own. A *node* is the autograd node that gathers for a slot, None if there is none. A
    node has a dictionary ``scratch``, in which a backend may keep what several routes share of the
    slot; it is emptied when the gradient of the slot has been computed.
    """

    @abstractmethod
    def lay_out(self, key: Tensor, value: Tensor) -> Slot:
        """Return the same slot, [B, R, T, E], in the memory layout that is fastest to read."""

    @abstractmethod
    def flatten(self, slot: Slot) -> Slot:
        """Return a slot or a pair of gradients flat; a view if it has the backend's layout."""

    @abstractmethod
    def route(self, weight: Tensor, slots: Sequence[Slot], nodes: Sequence[Any]) -> Slot:
        """Compute ``naive.route``; ``nodes[i]`` is the node of ``slots[i]``."""

    @abstractmethod
    def gather(self, columns: Sequence[Tensor], grads: Sequence[Slot], shape: torch.Size) -> Slot:
        """Sum columns[i] [R, M] @ grads[i] (flat), rounded once; [B, R, T, E] like ``shape``."""

    @abstractmethod
    def spread(self, columns: Sequence[Tensor], grads: Slot, shape: torch.Size) -> list[Slot]:
        """Return each columns[i] [R, M] @ grads (flat), [B, R, T, E] like ``shape``."""

    @abstractmethod
    def weight_gradient(
        self, weight: Tensor, grads: Slot, slots: Sequence[Slot], nodes: Sequence[Any]
    ) -> Tensor:
        """Return the gradient of the weight, [M, S R]: grads (flat) times the rows of ``slots``,
        summed over batch, tokens and width."""


def store(backend: Backend, key: Tensor, value: Tensor) -> Slot:
    """Return a slot in the backend's layout, whose gradient is computed once for all readers."""
    traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if traced or not torch.is_grad_enabled():
        return backend.lay_out(key, value)
    slot: Slot = _Store.apply(backend, key, value)
    if slot[0].requires_grad:
        for stored, alias in zip(slot, _Gather.apply(backend, *slot), strict=True):
            set_alias(stored, alias)
    return slot


def route(backend: Backend, slots: Sequence[Slot], weight: Tensor) -> Slot:
    """Compute ``naive.route`` with the products of ``backend``."""
    if torch._C._are_functorch_transforms_active():
        return naive.route(slots, weight)
    if torch.is_grad_enabled():
        tensors = (readable(tensor) for slot in slots for tensor in slot)
        return _Route.apply(backend, weight, *tensors)
    with autocast_disabled(weight):
        return backend.route(weight, slots, [None] * len(slots))


class _Store(torch.autograd.Function):
    """Lay out a slot; in the backward, the identity."""

    @staticmethod
    def forward(ctx: Any, backend: Backend, key: Tensor, value: Tensor) -> Slot:
        ctx.set_materialize_grads(False)
        return backend.lay_out(key, value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Grads:
        return None, *grads


class _Gather(torch.autograd.Function):
    """Return a stored slot's alias; in the backward, sum the gradients that the routes reading it
    have left."""

    @staticmethod
    def forward(ctx: Any, backend: Backend, key: Tensor, value: Tensor) -> Slot:
        ctx.set_materialize_grads(False)
        ctx.backend, ctx.shape, ctx.stored = backend, key.shape, key.grad_fn
        # The slot as the products take it, made once for all readers. Detached, it does not refer
        # to the stored slot, which refers to this node.
        ctx.flat = backend.flatten((key.detach(), value.detach()))
        ctx.scratch = {}
        # What readers leave in the backward: (id of the backward pass, columns, gradients).
        ctx.pending = []
        return key.detach(), value.detach()

    @staticmethod
    def backward(ctx: Any, *direct: Tensor | None) -> Grads:
        """Add the pending gradients to ``direct``, those that came by autograd's own way."""
        current_pass = torch._C._current_graph_task_id()
        # An earlier pass that ended before it reached this node has left gradients of its own.
        pending = [
            (columns, grads) for pass_id, columns, grads in ctx.pending if pass_id == current_pass
        ]
        # All readers have run: what was kept for them is freed.
        ctx.pending, ctx.flat, ctx.scratch = [], None, {}
        if not pending:
            return None, *direct
        columns, grads = zip(*pending, strict=True)
        with autocast_disabled(columns[0]):
            gathered = ctx.backend.gather(columns, grads, ctx.shape)
        return None, *(
            total if grad is None else grad + total
            for grad, total in zip(direct, gathered, strict=True)
        )


class _Route(torch.autograd.Function):
    """``naive.route`` on flat arguments: the weight, then key and value of each slot."""

    @staticmethod
    def forward(ctx: Any, backend: Backend, weight: Tensor, *tensors: Tensor) -> Slot:
        ctx.save_for_backward(weight, *tensors)
        slots = _pair_up(tensors)
        ctx.backend = backend
        ctx.nodes = [_find_node(slot, backend) for slot in slots]
        with autocast_disabled(weight):
            return backend.route(weight, slots, ctx.nodes)

    @staticmethod
    def backward(ctx: Any, d_key: Tensor, d_value: Tensor) -> Grads:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return None, *_differentiable_gradients(ctx, (d_key, d_value))
        weight, *tensors = ctx.saved_tensors
        _, needs_weight, *needs = ctx.needs_input_grad
        backend, nodes, shape = ctx.backend, ctx.nodes, tensors[0].shape
        d_weight = None
        with autocast_disabled(weight):
            grads = backend.flatten((d_key, d_value))
            if needs_weight:
                d_weight = backend.weight_gradient(weight, grads, _pair_up(tensors), nodes)
            columns = _transposed_columns(weight, shape[1], d_key.dtype)
            d_slots = _immediate_gradients(backend, columns, grads, nodes, needs, shape)
        pass_id = torch._C._current_graph_task_id() if any(nodes) else None
        for node, column in zip(nodes, columns, strict=True):
            if node:
                node.pending.append((pass_id, column, grads))
        return None, d_weight, *d_slots


def _immediate_gradients(
    backend: Backend,
    columns: Sequence[Tensor],
    grads: Slot,
    nodes: Sequence[Any],
    needs: Sequence[bool],
    shape: torch.Size,
) -> list[Tensor | None]:
    """Return the gradients of the slots without a node, flat like ``needs``, None for the rest."""
    d_slots: list[Tensor | None] = [None] * len(needs)
    without_node = [i for i, node in enumerate(nodes) if not node and any(needs[2 * i : 2 * i + 2])]
    if without_node:
        spread = backend.spread([columns[i] for i in without_node], grads, shape)
        for i, pair in zip(without_node, spread, strict=True):
            for k in (0, 1):
                d_slots[2 * i + k] = pair[k] if needs[2 * i + k] else None
    return d_slots


_GatherNode = _Gather._backward_cls


def _find_node(slot: Slot, backend: Backend) -> Any | None:
    """Return the autograd node that gathers for a slot; None if there is none."""
    if torch.compiler.is_compiling():
        return None
    node: Any = slot[0].grad_fn
    gathers = isinstance(node, _GatherNode) and slot[1].grad_fn is node
    # Key and value in their places: in a pair such as (value, key) gradients go to other tensors.
    gathers = gathers and slot[0].output_nr == 0 and slot[1].output_nr == 1
    return node if gathers and node.backend is backend else None


def _transposed_columns(weight: Tensor, heads: int, dtype: torch.dtype) -> list[Tensor]:
    """Return, for each slot, its columns of the weight, transposed to [R, M]: the matrix that
    takes a gradient of the output back to the slot."""
    return [block.t() for block in weight.to(dtype).split(heads, dim=1)]


def _differentiable_gradients(ctx: Any, grads: Slot) -> Grads:
    """Return gradients that can themselves be differentiated (``create_graph=True``)."""
    weight, *tensors = ctx.saved_tensors
    d_weight, d_slots = route_gradients(_pair_up(tensors), weight, *grads)
    gradients = (d_weight, *(grad for slot in d_slots for grad in slot))
    needs = ctx.needs_input_grad[1:]
    return tuple(grad if need else None for grad, need in zip(gradients, needs, strict=True))


def autocast_disabled(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context without autocast, which would round float32 slots to half precision."""
    kind = tensor.device.type
    if torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def _pair_up(tensors: Sequence[Tensor]) -> list[Slot]:
    """Return (key, value, key, value, ...) as pairs."""
    return list(zip(tensors[::2], tensors[1::2], strict=True))
