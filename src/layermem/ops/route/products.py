"""Products and layouts of slots that lie below each other: keys, or values, as one matrix [S R, C].

Where a weight is a scalar a slot, a slot is one head, whose width is that of all: R = 1 here.

Letters: S slots, R heads, M rows of a weight, B batch, T tokens, E head width, C = B T E.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
"""What is of keys, and what is of values."""
Router = tuple[Tensor, ...]
"""The weight of keys and values, or one of keys and one of values."""
# Columns of one product, so that what it adds to stays in the processor's cache.
_TILE = 2048


def as_router(router: Router | Tensor | None) -> Router | None:
    """Return the weights of a router in a tuple, one weight as well; None: there is none."""
    return (router,) if isinstance(router, Tensor) else router


def as_rows(part: Tensor, heads: int) -> Tensor:
    """Return a key or value [B, R, T, E] as a matrix of ``heads`` rows, which are R or one.

    It is a view of what is head major.
    """
    return part.transpose(0, 1).reshape(heads, -1)


def as_slot(rows: Tensor, shape: torch.Size) -> Tensor:
    """Return rows of ``as_rows`` as a view [B, *, T, E] like ``shape`` but for its heads."""
    batch, _, tokens, width = shape
    return rows.view(-1, batch, tokens, width).transpose(0, 1)


def view_slots(matrix: Tensor, shape: torch.Size) -> list[Tensor]:
    """Return the keys (or values) of a matrix [L R, C] as L views [B, R, T, E] like ``shape``."""
    batch, heads, tokens, width = shape
    return list(matrix.view(-1, heads, batch, tokens, width).transpose(1, 2).unbind())


def runs_of(layers: Sequence[int]) -> list[range]:
    """Return ascending layers as ranges of consecutive ones."""
    if not layers:
        return []
    if layers[-1] - layers[0] == len(layers) - 1:
        return [range(layers[0], layers[-1] + 1)]
    ends = [i for i, (a, b) in enumerate(pairwise(layers), 1) if b > a + 1]
    bounds = pairwise([0, *ends, len(layers)])
    return [range(layers[a], layers[b - 1] + 1) for a, b in bounds]


def pieces_of(layers: Sequence[int], length: int) -> list[range]:
    """Return ascending layers as ranges of at most ``length`` consecutive ones."""
    return [run[i : i + length] for run in runs_of(layers) for i in range(0, len(run), length)]


def add_product(total: Tensor, weight: Tensor, part: Tensor) -> Tensor:
    """Add weight @ part to ``total``, in place. Torch counts its FLOPs; not those of ``addmm_``."""
    return torch.addmm(total, weight, part, out=total)


def sum_of_runs(
    weights: Sequence[Tensor], parts: Sequence[Tensor], total: Tensor | None = None
) -> Tensor:
    """Sum weights[i] [M, K_i] @ parts[i] [K_i, C] over i, in place on the total if there is one.

    In half precision it is one product, which is rounded once.
    """
    if total is None:
        if len(parts) > 1 and parts[0].element_size() == 2:
            return torch.mm(torch.cat(list(weights), dim=1), torch.cat(list(parts)))
        total = torch.mm(weights[0], parts[0])
        weights, parts = weights[1:], parts[1:]
    for weight, part in zip(weights, parts, strict=True):
        add_product(total, weight, part)
    return total


def sum_products(weights: Sequence[Tensor], parts: Sequence[Tensor]) -> Tensor:
    """Sum weights[i] [M, K] @ parts[i] [K, C] over i; on a CPU tile by tile of columns."""
    out = parts[0].new_empty(weights[0].shape[0], parts[0].shape[1])
    # Elsewhere each call costs more than a sum that is read again.
    width = _TILE if out.is_cpu else max(1, out.shape[1])
    for start in range(0, out.shape[1], width):
        tile = slice(start, start + width)
        total = out[:, tile]
        torch.mm(weights[0], parts[0][:, tile], out=total)
        for weight, part in zip(weights[1:], parts[1:], strict=True):
            add_product(total, weight, part[:, tile])
    return out


def stack_rows(parts: Sequence[Tensor], heads: int) -> Tensor:
    """Return the keys, or the values, of slots as one matrix of ``heads`` rows a slot.

    It is a view where they lie in one storage in this order, as they do unless hooks on saved
    tensors have returned copies.
    """
    first = parts[0].transpose(0, 1)
    start, step = first.data_ptr(), first.numel() * first.element_size()
    storage = first.untyped_storage().data_ptr()
    if all(
        part.transpose(0, 1).is_contiguous()
        and part.untyped_storage().data_ptr() == storage
        and part.data_ptr() == start + i * step
        for i, part in enumerate(parts)
    ):
        columns = first.numel() // heads
        return first.as_strided((len(parts) * heads, columns), (columns, 1))
    return torch.cat([as_rows(part, heads) for part in parts])
