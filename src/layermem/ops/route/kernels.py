"""The Triton kernels of routing: the code that runs on the device, one tile at a time.

Slots are token major: [N, R, E] with a row for each token. A tile holds some rows of one slot as a
matrix [heads, rows * width], whose sizes are padded to what tensor cores multiply; a mask keeps the
padding from being read or written.

An example: R = 6 heads of E = 20 numbers. Heads are padded to 16 and the width to 32, so that a
tile of BLOCK = 2 rows is a matrix [16, 64]. Its column 33 is number 1 of the second row.

Letters: R heads, M output heads, E head width (WIDTH), N rows (batch x tokens).
"""

import triton
import triton.language as tl


@triton.jit
def _pick(pointers, index, dtype: tl.constexpr, COUNT: tl.constexpr):
    """Return pointers[index] for an index that is known at run time only.

    Triton indexes tuples by constants alone, so each pointer is compared in turn: of pointers (a,
    b, c), ``where(index == 2, c, where(index == 1, b, a))``. Every pointer is aligned to 16 bytes.
    """
    pointer = pointers[0].to(tl.int64)
    for i in tl.static_range(1, COUNT):
        pointer = tl.where(index == i, pointers[i].to(tl.int64), pointer)
    return tl.multiple_of(pointer.to(tl.pointer_type(dtype)), 16)


@triton.jit
def _tile(
    first, n_rows, HEADS: tl.constexpr, PADDED: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, WIDTH_PADDED: tl.constexpr,
):  # fmt: skip
    """Return offsets and mask of the tile [heads, rows * width] that begins at row ``first``."""
    head, column = tl.arange(0, PADDED), tl.arange(0, BLOCK * WIDTH_PADDED)
    row, place = first + column // WIDTH_PADDED, column % WIDTH_PADDED
    start = row.to(tl.int64) * (HEADS * WIDTH)
    offsets = start[None, :] + (head[:, None] * WIDTH + place[None, :])
    mask = (head < HEADS)[:, None] & ((row < n_rows) & (place < WIDTH))[None, :]
    return offsets, mask


@triton.jit
def _matrix(
    pointer, stride_row, stride_column, ROWS: tl.constexpr, ROWS_PADDED: tl.constexpr,
    COLUMNS: tl.constexpr, COLUMNS_PADDED: tl.constexpr,
):  # fmt: skip
    """Load a small matrix, padded with zeros."""
    row, column = tl.arange(0, ROWS_PADDED)[:, None], tl.arange(0, COLUMNS_PADDED)[None, :]
    mask = (row < ROWS) & (column < COLUMNS)
    return tl.load(pointer + row * stride_row + column * stride_column, mask=mask, other=0.0)


