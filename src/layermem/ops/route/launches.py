"""Routing by Triton kernels: their launches, and a route as one operator for torch.compile.

The kernels read slots through pointers, so that a slot stays in the layout of the projections,
token major [B T, R, E]: storing copies nothing and nothing is concatenated. The result is token
major too, as attention takes it. There are three kernels, each for keys and values in one launch:

    gather   out[m] = sum_{i, r} weight_i[m, r] * part_i[r]    a route; the gradient of a slot
    spread   out_i[r] = sum_m weight_i[r, m] * grad[m]         gradients of slots without a node
    gram     out[m, (i, r)] = sum_{n, e} grad[m] * part_i[r]   the gradient of a router's weight

Sums are in float32 (of float64 in float64) and rounded once. ``gram`` sums the rows in pieces,
which are added in a fixed order: the same inputs give the same bits. They run on request: on an
H200 a step of a 1B took 0.985 to 0.998 of the time that it takes with ``deferred``.

Letters: S slots, R heads, M output heads, B batch, T tokens, E head width, N = B T rows.
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
from layermem.ops.route.products import Pair, Router

# Slots of one launch: their pointers are kernel arguments, two for each slot.
_MAX_SLOTS = 128
# Pieces in which ``gram`` sums the rows, at most.
_MAX_PIECES = 64
# Bytes of a tile.
_TILE_BYTES = 16384


def gather(weights: Pair, parts: Sequence[Slot]) -> Slot:
    """Launch ``gather``: weights [M, S * R] over S parts, rounded once."""
    key = parts[0][0]
    batch, heads, tokens, width = key.shape
    weights = _alike(weights)
    heads_out = weights[0].shape[0]
    shape = (batch, tokens, heads_out, width)
    totals: Sequence[Tensor] = ()
    for first in range(0, len(parts), _MAX_SLOTS):
        chunk = parts[first : first + _MAX_SLOTS]
        # Between launches the totals stay in float32.
        is_last = first + _MAX_SLOTS >= len(parts)
        dtype = key.dtype if is_last else sum_dtype(key.dtype)
        outs = [torch.empty(shape, dtype=dtype, device=key.device) for _ in range(2)]
        sizes = kernel_sizes(key, heads_out)
        pointers, count = _pointers(chunk, parts[0][0])
        block, value_block = (weight[:, first * heads :] for weight in weights)
        kernels.gather[triton.cdiv(batch * tokens, sizes["BLOCK"]), 2](
            pointers,
            block,
            value_block,
            block.stride(0),
            block.stride(1),
            heads * block.stride(1),
            *outs,
            *(totals or outs),
            len(chunk),
            batch * tokens,
            COUNT=count,
            STARTS=bool(totals),
            **sizes,
        )
        totals = outs
    return totals[0].transpose(1, 2), totals[1].transpose(1, 2)


def spread(columns: Pair, grads: Slot) -> list[Slot]:
    """Launch ``spread``: columns [S, R, M] times one pair of gradients."""
    batch, _, tokens, width = grads[0].shape
    columns = _alike(columns)
    n_parts, heads, heads_out = columns[0].shape
    shape = (batch, tokens, heads, width)
    # One allocation for each: gradients that are returned must not share memory.
    outs = [(grads[0].new_empty(shape), grads[1].new_empty(shape)) for _ in range(n_parts)]
    sizes = kernel_sizes(grads[0], heads_out, heads)
    for start in range(0, n_parts, _MAX_SLOTS):
        pointers, count = _pointers(outs[start : start + _MAX_SLOTS], outs[0][0])
        block, value_block = (column[start:] for column in columns)
        grid = (min(_MAX_SLOTS, n_parts - start), triton.cdiv(batch * tokens, sizes["BLOCK"]), 2)
        kernels.spread[grid](
            pointers,
            block,
            value_block,
            *block.stride(),
            *grads,
            batch * tokens,
            COUNT=count,
            **sizes,
        )
    return [(key.transpose(1, 2), value.transpose(1, 2)) for key, value in outs]


def gram(grads: Slot, parts: Sequence[Slot]) -> Pair:
    """Launch ``gram``: return [M, S * R] of keys and of values, in the dtype of the sums."""
    batch, heads, tokens, _ = parts[0][0].shape
    heads_out, rows = grads[0].shape[1], batch * tokens
    sizes = kernel_sizes(parts[0][0], heads_out)
    # A piece has a whole number of blocks.
    per_piece = triton.cdiv(triton.cdiv(rows, _MAX_PIECES), sizes["BLOCK"]) * sizes["BLOCK"]
    n_pieces = triton.cdiv(rows, per_piece)
    blocks = []
    for start in range(0, len(parts), _MAX_SLOTS):
        chunk = parts[start : start + _MAX_SLOTS]
        pointers, count = _pointers(chunk, parts[0][0])
        shape = (2 * n_pieces, heads_out, len(chunk) * heads)
        pieces = torch.empty(shape, dtype=sum_dtype(grads[0].dtype), device=grads[0].device)
        kernels.gram[len(chunk), n_pieces, 2](
            pointers, *grads, pieces, len(chunk), rows, per_piece, COUNT=count, **sizes
        )
        blocks.append(pieces.unflatten(0, (2, -1)).sum(1))
    keys, values = blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=2)
    return keys, values


def _alike(weights: Pair) -> Pair:
    """Return the weights of keys and of values with one layout, for which a kernel has strides."""
    if weights[0].stride() == weights[1].stride():
        return weights
    return weights[0].contiguous(), weights[1].contiguous()


def kernel_sizes(part: Tensor, heads_out: int, heads: int | None = None) -> dict[str, Any]:
    """Return the constants that a kernel is compiled for, by the names of its arguments."""
    heads, width = heads or part.shape[1], part.shape[3]
    padded = {"M_PADDED": _padded(heads_out), "R_PADDED": _padded(heads)}
    width_padded = triton.next_power_of_2(width)
    columns = _TILE_BYTES // part.element_size() // max(padded.values())
    dtype = _DTYPES[part.dtype]
    interpreted = bool(triton.knobs.runtime.interpret)
    return {
        "M": heads_out,
        "R": heads,
        **padded,
        "WIDTH": width,
        "WIDTH_PADDED": width_padded,
        # Tensor cores multiply sixteen columns at least.
        "BLOCK": max(16, width_padded, columns) // width_padded,
        "PRECISION": "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee",
        "dtype": dtype,
        "SUM": tl.float64 if part.dtype == torch.float64 else tl.float32,
        # The interpreter would multiply the bits of bfloat16 as integers.
        "DOT": tl.float32 if interpreted and part.dtype == torch.bfloat16 else dtype,
    }


_DTYPES = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
}


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums of this dtype that are not rounded yet."""
    return torch.promote_types(dtype, torch.float32)


