"""Routing on packed slots, with the gradient of a slot computed once.

Three ideas, each against a cost of the naive way:

* **Packed slots.** A slot lies head major, [R, B T E], from the moment it is stored. A route is a
  sum of plain matrix products over slots, ``out += W[:, slot] @ slot``: nothing is concatenated,
  nothing is copied per layer, and what autograd keeps is the slots themselves, once.
* **A deferred backward.** Autograd would add one gradient per later layer to every slot. Instead
  the backward of a route leaves its own incoming gradients, as they are, with the slots it read; a
  slot contracts them all with the columns of the later routers once autograd reaches it.
* **Router gradients** are products of packed gradients and packed slots over B T E at once.

Slots that were not stored here (under re-entrant checkpointing, behind FSDP's wrappers, under
torch.compile, in a caller's own loop) get an ordinary gradient from the same code.

Letters: S slots, R heads, B batch, T tokens, E head width, C = B T E columns.
It does not know: layers, rope, caches, where the weight comes from.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from layermem.ops.route import naive
from layermem.ops.route.naive import Slot

# Up to this many numbers in a key, as at decoding, time goes into launches: one product is best.
_FEW = 16384
# Slots below each other in one product of the router's gradient.
_GROUP = 4

Grads = tuple[Tensor | None, ...]


def store(key: Tensor, value: Tensor) -> Slot:
    """Lay a slot down packed, to be read with a deferred backward."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return _Store.apply(key, value)
    return (key, value) if key.numel() <= _FEW else pack(key, value)


def pack(key: Tensor, value: Tensor) -> Slot:
    """Lay a slot down packed: [B, R, T, E] in and out, head major in memory."""
    return _pack(key), _pack(value)


def route(slots: Sequence[Slot], weight: Tensor) -> Slot:
    """As ``naive.route``."""
    if torch._C._are_functorch_transforms_active():
        return naive.route(slots, weight)
    if torch.is_grad_enabled():
        return _Route.apply(weight, *(tensor for slot in slots for tensor in slot))
    return _routed(slots, weight)


class _Store(torch.autograd.Function):
    """Pack a slot; on the way back, gather what the routes that read it have left."""

    @staticmethod
    def forward(ctx: Any, key: Tensor, value: Tensor) -> Slot:
        ctx.set_materialize_grads(False)
        ctx.shape = key.shape
        slot = pack(key, value)
        # The slot as its readers want it, made once.
        ctx.flat = _flat(slot)
        # The slot and those before it in its group, below each other; made in the backward.
        ctx.group = None
        # What readers leave: (backward pass, transposed columns, their gradients).
        ctx.left = []
        return slot

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> Grads:
        now = torch._C._current_graph_task_id()
        left = [entry[1:] for entry in ctx.left if entry[0] == now]
        # A pass that ended elsewhere has no use for what it left, and the slot is read no more.
        ctx.left, ctx.flat, ctx.group = [], None, None
        if not left:
            return given
        columns, grads = zip(*left, strict=True)
        with _exact(grads[0][0]):
            gathered = [
                _unpack(_contract(columns, part), ctx.shape) for part in zip(*grads, strict=True)
            ]
        return tuple(
            more if grad is None else grad + more
            for grad, more in zip(given, gathered, strict=True)
        )