@triton.jit
def gather(
    parts, key_weight, value_weight, stride_m, stride_r, stride_part, key_out, value_out, key_start,
    value_start, n_parts, n_rows, COUNT: tl.constexpr, M: tl.constexpr, M_PADDED: tl.constexpr,
    R: tl.constexpr, R_PADDED: tl.constexpr, WIDTH: tl.constexpr, WIDTH_PADDED: tl.constexpr,
    BLOCK: tl.constexpr, STARTS: tl.constexpr, PRECISION: tl.constexpr, dtype: tl.constexpr,
    DOT: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """out[m] = start[m] + sum_{i, r} weight[m, i, r] * parts[i][r], for keys or for values."""
    first, is_value = tl.program_id(0) * BLOCK, tl.program_id(1)
    offsets, mask = _tile(first, n_rows, R, R_PADDED, WIDTH, BLOCK, WIDTH_PADDED)
    out_at, out_mask = _tile(first, n_rows, M, M_PADDED, WIDTH, BLOCK, WIDTH_PADDED)
    weight = key_weight if is_value == 0 else value_weight
    total = tl.zeros([M_PADDED, BLOCK * WIDTH_PADDED], SUM)
    if STARTS:
        start = key_start if is_value == 0 else value_start
        total = tl.load(start + out_at, mask=out_mask, other=0.0)
    for i in range(n_parts):
        part = _pick(parts, is_value * COUNT + i, dtype, 2 * COUNT)
        x = tl.load(part + offsets, mask=mask, other=0.0)
        w = _matrix(weight + i * stride_part, stride_m, stride_r, M, M_PADDED, R, R_PADDED)
        total = tl.dot(
            w.to(dtype).to(DOT), x.to(DOT), total, input_precision=PRECISION, out_dtype=SUM
        )
    out = key_out if is_value == 0 else value_out
    tl.store(out + out_at, total.to(out.dtype.element_ty), mask=out_mask)


@triton.jit
def spread(
    outs, key_weight, value_weight, stride_part, stride_r, stride_m, key_grad, value_grad, n_rows,
    COUNT: tl.constexpr, M: tl.constexpr, M_PADDED: tl.constexpr, R: tl.constexpr,
    R_PADDED: tl.constexpr, WIDTH: tl.constexpr, WIDTH_PADDED: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr, dtype: tl.constexpr,
    DOT: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """outs[i][r] = sum_m weight[i, r, m] * grad[m], for keys or for values.

    The slot is the first axis of the grid, so that programs which run at the same time read the
    same tile of the gradient.
    """
    i, first, is_value = tl.program_id(0), tl.program_id(1) * BLOCK, tl.program_id(2)
    offsets, mask = _tile(first, n_rows, M, M_PADDED, WIDTH, BLOCK, WIDTH_PADDED)
    out_at, out_mask = _tile(first, n_rows, R, R_PADDED, WIDTH, BLOCK, WIDTH_PADDED)
    grad = key_grad if is_value == 0 else value_grad
    weight = key_weight if is_value == 0 else value_weight
    x = tl.load(grad + offsets, mask=mask, other=0.0)
    w = _matrix(weight + i * stride_part, stride_r, stride_m, R, R_PADDED, M, M_PADDED)
    y = tl.dot(w.to(dtype).to(DOT), x.to(DOT), input_precision=PRECISION, out_dtype=SUM)
    out = _pick(outs, is_value * COUNT + i, dtype, 2 * COUNT)
    tl.store(out + out_at, y.to(dtype), mask=out_mask)


@triton.jit
def gram(
    parts, key_grad, value_grad, pieces, n_parts, n_rows, rows_per_piece, COUNT: tl.constexpr,
    M: tl.constexpr, M_PADDED: tl.constexpr, R: tl.constexpr, R_PADDED: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_PADDED: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr, dtype: tl.constexpr,
    DOT: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """pieces[p, m, i, r] = grad[m] * parts[i][r], summed over the rows of piece p and the width."""
    i, piece, is_value = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    part = _pick(parts, is_value * COUNT + i, dtype, 2 * COUNT)
    grad = key_grad if is_value == 0 else value_grad
    total = tl.zeros([M_PADDED, R_PADDED], SUM)
    first = piece * rows_per_piece
    last = tl.minimum(first + rows_per_piece, n_rows)
    for row in range(first, last, BLOCK):
        offsets, mask = _tile(row, last, R, R_PADDED, WIDTH, BLOCK, WIDTH_PADDED)
        x = tl.load(part + offsets, mask=mask, other=0.0)
        grad_at, grad_mask = _tile(row, last, M, M_PADDED, WIDTH, BLOCK, WIDTH_PADDED)
        g = tl.load(grad + grad_at, mask=grad_mask, other=0.0)
        total = tl.dot(
            g.to(DOT), tl.trans(x).to(DOT), total, input_precision=PRECISION, out_dtype=SUM
        )
    m, r = tl.arange(0, M_PADDED)[:, None], tl.arange(0, R_PADDED)[None, :]
    at = (((is_value * tl.num_programs(1) + piece) * M + m) * n_parts + i) * R + r
    tl.store(pieces + at, total, mask=(m < M) & (r < R))
