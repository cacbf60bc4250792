"""The products of sums over depth, without an intermediate as large as all states.

States that share memory are read where they are, by one product. States of few tokens, as at
decoding, are copied for it: there calls cost more than arithmetic. Otherwise, one sum is
accumulated state by state, in place. Several sums of one list of states read it once: a tile of
tokens is copied into a scratch [tile, S, D], which stays in the processor's cache, and multiplied
by the weights of all sums.

Letters: S states, C sums, B batch, T tokens, N = B T, D width.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from layermem.ops.depth.naive import Weights, column, common_dtype, count_sums

_TILE = 128
# Up to this many numbers in a state, states are copied into one tensor.
_FEW = 16384


def widest(*dtypes: torch.dtype) -> torch.dtype:
    """Return the dtype to compute in: float32 at least."""
    wide = torch.float32
    for dtype in dtypes:
        wide = torch.promote_types(wide, dtype)
    return wide


def mix(states: Sequence[Tensor], weights: Weights) -> Tensor:
    """Compute ``naive.mix``."""
    if weights.dim() == 4 and states[0].numel() <= _FEW:
        stacked = torch.stack(tuple(states), dim=2)
        wide = widest(stacked.dtype)
        sums = weights.to(wide) @ stacked.to(wide)
        return sums.to(stacked.dtype).movedim(2, 0)
    dtype, count, shape = common_dtype(states), count_sums(weights), states[0].shape
    weights = weights.to(widest(dtype))
    if mixes_pieces(states, weights):
        return (weights @ _pieces(states, weights.dtype)).view(count, *shape).to(dtype)
    matrix = None if weights.dim() == 3 else _as_matrix(states, weights.dtype)
    if matrix is not None:
        sums = torch.bmm(_by_token(weights, len(matrix)), matrix).to(dtype)
        return sums.transpose(0, 1).contiguous().view(count, *shape)
    if weights.dim() == 3 or count == 1:
        parts = [
            accumulate(None, [(x, column(weights, c, j)) for j, x in enumerate(states)]).to(dtype)
            for c in range(count)
        ]
        return torch.stack(parts) if count > 1 else parts[0][None]
    out = states[0].new_empty(count, shape[0] * shape[1], shape[2], dtype=dtype)
    by_token = _by_token(weights, out.shape[1])
    for tokens, scratch in _tiles(states, weights.dtype):
        out[:, tokens] = torch.bmm(by_token[tokens], scratch).transpose(0, 1)
    return out.view(count, *shape)


def mixes_pieces(states: Sequence[Tensor], weights: Weights) -> bool:
    """Whether states are read whole by one product: for several sums, not token after token."""
    if weights.dim() != 2 or len(weights) == 1:
        return False
    return states[0].stride(1) < len(states) * states[0].shape[2]


def mix_gradients(states: Sequence[Tensor], weights: Tensor, grad: Tensor) -> Iterator[Tensor]:
    """Return the gradients of the states of ``mix`` by constant weights, from one product."""
    wide = weights.to(widest(weights.dtype, common_dtype(states)))
    of_states = wide.t() @ grad.reshape(len(weights), -1).to(wide.dtype)
    return (d.view_as(x).to(x.dtype) for d, x in zip(of_states, states, strict=True))


def add_mix_gradients(total: Tensor, weights: Weights, grad: Tensor) -> None:
    """Add the gradients of the states of ``mix`` to ``total`` [N, S, D], a view of a buffer."""
    weights, rows = weights.to(total.dtype), grad.flatten(1, 2).to(total.dtype)
    if total.stride(0) == total.shape[2]:
        # States apart: a view, never a copy.
        total.transpose(0, 1).flatten(1).addmm_(weights.t(), rows.flatten(1))
        return
    by_token, rows = _by_token(weights, len(total)).transpose(1, 2), rows.transpose(0, 1)
    # On a CPU a tile of the product stays in the cache until it is added.
    step = _TILE if total.device.type == "cpu" else max(1, len(rows))
    for start in range(0, len(rows), step):
        tokens = slice(start, start + step)
        total[tokens].add_(torch.bmm(by_token[tokens], rows[tokens]))


def _pieces(states: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return states below each other, [S, N D]: a copy, unless they lie so in memory."""
    first = states[0]
    if first.is_contiguous() and not torch.compiler.is_compiling():
        matrix = _equally_spaced(states, dtype, first.numel())
        if matrix is not None:
            return matrix.transpose(0, 1).view(len(states), first.numel())
    return torch.stack([x.to(dtype) for x in states]).flatten(1)


