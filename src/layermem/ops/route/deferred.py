"""Routing with the gradient of a slot computed once, whatever the products are made of.

Autograd would add one gradient per later layer to every slot. Instead the backward of a route
leaves its own incoming gradients, as they are, with the slots it read; a slot gathers them all,
each through the columns of its router, once autograd reaches it. Autograd's order makes this right:
a slot's node runs after the nodes of all its readers.

Slots that were not stored here (under re-entrant checkpointing, behind FSDP's wrappers, under
torch.compile, in a caller's own loop) get an ordinary gradient from the same code.

Letters: S slots, R heads, M heads that come out, B batch, T tokens, E head width.
It does not know: how the products are computed, layers, rope, caches, where the weight comes from.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from layermem.ops.route import naive
from layermem.ops.route.naive import Slot

Grads = tuple[Tensor | None, ...]


class Products(ABC):
    """How slots lie in memory, and the sums over them that routing is made of.

    A *flat* slot is whatever form the sums take it in; its shape may be the products' own. A node
    is where a slot was stored, None where that is not known; it keeps what products note there
    until its gradient has been taken.
    """

    @abstractmethod
    def lay(self, key: Tensor, value: Tensor) -> Slot:
        """Return the same slot, [B, R, T, E], laid down as it is read fastest."""

    @abstractmethod
    def flat(self, slot: Slot) -> Slot:
        """Return a slot or a pair of gradients flat: a view, where it was laid."""

    @abstractmethod
    def route(self, weight: Tensor, slots: Sequence[Slot], nodes: Sequence[Any]) -> Slot:
        """As ``naive.route``; ``nodes[i]`` is where ``slots[i]`` was stored."""

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
        """Sum grads (flat) times every row of ``slots`` over batch, tokens and width: [M, S R]."""


def store(products: Products, key: Tensor, value: Tensor) -> Slot:
    """Lay a slot down, to be read with a deferred backward."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return _Store.apply(products, key, value)
    return products.lay(key, value)


def route(products: Products, slots: Sequence[Slot], weight: Tensor) -> Slot:
    """As ``naive.route``."""
    if torch._C._are_functorch_transforms_active():
        return naive.route(slots, weight)
    if torch.is_grad_enabled():
        return _Route.apply(products, weight, *(tensor for slot in slots for tensor in slot))
    with exact(weight):
        return products.route(weight, slots, [None] * len(slots))


class _Store(torch.autograd.Function):
    """Lay a slot down; on the way back, gather what the routes that read it have left."""

    @staticmethod
    def forward(ctx: Any, products: Products, key: Tensor, value: Tensor) -> Slot:
        ctx.set_materialize_grads(False)
        ctx.products, ctx.shape = products, key.shape
        slot = products.lay(key, value)
        # The slot as its readers want it, made once; and what products note of it.
        ctx.flat, ctx.notes = products.flat(slot), {}
        # What readers leave: (backward pass, columns, their gradients).
        ctx.left = []
        return slot

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> Grads:
        now = torch._C._current_graph_task_id()
        left = [entry[1:] for entry in ctx.left if entry[0] == now]
        # A pass that ended elsewhere has no use for what it left, and the slot is read no more.
        ctx.left, ctx.flat, ctx.notes = [], None, {}
        if not left:
            return None, *given
        columns, grads = zip(*left, strict=True)
        with exact(columns[0]):
            gathered = ctx.products.gather(columns, grads, ctx.shape)
        return None, *(
            more if grad is None else grad + more
            for grad, more in zip(given, gathered, strict=True)
        )


