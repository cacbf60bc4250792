"""Launches of the Triton kernels: slots and gradients in, tensors out.

Keys and values are computed in one launch. All tensors [B, R, T, E] that a launch reads or returns
are token major: their memory has the order [B, T, R, E], as projections make it.

Letters: S slots, R heads, M output heads, B batch, T tokens, E head width, N = B T rows.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from layermem.ops.route import kernels
from layermem.ops.route.naive import Slot

# Slots of one launch: their pointers are kernel arguments, two for each slot.
_MAX_SLOTS = 128
# Pieces in which ``gram`` sums the rows, at most.
_MAX_PIECES = 64
# Programs of ``gram_group`` that are enough for a GPU.
_PROGRAMS = 1024
# Layers of one launch for a group: two pointers more for each.
_MAX_GROUP = 32
# Bytes of a tile.
_TILE_BYTES = 16384
# Numbers that a program of ``gather_group`` sums at most.
_ACCUMULATORS = 16384


def gather(weight: Tensor, parts: Sequence[Slot], start: Slot | None = None) -> Slot:
    """Launch ``gather``: weight [M, S * R] over S parts, added to ``start``, rounded once.

    ``start`` has the dtype of the sums, token major.
    """
    key = parts[0][0]
    batch, heads, tokens, width = key.shape
    shape = (batch, tokens, weight.shape[0], width)
    totals: Sequence[Tensor] = start or ()
    for first in range(0, len(parts), _MAX_SLOTS):
        chunk = parts[first : first + _MAX_SLOTS]
        # Between launches the totals stay in float32.
        is_last = first + _MAX_SLOTS >= len(parts)
        dtype = key.dtype if is_last else sum_dtype(key.dtype)
        outs = [torch.empty(shape, dtype=dtype, device=key.device) for _ in range(2)]
        sizes = kernel_sizes(key, weight.shape[0])
        pointers, count = _pointers(chunk, parts[0][0])
        block = weight[:, first * heads :]
        kernels.gather[triton.cdiv(batch * tokens, sizes["BLOCK"]), 2](
            pointers,
            block,
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


def gather_group(weight: Tensor, parts: Sequence[Slot]) -> list[Slot]:
    """Launch ``gather_group``: weight [L * R, S * R] over S parts; return L sums, not rounded.

    Each part is read once for each block of rows of the weight: see ``group_sizes``.
    """
    key = parts[0][0]
    batch, heads, tokens, width = key.shape
    shape, dtype = (batch, tokens, heads, width), sum_dtype(key.dtype)
    # One allocation for each, which is freed as soon as its layer has used it.
    outs = [
        (key.new_empty(shape, dtype=dtype), key.new_empty(shape, dtype=dtype))
        for _ in range(weight.shape[0] // heads)
    ]
    for layer, first in itertools.product(
        range(0, len(outs), _MAX_GROUP), range(0, len(parts), _MAX_SLOTS)
    ):
        block = weight[layer * heads : (layer + _MAX_GROUP) * heads, first * heads :]
        pointers, count = _pointers(parts[first : first + _MAX_SLOTS], key)
        out_pointers, out_count = _pointers(outs[layer : layer + _MAX_GROUP], outs[0][0])
        sizes = group_sizes(key, block.shape[0])
        blocks = triton.cdiv(block.shape[0], sizes["M_PADDED"])
        kernels.gather_group[blocks * triton.cdiv(batch * tokens, sizes["BLOCK"]), 2](
            pointers,
            out_pointers,
            block,
            block.stride(0),
            block.stride(1),
            heads * block.stride(1),
            min(_MAX_SLOTS, len(parts) - first),
            batch * tokens,
            block.shape[0],
            COUNT=count,
            OUT_COUNT=out_count,
            STARTS=first > 0,
            **sizes,
        )
    return [(key.transpose(1, 2), value.transpose(1, 2)) for key, value in outs]


def spread(columns: Tensor, grads: Slot) -> list[Slot]:
    """Launch ``spread``: columns [S, R, M] times one pair of gradients."""
    batch, _, tokens, width = grads[0].shape
    n_parts, heads, heads_out = columns.shape
    shape = (batch, tokens, heads, width)
    # One allocation for each: gradients that are returned must not share memory.
    outs = [(grads[0].new_empty(shape), grads[1].new_empty(shape)) for _ in range(n_parts)]
    sizes = kernel_sizes(grads[0], heads_out, heads)
    for start in range(0, n_parts, _MAX_SLOTS):
        pointers, count = _pointers(outs[start : start + _MAX_SLOTS], outs[0][0])
        block = columns[start:]
        grid = (min(_MAX_SLOTS, n_parts - start), triton.cdiv(batch * tokens, sizes["BLOCK"]), 2)
        kernels.spread[grid](
            pointers, block, *block.stride(), *grads, batch * tokens, COUNT=count, **sizes
        )
    return [(key.transpose(1, 2), value.transpose(1, 2)) for key, value in outs]


def gram(grads: Slot, parts: Sequence[Slot]) -> Tensor:
    """Launch ``gram``: return [M, S * R] in the dtype of the sums."""
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
        blocks.append(pieces.sum(0))
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=1)


def gram_group(grads: Sequence[Slot], parts: Sequence[Slot]) -> Tensor:
    """Launch ``gram_group``: return [L * R, S * R] of L gradients and S parts, not rounded."""
    batch, heads, tokens, _ = parts[0][0].shape
    rows, blocks = batch * tokens, []
    for layer, first in itertools.product(
        range(0, len(grads), _MAX_GROUP), range(0, len(parts), _MAX_SLOTS)
    ):
        some_grads, some = grads[layer : layer + _MAX_GROUP], parts[first : first + _MAX_SLOTS]
        n_out, n_columns = len(some_grads) * heads, len(some) * heads
        grad_pointers, out_count = _pointers(some_grads, grads[0][0])
        pointers, count = _pointers(some, parts[0][0])
        sizes = gram_sizes(parts[0][0], n_out, n_columns)
        tiles = triton.cdiv(n_out, sizes["M_PADDED"]) * triton.cdiv(n_columns, sizes["K_PADDED"])
        # Of many tiles few pieces are enough for all multiprocessors.
        most = max(1, min(_MAX_PIECES, _PROGRAMS // (2 * tiles)))
        per_piece = triton.cdiv(triton.cdiv(rows, most), sizes["BLOCK"]) * sizes["BLOCK"]
        n_pieces = triton.cdiv(rows, per_piece)
        shape = (2 * n_pieces, n_out, n_columns)
        pieces = grads[0][0].new_empty(shape, dtype=sum_dtype(grads[0][0].dtype))
        kernels.gram_group[tiles, n_pieces, 2](
            grad_pointers,
            pointers,
            pieces,
            n_out,
            n_columns,
            rows,
            per_piece,
            OUT_COUNT=out_count,
            COUNT=count,
            **sizes,
        )
        blocks.append(pieces.sum(0))
    if len(blocks) == 1:
        return blocks[0]
    per_row = triton.cdiv(len(parts), _MAX_SLOTS)
    return torch.cat(
        [torch.cat(blocks[i : i + per_row], dim=1) for i in range(0, len(blocks), per_row)]
    )


def kernel_sizes(part: Tensor, heads_out: int, heads: int | None = None) -> dict[str, Any]:
    """Return the constants that a kernel is compiled for, by the names of its arguments."""
    heads = heads or part.shape[1]
    padded = {"M_PADDED": _padded(heads_out), "R_PADDED": _padded(heads)}
    columns = _TILE_BYTES // part.element_size() // max(padded.values())
    return {"M": heads_out, "R": heads, **padded, **_shared_sizes(part, columns)}


def group_sizes(part: Tensor, rows: int) -> dict[str, Any]:
    """Return the constants of ``kernels.gather_group`` for so many rows of the weight.

    In half precision a block has up to 256 rows: of 8 layers with 32 heads, or 32 layers with 8,
    each part is read once. In float32, which tensor cores do not multiply, it has up to 64.
    """
    is_half = part.element_size() == 2
    rows = min(_padded(rows), 256 if is_half else 64)
    columns = min(128 if is_half else 32, _ACCUMULATORS // rows)
    sizes = _shared_sizes(part, columns)
    is_large = rows * sizes["BLOCK"] * sizes["WIDTH_PADDED"] >= _ACCUMULATORS
    return {
        "M_PADDED": rows,
        "R": part.shape[1],
        "R_PADDED": _padded(part.shape[1]),
        **sizes,
        # Registers of more threads. Without tensor cores a product needs many, too.
        "num_warps": 8 if is_large or not is_half else 4,
    }


def gram_sizes(part: Tensor, rows: int, columns: int) -> dict[str, Any]:
    """Return the constants of ``kernels.gram_group`` for so many rows and columns of its result.

    A gradient is read once for each block of columns, a part once for each block of rows: in half
    precision a block has 128 of each.
    """
    most = 128 if part.element_size() == 2 else 64
    padded = {"M_PADDED": min(_padded(rows), most), "K_PADDED": min(_padded(columns), most)}
    return {**padded, "R": part.shape[1], **_shared_sizes(part, 64), "num_stages": 2}


def _shared_sizes(part: Tensor, columns: int) -> dict[str, Any]:
    """Return the constants that all kernels have, for tiles of about so many columns."""
    width = part.shape[3]
    width_padded = triton.next_power_of_2(width)
    dtype = _DTYPES[part.dtype]
    interpreted = is_interpreted()
    tf32 = torch.backends.cuda.matmul.allow_tf32
    return {
        "WIDTH": width,
        "WIDTH_PADDED": width_padded,
        # Tensor cores multiply sixteen columns at least.
        "BLOCK": max(16, width_padded, columns) // width_padded,
        "PRECISION": "tf32" if tf32 else "ieee",
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


def readable(x: Tensor) -> Tensor:
    """Return x [B, R, T, E] as kernels read it: token major, in memory aligned to 16 bytes."""
    x = token_major(x)
    # A view into a larger tensor may begin anywhere.
    return x if x.data_ptr() % 16 == 0 else x.transpose(1, 2).clone().transpose(1, 2)


def is_interpreted() -> bool:
    """Whether kernels run in triton's interpreter, on the CPU."""
    return bool(triton.knobs.runtime.interpret)