class _Route(torch.autograd.Function):
    """``naive.route`` on flat arguments: the weight, then keys and values in turn."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, *tensors: Tensor) -> Slot:
        ctx.save_for_backward(weight, *tensors)
        slots = _pairs(tensors)
        ctx.nodes = list(map(_store_node, slots))
        return _routed(slots, weight)

    @staticmethod
    def backward(ctx: Any, d_key: Tensor, d_value: Tensor) -> Grads:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return _differentiable_gradients(ctx, (d_key, d_value))
        weight, *tensors = ctx.saved_tensors
        needs_weight, *needs = ctx.needs_input_grad
        shape = tensors[0].shape
        grads = _flat((d_key, d_value))
        with _exact(d_key):
            d_weight = _weight_gradient(weight, grads, tensors, ctx.nodes) if needs_weight else None
            now = torch._C._current_graph_task_id() if any(ctx.nodes) else None
            d_slots: list[Tensor | None] = []
            for i, columns in enumerate(_columns(weight, shape[1], d_key.dtype)):
                if node := ctx.nodes[i]:
                    node.left.append((now, columns, grads))
                    d_slots += (None, None)
                else:
                    pairs = zip(grads, needs[2 * i : 2 * i + 2], strict=True)
                    d_slots += (_unpack(columns @ g, shape) if need else None for g, need in pairs)
        return d_weight, *d_slots


_StoreNode = _Store._backward_cls


def _store_node(slot: Slot) -> Any | None:
    """Return the autograd node that stored a slot, if one did and nothing has come between."""
    if torch.compiler.is_compiling():
        return None
    node = slot[0].grad_fn
    return node if isinstance(node, _StoreNode) and slot[1].grad_fn is node else None


def _routed(slots: Sequence[Slot], weight: Tensor) -> Slot:
    key = slots[0][0]
    with _exact(key):
        if key.numel() <= _FEW:
            return _routed_few(slots, weight)
        keys, values = zip(*(_flat(slot, _store_node(slot)) for slot in slots), strict=True)
        blocks = weight.to(key.dtype).split(key.shape[1], dim=1)
        out = _contract(blocks, keys), _contract(blocks, values)
    return _unpack(out[0], key.shape), _unpack(out[1], key.shape)


def _routed_few(slots: Sequence[Slot], weight: Tensor) -> Slot:
    """The same in as few calls as can be: at one token a call costs more than what it computes."""
    keys, values = zip(*slots, strict=True)
    key, value = torch.cat(keys, dim=1), torch.cat(values, dim=1)
    if weight.dtype != key.dtype:
        weight = weight.to(key.dtype)
    batch, columns, tokens, width = key.shape
    if batch == 1:
        key = torch.mm(weight, key.view(columns, -1))
        value = torch.mm(weight, value.view(columns, -1))
    else:
        weight = weight.expand(batch, -1, -1)
        key = torch.bmm(weight, key.view(batch, columns, -1))
        value = torch.bmm(weight, value.view(batch, columns, -1))
    return key.view(batch, -1, tokens, width), value.view(batch, -1, tokens, width)


def _contract(weights: Sequence[Tensor], parts: Sequence[Tensor]) -> Tensor:
    """Sum weights[i] [M, R] @ parts[i] [R, C] over i, rounded once."""
    if _as_one_product(parts[0]):
        return torch.cat(tuple(weights), dim=1) @ torch.cat(tuple(parts))
    out = torch.mm(weights[0], parts[0])
    for weight, part in zip(weights[1:], parts[1:], strict=True):
        out = out.addmm_(weight, part)
    return out


def _weight_gradient(
    weight: Tensor, grads: Slot, tensors: Sequence[Tensor], nodes: Sequence[Any]
) -> Tensor:
    flat = [_flat(slot, node) for slot, node in zip(_pairs(tensors), nodes, strict=True)]
    d_key, d_value = grads
    if _as_one_product(d_key):
        keys, values = (torch.cat(part) for part in zip(*flat, strict=True))
        product = torch.cat(grads, dim=1) @ torch.cat((keys, values), dim=1).t()
        return product.to(weight.dtype)
    parts = _grouped(flat, nodes)
    d_weight = torch.empty_like(weight, dtype=d_key.dtype)
    blocks = d_weight.split([key.shape[0] for key, _ in parts], dim=1)
    for block, (key, value) in zip(blocks, parts, strict=True):
        torch.mm(d_key, key.t(), out=block).addmm_(d_value, value.t())
    return d_weight.to(weight.dtype)


def _grouped(flat: Sequence[Slot], nodes: Sequence[Any]) -> list[Slot]:
    """Put whole groups of stored slots below each other, once for all routes that read them."""
    whole = len(flat) - len(flat) % _GROUP if len(flat) >= 2 * _GROUP and all(nodes) else 0
    parts: list[Slot] = []
    for i in range(0, whole, _GROUP):
        last, members = nodes[i + _GROUP - 1], tuple(map(id, nodes[i : i + _GROUP]))
        if last.group is None or last.group[0] != members:
            keys, values = zip(*flat[i : i + _GROUP], strict=True)
            last.group = members, (torch.cat(keys), torch.cat(values))
        parts.append(last.group[1])
    return [*parts, *flat[whole:]]


def _columns(weight: Tensor, heads: int, dtype: torch.dtype) -> list[Tensor]:
    """Each slot's columns of the weight, transposed: [R, M] takes a gradient back to the slot."""
    return [block.t() for block in weight.to(dtype).split(heads, dim=1)]


def _as_one_product(part: Tensor) -> bool:
    """Whether to concatenate into a copy that is dropped again, for one product in place of many.

    On a GPU launches are dear; in half precision partial sums would be rounded; a compiler sees one
    node. In float32 on a CPU many small products are faster than one wide one.
    """
    exact = part.dtype in (torch.float32, torch.float64)
    return part.is_cuda or not exact or torch.compiler.is_compiling()


def _differentiable_gradients(ctx: Any, grads: Slot) -> Grads:
    """The gradients as functions of everything, for whoever differentiates twice."""
    weight, *tensors = ctx.saved_tensors
    wanted = [t for t, need in zip(ctx.saved_tensors, ctx.needs_input_grad, strict=True) if need]
    out = naive.route(_pairs(tensors), weight)
    found = iter(torch.autograd.grad(out, wanted, grads, create_graph=True))
    return tuple(next(found) if need else None for need in ctx.needs_input_grad)


def _exact(tensor: Tensor) -> AbstractContextManager[Any]:
    """Keep autocast out: it would round float32 slots."""
    kind = tensor.device.type
    if torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def _pairs(tensors: Sequence[Tensor]) -> list[Slot]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def _pack(x: Tensor) -> Tensor:
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def _flat(slot: Slot, node: Any | None = None) -> Slot:
    """[B, R, T, E] each as [R, C]: views where packed, made once where the slot was stored."""
    if node and node.flat:
        return node.flat
    key, value = slot
    return key.transpose(0, 1).flatten(1), value.transpose(0, 1).flatten(1)


def _unpack(x: Tensor, shape: torch.Size) -> Tensor:
    """[R, C] as [B, R, T, E]."""
    batch, _, tokens, width = shape
    return x.view(-1, batch, tokens, width).transpose(0, 1)