class _Route(torch.autograd.Function):
    """``naive.route`` on flat arguments: the weight, then keys and values in turn."""

    @staticmethod
    def forward(ctx: Any, products: Products, weight: Tensor, *tensors: Tensor) -> Slot:
        ctx.save_for_backward(weight, *tensors)
        slots = _pairs(tensors)
        ctx.products = products
        ctx.nodes = [_store_node(slot, products) for slot in slots]
        with exact(weight):
            return products.route(weight, slots, ctx.nodes)

    @staticmethod
    def backward(ctx: Any, d_key: Tensor, d_value: Tensor) -> Grads:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return None, *_differentiable_gradients(ctx, (d_key, d_value))
        weight, *tensors = ctx.saved_tensors
        _, needs_weight, *needs = ctx.needs_input_grad
        products, shape = ctx.products, tensors[0].shape
        # Whoever looks at the gradient of a slot's tensor gets it from here, by the ordinary way.
        nodes = [
            None if _is_watched(slot) else node
            for slot, node in zip(_pairs(tensors), ctx.nodes, strict=True)
        ]
        d_weight = None
        with exact(weight):
            grads = products.flat((d_key, d_value))
            if needs_weight:
                d_weight = products.weight_gradient(weight, grads, _pairs(tensors), nodes)
            columns = _columns(weight, shape[1], d_key.dtype)
            d_slots = _ordinary(products, columns, grads, nodes, needs, shape)
        now = torch._C._current_graph_task_id() if any(nodes) else None
        for node, column in zip(nodes, columns, strict=True):
            if node:
                node.left.append((now, column, grads))
        return None, d_weight, *d_slots


def _ordinary(
    products: Products,
    columns: Sequence[Tensor],
    grads: Slot,
    nodes: Sequence[Any],
    needs: Sequence[bool],
    shape: torch.Size,
) -> list[Tensor | None]:
    """Return the gradients, flat like ``needs``, of the slots that no node will gather."""
    d_slots: list[Tensor | None] = [None] * len(needs)
    mine = [i for i, node in enumerate(nodes) if not node and any(needs[2 * i : 2 * i + 2])]
    if mine:
        spread = products.spread([columns[i] for i in mine], grads, shape)
        for i, pair in zip(mine, spread, strict=True):
            for k in (0, 1):
                d_slots[2 * i + k] = pair[k] if needs[2 * i + k] else None
    return d_slots


_StoreNode = _Store._backward_cls


def _store_node(slot: Slot, products: Products) -> Any | None:
    """Return the autograd node that stored a slot, if one did and nothing has come between."""
    if torch.compiler.is_compiling():
        return None
    node: Any = slot[0].grad_fn
    ours = isinstance(node, _StoreNode) and slot[1].grad_fn is node
    # Key and value as they were stored: another pair of the same tensors has other gradients.
    ours = ours and slot[0].output_nr == 0 and slot[1].output_nr == 1
    return node if ours and node.products is products else None


def _is_watched(slot: Slot) -> bool:
    """Whether somebody keeps or hooks the gradient of a stored tensor, which a node goes round."""
    if torch.compiler.is_compiling():
        return False
    return any(tensor.retains_grad or tensor._backward_hooks for tensor in slot)


def _columns(weight: Tensor, heads: int, dtype: torch.dtype) -> list[Tensor]:
    """Each slot's columns of the weight, transposed: [R, M] takes a gradient back to the slot."""
    return [block.t() for block in weight.to(dtype).split(heads, dim=1)]


def _differentiable_gradients(ctx: Any, grads: Slot) -> Grads:
    """The gradients as functions of everything, for whoever differentiates twice."""
    weight, *tensors = ctx.saved_tensors
    needs = ctx.needs_input_grad[1:]
    wanted = [t for t, need in zip(ctx.saved_tensors, needs, strict=True) if need]
    out = naive.route(_pairs(tensors), weight)
    found = iter(torch.autograd.grad(out, wanted, grads, create_graph=True))
    return tuple(next(found) if need else None for need in needs)


def exact(tensor: Tensor) -> AbstractContextManager[Any]:
    """Keep autocast out: it would round float32 slots."""
    kind = tensor.device.type
    if torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def _pairs(tensors: Sequence[Tensor]) -> list[Slot]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))
