"""Variance and covariance of sequence representations at each position, the terms of Seq-VCR.

With z = x W^T at a position, and C the covariance of its K features over the sequences of a batch:

    variance term      1 / (T K) sum_t sum_k max(0, 1 - sqrt(C_kk + 0.001))
    covariance term    1 / (T K) sum_t sum_k sum_{k' != k} C_kk'^2

C [K, K] is never made: the sum of its squares is that of the products of sequences [B, B], and the
features of no more than a chunk of positions are in memory at once; the backward computes them
again. A position counts if at least two sequences reach it; T is the number of these.

Letters: B sequences, T positions, D width, K features.
"""

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from layermem.ops.shared_gradient import autocast_disabled

# Added to a variance before its square root, whose slope at 0 is infinite.
_EPSILON = 1e-3
# Numbers in the features [B, T, K] of a chunk of positions, at most.
_MAX_NUMBERS = 2**24


def variance_and_covariance(
    x: Tensor, weight: Tensor, real: Tensor, *, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the two terms of x [B, T, D], projected by ``weight`` [K, D].

    ``real`` [B, T]: whether a sequence reaches a position; padding is left out. ``chunk``: number
    of positions whose features are in memory at once; None: as many as have 2^24 numbers.
    """
    if len(x) < 2:
        raise ValueError(f"a covariance over sequences needs at least 2 of them, got {len(x)}")
    if chunk is None:
        chunk = max(1, _MAX_NUMBERS // (len(x) * len(weight)))
    # Squares of covariances overflow or vanish in half precision.
    wide = torch.promote_types(x.dtype, torch.float32)
    with autocast_disabled(x):
        x, weight = x.to(wide), weight.to(wide)
        if x.shape[1] <= chunk:
            sums = _sums(x, weight, real)
        else:
            recomputed = partial(checkpoint, _sums, use_reentrant=False, preserve_rng_state=False)
            parts = zip(x.split(chunk, dim=1), real.split(chunk, dim=1), strict=True)
            sums = torch.stack([recomputed(part, weight, kept) for part, kept in parts]).sum(0)
    positions = (real.sum(0) >= 2).sum().clamp(min=1)
    variance, covariance = sums / (positions * len(weight))
    return variance, covariance


def _sums(x: Tensor, weight: Tensor, real: Tensor) -> Tensor:
    """Return the sums over positions and features of both terms [2]."""
    # Positions first: [T, B, K].
    z = linear(x.transpose(0, 1), weight)
    mask = real.T[..., None]
    count = mask.sum(1)
    mean = (z * mask).sum(1) / count.clamp(min=1)
    centred = (z - mean[:, None]) * mask
    degrees = (count - 1).clamp(min=1)
    variances = centred.square().sum(1) / degrees
    # sum_kk' C_kk'^2 = |Z^T Z|^2 = |Z Z^T|^2, over the squared degrees of freedom.
    products = centred @ centred.mT
    squares = products.square().sum((1, 2)) / degrees[:, 0] ** 2
    counted = count[:, 0] >= 2
    too_narrow = (1 - (variances + _EPSILON).sqrt()).clamp(min=0).sum(1)
    off_diagonal = squares - variances.square().sum(1)
    return torch.stack([(term * counted).sum() for term in (too_narrow, off_diagonal)])