def accumulate(total: Tensor | None, terms: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return ``total`` plus the sum of x * weight over ``terms``, in the dtype of the weights.

    A weight is [], [D] or [B, T, 1]. ``total`` stays as it is.
    """
    dtype = terms[0][1].dtype
    owned = None
    for x, weight in terms:
        wide = x.to(dtype)
        if owned is not None:
            owned.addcmul_(wide, weight)
        elif total is not None:
            owned = torch.addcmul(total.to(dtype), wide, weight)
        else:
            owned = wide * weight
    assert owned is not None
    return owned


def mix_weight_gradient(states: Sequence[Tensor], weights: Weights, grads: Tensor) -> Weights:
    """Return the gradient of the weights of ``mix`` from that of its sums."""
    wide = widest(weights.dtype, common_dtype(states))
    if mixes_pieces(states, weights):
        rows = grads.reshape(len(weights), -1).to(wide)
        return (rows @ _pieces(states, wide).t()).to(weights.dtype)
    matrix = None if weights.dim() == 3 else _as_matrix(states, wide)
    if matrix is not None:
        rows = grads.flatten(1, 2).transpose(0, 1).to(wide)
        by_token = torch.bmm(rows, matrix.transpose(1, 2))
        total = by_token.view_as(weights) if weights.dim() == 4 else by_token.sum(0)
        return total.to(weights.dtype)
    gradient = weights.new_empty(weights.shape, dtype=wide)
    if weights.dim() == 4 and len(grads) > 1:
        by_token, flat = gradient.view(-1, *weights.shape[2:]), grads.flatten(1, 2)
        for tokens, scratch in _tiles(states, wide):
            tile = flat[:, tokens].transpose(0, 1).to(wide)
            by_token[tokens] = torch.bmm(tile, scratch.transpose(1, 2))
        return gradient.to(weights.dtype)
    for c, grad in enumerate(grads.to(wide)):
        for j, x in enumerate(states):
            if weights.dim() == 4:
                gradient[:, :, c, j] = torch.linalg.vecdot(grad, x.to(wide))
            elif weights.dim() == 3:
                gradient[c, j] = (grad * x).flatten(0, 1).sum(0)
            else:
                gradient[c, j] = torch.dot(grad.reshape(-1), x.to(wide).reshape(-1))
    return gradient.to(weights.dtype)


def score(states: Sequence[Tensor], vectors: Tensor) -> Tensor:
    """Compute ``naive.score``."""
    wide = widest(common_dtype(states))
    vectors = vectors.to(wide)
    matrix = _as_matrix(states, wide)
    if matrix is not None:
        by_token = vectors.expand(len(matrix), -1, -1)
        # In this order: twice as fast on a CPU as the transposed product.
        return torch.bmm(by_token, matrix.transpose(1, 2)).unflatten(0, states[0].shape[:2])
    across = vectors.t()
    return torch.stack([x.to(wide) @ across for x in states], dim=-1)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """Compute ``naive.inverse_rms``."""
    wide = x.to(widest(x.dtype))
    return torch.rsqrt(torch.linalg.vecdot(wide, wide) / x.shape[-1] + eps)


def score_vectors_gradient(states: Sequence[Tensor], vectors: Tensor, grads: Tensor) -> Tensor:
    """Return the gradient of the vectors of ``score`` from that of its output [B, T, C, S]."""
    matrix = _as_matrix(states, grads.dtype)
    if matrix is not None:
        return torch.bmm(grads.flatten(0, 1), matrix).sum(0).to(vectors.dtype)
    by_state = grads.flatten(0, 1).permute(2, 1, 0).contiguous()
    total = by_state.new_zeros(vectors.shape)
    for grad, x in zip(by_state, states, strict=True):
        total.addmm_(grad, x.reshape(-1, x.shape[-1]).to(total.dtype))
    return total.to(vectors.dtype)


def _by_token(weights: Weights, count: int) -> Tensor:
    """Return weights as [N, C, S]."""
    return weights.flatten(0, 1) if weights.dim() == 4 else weights.expand(count, -1, -1)


def _as_matrix(states: Sequence[Tensor], dtype: torch.dtype) -> Tensor | None:
    """Return states as one tensor [N, S, D] of ``dtype``; None: it would be a large copy."""
    if torch.compiler.is_compiling() or states[0].numel() <= _FEW:
        return torch.stack(tuple(states), dim=2).to(dtype).flatten(0, 1)
    return _shared_memory(states, dtype)


def _shared_memory(states: Sequence[Tensor], dtype: torch.dtype) -> Tensor | None:
    """Return states of ``dtype`` as one tensor [N, S, D] without a copy; None if they are not rows
    of one buffer, below each other."""
    width = states[0].shape[2]
    if states[0].stride(1) < len(states) * width:
        return None
    return _equally_spaced(states, dtype, width)


def _equally_spaced(states: Sequence[Tensor], dtype: torch.dtype, step: int) -> Tensor | None:
    """Return states of ``dtype`` that begin ``step`` numbers after each other in one memory, as a
    view [N, S, D] of it; None: they are not so."""
    first = states[0]
    # The memory of tensors of other classes is not theirs to look at.
    if any(type(x) is not Tensor for x in states):
        return None
    batch, tokens, width = first.shape
    stride = first.stride()
    if first.dtype != dtype or stride != (tokens * stride[1], stride[1], 1):
        return None
    address, storage = first.data_ptr(), first.untyped_storage().data_ptr()
    for j, x in enumerate(states):
        at = address + j * step * first.element_size()
        if x.data_ptr() != at or x.untyped_storage().data_ptr() != storage:
            return None
        if x.shape != first.shape or x.stride() != stride or x.dtype != dtype:
            return None
    return first.as_strided((batch * tokens, len(states), width), (stride[1], step, 1))


def _tiles(states: Sequence[Tensor], dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """Yield a slice of the tokens, and the states of these tokens [tile, S, D]."""
    flat = [x.reshape(-1, x.shape[-1]) for x in states]
    count, width = flat[0].shape
    buffer = flat[0].new_empty(min(count, _TILE), len(flat), width, dtype=dtype)
    for start in range(0, count, _TILE):
        tokens = slice(start, min(start + _TILE, count))
        scratch = buffer[: tokens.stop - start]
        torch.stack([x[tokens].to(dtype) for x in flat], dim=1, out=scratch)
        yield tokens, scratch
