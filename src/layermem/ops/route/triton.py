"""The products of routing as Triton kernels, which read slots by pointer, where they lie.

A slot stays token major, [B T, R, E], as the projections made it: storing copies nothing, nothing
is concatenated, and what comes out is token major too, as attention takes it. Three kernels, keys
and values in one launch each:

    gather   out[m] = sum_i weight_i[m, r] * part_i[r]      a route; the gradient of a slot
    spread   out_i[r] = weight_i[r, m] * grad[m]            ordinary gradients, one for each slot
    gram     out[m, (i, r)] = sum_columns grad[m] * part_i[r]      a router's gradient

Sums are in float32 (of float64, in float64) and come down once. The gram's are taken piece by piece
and the pieces added in one order, so that two runs agree to the last bit.

Letters: S slots, R heads, M heads that come out, B batch, T tokens, E head width, N = B T rows.
It does not know: layers, rope, caches, where the weight comes from.
"""

from collections.abc import Sequence
from typing import Any, final

import torch
import triton
import triton.language as tl
from torch import Tensor

from layermem.ops.route import deferred, kernels
from layermem.ops.route.deferred import Products
from layermem.ops.route.naive import Slot

# Pointers are kernel arguments, two for each slot: more slots go in several launches.
_MOST = 128
_PIECES = 64
_TILE = 16384


@final
class Kernels(Products):
    """Flat slots are the slots themselves, token major."""

    def lay(self, key: Tensor, value: Tensor) -> Slot:
        return _token_major(key), _token_major(value)

    def flat(self, slot: Slot) -> Slot:
        return _token_major(slot[0]), _token_major(slot[1])

    def route(self, weight: Tensor, slots: Sequence[Slot], nodes: Sequence[Any]) -> Slot:
        return _gather(weight, [self.flat(slot) for slot in slots])

    def gather(self, columns: Sequence[Tensor], grads: Sequence[Slot], shape: torch.Size) -> Slot:
        return _gather(torch.cat(tuple(columns), dim=1), grads)

    def spread(self, columns: Sequence[Tensor], grads: Slot, shape: torch.Size) -> list[Slot]:
        return _spread(torch.stack(tuple(columns)), grads)

    def weight_gradient(
        self, weight: Tensor, grads: Slot, slots: Sequence[Slot], nodes: Sequence[Any]
    ) -> Tensor:
        return _gram(grads, [self.flat(slot) for slot in slots]).to(weight.dtype)


_kernels = Kernels()


def store(key: Tensor, value: Tensor) -> Slot:
    """Keep a slot where it lies, to be read with a deferred backward."""
    return deferred.store(_kernels, key, value)


def route(slots: Sequence[Slot], weight: Tensor) -> Slot:
    """As ``naive.route``."""
    if torch.compiler.is_compiling():
        keys, values = zip(*slots, strict=True)
        return _compiled_route(list(keys), list(values), weight)
    return deferred.route(_kernels, slots, weight)


def _gather(weight: Tensor, parts: Sequence[Slot]) -> Slot:
    """Launch ``gather``: weight [M, S * R] over S parts."""
    key = parts[0][0]
    batch, heads, tokens, width = key.shape
    shape = (batch, tokens, weight.shape[0], width)
    totals: Sequence[Tensor] = ()
    for start in range(0, len(parts), _MOST):
        some = parts[start : start + _MOST]
        # Between launches totals stay in float32.
        is_last = start + _MOST >= len(parts)
        dtype = key.dtype if is_last else _wide(key.dtype)
        outs = [torch.empty(shape, dtype=dtype, device=key.device) for _ in range(2)]
        sizes = _sizes(key, weight.shape[0])
        pointers, count = _pointers(some)
        block = weight[:, start * heads :]
        kernels.gather[triton.cdiv(batch * tokens, sizes["BLOCK"]), 2](
            pointers,
            block,
            block.stride(0),
            block.stride(1),
            heads * block.stride(1),
            *outs,
            *(totals or outs),
            len(some),
            batch * tokens,
            COUNT=count,
            STARTS=bool(totals),
            **sizes,
        )
        totals = outs
    return totals[0].transpose(1, 2), totals[1].transpose(1, 2)


def _spread(columns: Tensor, grads: Slot) -> list[Slot]:
    """Launch ``spread``: columns [S, R, M] times one pair of gradients."""
    batch, _, tokens, width = grads[0].shape
    n_parts, heads, given = columns.shape
    shape = (batch, tokens, heads, width)
    # One allocation each: what is handed out must not share its memory.
    outs = [(grads[0].new_empty(shape), grads[1].new_empty(shape)) for _ in range(n_parts)]
    sizes = _sizes(grads[0], given, heads)
    for start in range(0, n_parts, _MOST):
        pointers, count = _pointers(outs[start : start + _MOST])
        block = columns[start:]
        grid = (min(_MOST, n_parts - start), triton.cdiv(batch * tokens, sizes["BLOCK"]), 2)
        kernels.spread[grid](
            pointers, block, *block.stride(), *grads, batch * tokens, COUNT=count, **sizes
        )
    return [(key.transpose(1, 2), value.transpose(1, 2)) for key, value in outs]


