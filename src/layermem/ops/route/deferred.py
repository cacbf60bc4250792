"""Routing on slots that are tensors of their own, whose gradients are computed once each.

Where layers share no ``SlotBuffer``, a route is one product on its slots, and the backward of a
route leaves its incoming gradient with the nodes of its slots (``ops/shared_gradient.py``). An
example with 3 layers and R = 2 heads. Layers 1 and 2 have routers W_1 [2, 4] and W_2 [2, 6]:

    out_1 = W_1 [slot_0; slot_1]                 out_2 = W_2 [slot_0; slot_1; slot_2]

    route 2    leaves (W_2[:, 2j:2j+2]^T, d out_2) with slots j = 0, 1, 2
    slot 2     d slot_2 = W_2[:, 4:6]^T d out_2
    route 1    leaves (W_1[:, 2j:2j+2]^T, d out_1) with slots j = 0, 1
    slot 1     d slot_1 = [W_2[:, 2:4]^T, W_1[:, 2:4]^T] [d out_2; d out_1]
    slot 0     likewise

A router is one weight, or one for keys and one for values. A product takes a pair of weights, for
keys and for values: with one weight it is there twice. ``Products`` computes in torch,
``launches.py`` in Triton kernels.

Letters: S slots, R heads, M output heads, B batch, T tokens, E head width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from layermem.ops.route import naive
from layermem.ops.route.naive import Slot
from layermem.ops.route.products import Pair, Router, as_rows, as_slot, sum_products
from layermem.ops.shared_gradient import (
    Grads,
    add,
    autocast_disabled,
    find_node,
    is_traced,
    leave,
    readable,
    share,
)


class Products:
    """The products of routing by torch. All slots and gradients are [B, R, T, E], head major."""

    def lay_out(self, x: Tensor) -> Tensor:
        """Return a key or value in the memory layout that is fastest to read."""
        return x.transpose(0, 1).contiguous().transpose(0, 1)

    def gather(self, weights: Pair, parts: Sequence[Slot]) -> Slot:
        """Return weights [M, S * R] or [1, S] @ the S parts, rounded once."""
        keys, values = zip(*parts, strict=True)
        return _product(weights[0], keys), _product(weights[1], values)

    def spread(self, columns: Pair, grads: Slot) -> list[Slot]:
        """Return columns[i] [R, M] @ grads for each i."""
        return [self.gather(pair, [grads]) for pair in zip(*columns, strict=True)]

    def gram(self, grads: Slot, parts: Sequence[Slot], shape: torch.Size) -> Pair:
        """Return grads @ the S parts, summed over all but heads: ``shape`` is that of a weight."""
        rows, heads = shape[0], shape[1] // len(parts)
        pairs = zip(grads, zip(*parts, strict=True), strict=True)
        key, value = (as_rows(grad, rows) @ _rows(part, heads).t() for grad, part in pairs)
        return (key.float(), value.float()) if key.element_size() == 2 else (key, value)

    def sum_parts(self, parts: list[tuple[Pair, Slot]], direct: Grads) -> Grads:
        """Return the gradient of a slot from what its readers have left, (columns, gradients)."""
        if not parts:
            return direct
        columns, grads = zip(*parts, strict=True)
        weight = torch.cat([of_keys for of_keys, _ in columns], dim=1)
        weights = weight, weight
        if any(of_keys is not of_values for of_keys, of_values in columns):
            weights = weight, torch.cat([of_values for _, of_values in columns], dim=1)
        with autocast_disabled(weight):
            return add(self.gather(weights, grads), direct)


def store(products: Products, key: Tensor, value: Tensor) -> Slot:
    """Return a slot as ``products`` read it, whose gradient is computed once for all readers."""
    if not torch.is_grad_enabled() or is_traced():
        return products.lay_out(key), products.lay_out(value)
    slot: Slot = _Store.apply(products, key, value)
    share(products.sum_parts, *slot)
    return slot


def route(products: Products, slots: Sequence[Slot], router: Router) -> Slot:
    """Compute ``naive.route`` by ``products``."""
    if torch._C._are_functorch_transforms_active():
        return naive.route(slots, *router)
    if torch.is_grad_enabled():
        tensors = (readable(x) for slot in slots for x in slot)
        return _Route.apply(products, len(router), *router, *tensors)
    with autocast_disabled(router[0]):
        return products.gather(in_pair(router, slots[0]), slots)


def in_pair(router: Router, slot: Slot) -> Pair:
    """Return a router as the weights of keys and of values, in the dtypes of a slot's.

    One weight for both is one tensor, by which it is recognised.
    """
    key, value = slot
    if len(router) == 1 and key.dtype == value.dtype:
        both = router[0].to(key.dtype)
        return both, both
    return router[0].to(key.dtype), router[-1].to(value.dtype)


def refuse_second_derivatives() -> None:
    """Raise ``RuntimeError`` under ``create_graph=True``: the gradients would have no graph."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            "this implementation of routing has no second derivatives (create_graph=True); run the "
            'forward and the backward inside layermem.ops.route.using("naive")'
        )