def _padded(heads: int) -> int:
    """Return the number of rows of a tile: tensor cores multiply sixteen at least."""
    return max(16, triton.next_power_of_2(heads))


def _pointers(parts: Sequence[Slot], like: Tensor) -> tuple[tuple[Tensor, ...], int]:
    """Return the keys, then the values, and how many there are of each.

    Each list is filled up to a power of two, so that one compiled kernel serves several depths.
    A kernel takes dtype and shape of ``like`` for those of all: raise if one has another.
    """
    for part in parts:
        for x in part:
            if x.dtype != like.dtype or x.shape != like.shape:
                raise ValueError(
                    f"all keys and values of one route must be alike, got {like.dtype} "
                    f"{list(like.shape)} and {x.dtype} {list(x.shape)}; cast them to one dtype"
                )
    count = triton.next_power_of_2(len(parts))
    filled = [*parts, *[parts[0]] * (count - len(parts))]
    keys, values = zip(*filled, strict=True)
    return (*keys, *values), count


def token_major(x: Tensor) -> Tensor:
    """Return x [B, R, T, E] with its memory in the order [B, T, R, E], as projections make it."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _of_heads(slot: Slot, heads: int) -> Slot:
    """Return a slot token major, of ``heads`` heads: all, or one, whose tokens are those of all."""
    return _by_head(slot[0], heads), _by_head(slot[1], heads)


def _by_head(x: Tensor, heads: int) -> Tensor:
    memory = x.transpose(1, 2).contiguous()
    return memory.view(len(x), -1, heads, x.shape[3]).transpose(1, 2)


def _heads_out(weight: Tensor, n_parts: int, heads: int) -> int:
    """Return the number of heads of a route: the rows of a weight, or all by a scalar a slot."""
    return weight.shape[0] if weight.shape[1] == n_parts * heads else heads


@final
class Kernels(Products):
    """The products of routing by kernels, which take and return token major tensors."""

    def lay_out(self, x: Tensor) -> Tensor:
        return token_major(x)

    def gather(self, weights: Pair, parts: Sequence[Slot]) -> Slot:
        heads_out = _heads_out(weights[0], len(parts), parts[0][0].shape[1])
        heads = weights[0].shape[1] // len(parts)
        routed = gather(weights, [_of_heads(part, heads) for part in parts])
        return _of_heads(routed, heads_out)

    def spread(self, columns: Pair, grads: Slot) -> list[Slot]:
        _, heads, rows = columns[0].shape
        heads_in = grads[0].shape[1] * heads // rows
        of_slots = spread(columns, _of_heads(grads, rows))
        return [_of_heads(grad, heads_in) for grad in of_slots]

    def gram(self, grads: Slot, parts: Sequence[Slot], shape: torch.Size) -> Pair:
        heads = shape[1] // len(parts)
        slots = [_of_heads(part, heads) for part in parts]
        return gram(_of_heads(grads, shape[0]), slots)


_kernels = Kernels()


def store(key: Tensor, value: Tensor) -> Slot:
    """Return a slot token major, whose gradient is computed once for all readers."""
    return deferred.store(_kernels, key, value)


def route(slots: Sequence[Slot], router: Router) -> Slot:
    """Compute ``naive.route`` with Triton kernels."""
    if torch.compiler.is_compiling():
        keys, values = zip(*slots, strict=True)
        return _compiled_route(list(keys), list(values), list(router))
    return deferred.route(_kernels, slots, router)


@torch.library.custom_op("layermem::route", mutates_args=())
def _compiled_route(
    keys: list[Tensor], values: list[Tensor], router: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Compute a route as one operator, which torch.compile does not look into."""
    slots = list(zip(keys, values, strict=True))
    return _kernels.gather((router[0], router[-1]), slots)