def _gram(grads: Slot, parts: Sequence[Slot]) -> Tensor:
    """Launch ``gram``: [M, S * R], as wide as it was summed."""
    batch, heads, tokens, _ = parts[0][0].shape
    given, rows = grads[0].shape[1], batch * tokens
    sizes = _sizes(parts[0][0], given)
    # Whole blocks to a piece.
    per_piece = triton.cdiv(triton.cdiv(rows, _PIECES), sizes["BLOCK"]) * sizes["BLOCK"]
    n_pieces = triton.cdiv(rows, per_piece)
    found = []
    for start in range(0, len(parts), _MOST):
        some = parts[start : start + _MOST]
        pointers, count = _pointers(some)
        shape = (2 * n_pieces, given, len(some) * heads)
        pieces = torch.empty(shape, dtype=_wide(grads[0].dtype), device=grads[0].device)
        kernels.gram[len(some), n_pieces, 2](
            pointers, *grads, pieces, len(some), rows, per_piece, COUNT=count, **sizes
        )
        found.append(pieces.sum(0))
    return found[0] if len(found) == 1 else torch.cat(found, dim=1)


def _sizes(part: Tensor, given: int, heads: int | None = None) -> dict[str, Any]:
    """Return what the kernels are compiled for: M = ``given`` heads, R heads, a tile's rows."""
    heads, width = heads or part.shape[1], part.shape[3]
    padded = {"M_PADDED": _padded(given), "R_PADDED": _padded(heads)}
    width_padded = triton.next_power_of_2(width)
    # A tile of 16 kB; at least sixteen columns, as for rows.
    columns = _TILE // part.element_size() // max(padded.values())
    columns = max(16, width_padded, columns)
    dtype = _DTYPES[part.dtype]
    interpreted = triton.knobs.runtime.interpret
    tf32 = torch.backends.cuda.matmul.allow_tf32
    return {
        "M": given,
        "R": heads,
        **padded,
        "WIDTH": width,
        "WIDTH_PADDED": width_padded,
        "BLOCK": columns // width_padded,
        "PRECISION": "tf32" if tf32 else "ieee",
        "dtype": dtype,
        "SUM": tl.float64 if part.dtype == torch.float64 else tl.float32,
        # The interpreter multiplies bfloat16 by its bits.
        "DOT": tl.float32 if interpreted and part.dtype == torch.bfloat16 else dtype,
    }


_DTYPES = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
}


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _padded(heads: int) -> int:
    """Tensor cores take sixteen rows at least."""
    return max(16, triton.next_power_of_2(heads))


def _pointers(parts: Sequence[Slot]) -> tuple[tuple[Tensor, ...], int]:
    """Keys, then values, each filled up to a power of two, so that few kernels are compiled."""
    count = triton.next_power_of_2(len(parts))
    filled = [*parts, *[parts[0]] * (count - len(parts))]
    keys, values = zip(*filled, strict=True)
    return (*keys, *values), count


def _token_major(x: Tensor) -> Tensor:
    """[B, R, T, E] with heads beside each other for every token: as a projection makes it."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


@torch.library.custom_op("layermem::route", mutates_args=())
def _compiled_route(
    keys: list[Tensor], values: list[Tensor], weight: Tensor
) -> tuple[Tensor, Tensor]:
    """A route as torch.compile sees it: one node."""
    return _kernels.route(weight, list(zip(keys, values, strict=True)), ())


@_compiled_route.register_fake
def _(keys: list[Tensor], values: list[Tensor], weight: Tensor) -> tuple[Tensor, Tensor]:
    return _like(keys[0], weight.shape[0]), _like(keys[0], weight.shape[0])


@torch.library.custom_op("layermem::route_backward", mutates_args=())
def _compiled_backward(
    keys: list[Tensor], values: list[Tensor], weight: Tensor, d_key: Tensor, d_value: Tensor
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """The gradients of a route, of every slot an ordinary one."""
    slots = list(zip(keys, values, strict=True))
    grads = _kernels.flat((d_key, d_value))
    heads = keys[0].shape[1]
    columns = weight.to(d_key.dtype).unflatten(1, (-1, heads)).permute(1, 2, 0)
    d_keys, d_values = zip(*_spread(columns, grads), strict=True)
    return list(d_keys), list(d_values), _kernels.weight_gradient(weight, grads, slots, ())


@_compiled_backward.register_fake
def _(
    keys: list[Tensor], values: list[Tensor], weight: Tensor, d_key: Tensor, d_value: Tensor
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    heads = keys[0].shape[1]
    return (
        [_like(d_key, heads) for _ in keys],
        [_like(d_value, heads) for _ in values],
        torch.empty_like(weight),
    )


def _remember(ctx: Any, inputs: tuple[list[Tensor], list[Tensor], Tensor], output: Any) -> None:
    keys, values, weight = inputs
    ctx.count = len(keys)
    ctx.save_for_backward(*keys, *values, weight)


def _backward(ctx: Any, d_key: Tensor, d_value: Tensor) -> tuple[Any, ...]:
    *tensors, weight = ctx.saved_tensors
    keys, values = list(tensors[: ctx.count]), list(tensors[ctx.count :])
    return _compiled_backward(keys, values, weight, d_key, d_value)


_compiled_route.register_autograd(_backward, setup_context=_remember)


def _like(x: Tensor, heads: int) -> Tensor:
    """An empty tensor as the kernels make them: [B, heads, T, E], token major."""
    batch, _, tokens, width = x.shape
    return x.new_empty(batch, tokens, heads, width).transpose(1, 2)