def pair_up(tensors: Sequence[Tensor]) -> list[Slot]:
    """Return (key, value, key, value, ...) as pairs."""
    return list(zip(tensors[::2], tensors[1::2], strict=True))


class _Store(torch.autograd.Function):
    """Lay out a slot; in the backward, the identity."""

    @staticmethod
    def forward(ctx: Any, products: Products, key: Tensor, value: Tensor) -> Slot:
        ctx.set_materialize_grads(False)
        return products.lay_out(key), products.lay_out(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Grads:
        return None, *grads


class _Route(torch.autograd.Function):
    """``naive.route`` on flat arguments: the router's weights, then key and value of each slot."""

    @staticmethod
    def forward(ctx: Any, products: Products, n_weights: int, *tensors: Tensor) -> Slot:
        ctx.save_for_backward(*tensors)
        router, slots = tensors[:n_weights], pair_up(tensors[n_weights:])
        ctx.products, ctx.n_weights = products, n_weights
        ctx.nodes = [_find_node(slot, products) for slot in slots]
        with autocast_disabled(router[0]):
            return products.gather(in_pair(router, slots[0]), slots)

    @staticmethod
    def backward(ctx: Any, d_key: Tensor, d_value: Tensor) -> Grads:
        refuse_second_derivatives()
        products, nodes, count = ctx.products, ctx.nodes, ctx.n_weights
        # Asked for once: a checkpoint computes them when they are.
        saved = ctx.saved_tensors
        router, tensors = saved[:count], saved[count:]
        needs_router, needs = ctx.needs_input_grad[2 : 2 + count], ctx.needs_input_grad[2 + count :]
        grads = products.lay_out(d_key), products.lay_out(d_value)
        d_router: list[Tensor | None] = [None] * count
        d_tensors: list[Tensor | None] = [None] * len(tensors)
        # [S, R, M]: what takes a gradient of the output back to each slot. They are read after the
        # gradients of the weights have been handed on, by which an optimiser may have stepped.
        blocks = [
            weight.to(d_key.dtype, copy=True).unflatten(1, (len(nodes), -1)).permute(1, 2, 0)
            for weight in router
        ]
        singly = [i for i, node in enumerate(nodes) if not node and any(needs[2 * i : 2 * i + 2])]
        with autocast_disabled(router[0]):
            if any(needs_router):
                grams = products.gram(grads, pair_up(tensors), router[0].shape)
                sums = grams if count == 2 else (grams[0] + grams[1],)
                d_router = [
                    total.to(weight.dtype) if need else None
                    for total, weight, need in zip(sums, router, needs_router, strict=True)
                ]
            if singly:
                chosen = [block[singly] for block in blocks]
                spread = products.spread((chosen[0], chosen[-1]), grads)
                for i, pair in zip(singly, spread, strict=True):
                    d_tensors[2 * i : 2 * i + 2] = pair
        of_slots = [block.unbind() for block in blocks]
        for i, node in enumerate(nodes):
            if node:
                leave(node, ((of_slots[0][i], of_slots[-1][i]), grads))
        return (
            None,
            None,
            *d_router,
            *(d if need else None for d, need in zip(d_tensors, needs, strict=True)),
        )


def _find_node(slot: Slot, products: Products) -> Any | None:
    """Return the node that adds up the gradient of a slot; None if there is none."""
    key, value = slot
    node = find_node(key, products.sum_parts)
    if node is None or value.grad_fn is not node:
        return None
    # In a pair such as (value, key) gradients go to other tensors.
    return node if (key.output_nr, value.output_nr) == (0, 1) else None


def _rows(parts: Sequence[Tensor], heads: int) -> Tensor:
    """Return keys, or values, below each other, ``heads`` rows each."""
    # Not a view: traced, the concatenation of one part keeps the layout that it has.
    return torch.cat([part.transpose(0, 1) for part in parts]).reshape(len(parts) * heads, -1)


def _product(weight: Tensor, parts: Sequence[Tensor]) -> Tensor:
    first, heads = parts[0], weight.shape[1] // len(parts)
    exact = first.dtype in (torch.float32, torch.float64)
    if exact and first.is_cpu and not torch.compiler.is_compiling():
        # Faster than one product, and nothing is concatenated.
        flat = [as_rows(part, heads) for part in parts]
        return as_slot(sum_products(weight.split(heads, dim=1), flat), first.shape)
    return as_slot(weight @ _rows(parts, heads), first.shape)