@_compiled_route.register_fake
def _(keys: list[Tensor], values: list[Tensor], router: list[Tensor]) -> tuple[Tensor, Tensor]:
    heads_out = _heads_out(router[0], len(keys), keys[0].shape[1])
    return _empty_token_major(keys[0], heads_out), _empty_token_major(keys[0], heads_out)


@torch.library.custom_op("layermem::route_backward", mutates_args=())
def _compiled_backward(
    keys: list[Tensor], values: list[Tensor], router: list[Tensor], d_key: Tensor, d_value: Tensor
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return the gradients of keys, values and weights of one route."""
    slots = list(zip(keys, values, strict=True))
    grads = token_major(d_key), token_major(d_value)
    columns = [w.to(d_key.dtype).unflatten(1, (len(keys), -1)).permute(1, 2, 0) for w in router]
    d_keys, d_values = zip(*_kernels.spread((columns[0], columns[-1]), grads), strict=True)
    grams = _kernels.gram(grads, slots, router[0].shape)
    sums = grams if len(router) == 2 else (grams[0] + grams[1],)
    # Copies: what an operator returns must not share memory.
    d_router = [s.to(weight.dtype, copy=True) for s, weight in zip(sums, router, strict=True)]
    return list(d_keys), list(d_values), d_router


@_compiled_backward.register_fake
def _(
    keys: list[Tensor], values: list[Tensor], router: list[Tensor], d_key: Tensor, d_value: Tensor
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    heads = keys[0].shape[1]
    return (
        [_empty_token_major(d_key, heads) for _ in keys],
        [_empty_token_major(d_value, heads) for _ in values],
        [torch.empty_like(weight) for weight in router],
    )


def _save_inputs(
    ctx: Any, inputs: tuple[list[Tensor], list[Tensor], list[Tensor]], output: Any
) -> None:
    keys, values, router = inputs
    ctx.count = len(keys)
    ctx.save_for_backward(*keys, *values, *router)


def _route_gradients(ctx: Any, d_key: Tensor, d_value: Tensor) -> tuple[Any, ...]:
    tensors, count = list(ctx.saved_tensors), ctx.count
    keys, values, router = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
    return _compiled_backward(keys, values, router, d_key, d_value)


_compiled_route.register_autograd(_route_gradients, setup_context=_save_inputs)


def _empty_token_major(x: Tensor, heads: int) -> Tensor:
    """Return an empty tensor [B, heads, T, E], token major, as the kernels make them."""
    batch, _, tokens, width = x.shape
    return x.new_empty(batch, tokens, heads, width).transpose(1, 2)
