"""The routing backend made of Triton kernels, and routing as one operator for torch.compile.

The kernels read slots through pointers, so that a slot stays in the layout of the projections,
token major [B T, R, E]: storing copies nothing and nothing is concatenated. The result is token
major too, as attention takes it. There are three kernels, each for keys and values in one launch:

    gather   out[m] = sum_{i, r} weight_i[m, r] * part_i[r]    a route; the gradient of a slot
    spread   out_i[r] = sum_m weight_i[r, m] * grad[m]         gradients of slots without a node
    gram     out[m, (i, r)] = sum_{n, e} grad[m] * part_i[r]   the gradient of a router's weight

Sums are in float32 (of float64 in float64) and rounded once. ``gram`` sums the rows in pieces,
which are added in a fixed order: the same inputs give the same bits.

Letters: S slots, R heads, M output heads, B batch, T tokens, E head width, N = B T rows.
"""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from layermem.ops.route import deferred, launches
from layermem.ops.route.deferred import Backend
from layermem.ops.route.naive import Slot


@final
class TritonBackend(Backend):
    """Triton kernels; flat slots are the slots themselves, token major."""

    def lay_out(self, key: Tensor, value: Tensor) -> Slot:
        return launches.token_major(key), launches.token_major(value)

    def flatten(self, slot: Slot) -> Slot:
        return launches.token_major(slot[0]), launches.token_major(slot[1])

    def route(self, weight: Tensor, slots: Sequence[Slot], nodes: Sequence[Any]) -> Slot:
        return launches.gather(weight, [self.flatten(slot) for slot in slots])

    def gather(self, columns: Sequence[Tensor], grads: Sequence[Slot], shape: torch.Size) -> Slot:
        return launches.gather(torch.cat(tuple(columns), dim=1), grads)

    def spread(self, columns: Sequence[Tensor], grads: Slot, shape: torch.Size) -> list[Slot]:
        return launches.spread(torch.stack(tuple(columns)), grads)

    def weight_gradient(
        self, weight: Tensor, grads: Slot, slots: Sequence[Slot], nodes: Sequence[Any]
    ) -> Tensor:
        return launches.gram(grads, [self.flatten(slot) for slot in slots]).to(weight.dtype)


_backend = TritonBackend()


def can_run(x: Tensor) -> bool:
    """Whether kernels run on the device of ``x``: a GPU, or a CPU in triton's interpreter."""
    return x.is_cuda or (x.is_cpu and launches.is_interpreted())


def store(key: Tensor, value: Tensor) -> Slot:
    """Return a slot token major, whose gradient is computed once for all readers."""
    return deferred.store(_backend, key, value)


def route(slots: Sequence[Slot], weight: Tensor) -> Slot:
    """Compute ``naive.route`` with Triton kernels."""
    if torch.compiler.is_compiling():
        keys, values = zip(*slots, strict=True)
        return _compiled_route(list(keys), list(values), weight)
    return deferred.route(_backend, slots, weight)


@torch.library.custom_op("layermem::route", mutates_args=())
def _compiled_route(
    keys: list[Tensor], values: list[Tensor], weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute a route as one operator, which torch.compile does not look into."""
    return _backend.route(weight, list(zip(keys, values, strict=True)), ())


@_compiled_route.register_fake
def _(keys: list[Tensor], values: list[Tensor], weight: Tensor) -> tuple[Tensor, Tensor]:
    return _empty_token_major(keys[0], weight.shape[0]), _empty_token_major(
        keys[0], weight.shape[0]
    )


@torch.library.custom_op("layermem::route_backward", mutates_args=())
def _compiled_backward(
    keys: list[Tensor], values: list[Tensor], weight: Tensor, d_key: Tensor, d_value: Tensor
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return the gradients of keys, values and weight of one route."""
    slots = list(zip(keys, values, strict=True))
    grads = _backend.flatten((d_key, d_value))
    heads = keys[0].shape[1]
    columns = weight.to(d_key.dtype).unflatten(1, (-1, heads)).permute(1, 2, 0)
    d_keys, d_values = zip(*launches.spread(columns, grads), strict=True)
    return list(d_keys), list(d_values), _backend.weight_gradient(weight, grads, slots, ())


@_compiled_backward.register_fake
def _(
    keys: list[Tensor], values: list[Tensor], weight: Tensor, d_key: Tensor, d_value: Tensor
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    heads = keys[0].shape[1]
    return (
        [_empty_token_major(d_key, heads) for _ in keys],
        [_empty_token_major(d_value, heads) for _ in values],
        torch.empty_like(weight),
    )


def _save_inputs(ctx: Any, inputs: tuple[list[Tensor], list[Tensor], Tensor], output: Any) -> None:
    keys, values, weight = inputs
    ctx.count = len(keys)
    ctx.save_for_backward(*keys, *values, weight)


def _route_gradients(ctx: Any, d_key: Tensor, d_value: Tensor) -> tuple[Any, ...]:
    *tensors, weight = ctx.saved_tensors
    keys, values = list(tensors[: ctx.count]), list(tensors[ctx.count :])
    return _compiled_backward(keys, values, weight, d_key, d_value)


_compiled_route.register_autograd(_route_gradients, setup_context=_save_inputs)


def _empty_token_major(x: Tensor, heads: int) -> Tensor:
    """Return an empty tensor [B, heads, T, E], token major, as the kernels make them."""
    batch, _, tokens, width = x.shape
    return x.new_empty(batch, tokens, heads, width).transpose(1, 2)
