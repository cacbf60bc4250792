"""A residual stream of several states: project, read and write it.

Autograd saves the streams, the sub-layer's output and the weights; no product as large as a stream.

Letters: N tokens of all sequences, n streams, D width, K outputs of a projection.
"""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def project(streams: Tensor, matrix: Tensor, eps: float) -> Tensor:
    """Return norm(x) matrix^T, of streams [N, n, D], in the matrix' dtype.

    A matrix [K, D] projects each stream to [N, n, K]; a matrix [K, n D] all of them, as one vector,
    to [N, K]. The norm scales x to unit mean square; it commutes with the product, so that the
    normed x is never made.
    """
    x = streams if matrix.shape[1] == streams.shape[2] else streams.flatten(1)
    if x.dtype == matrix.dtype:
        return _project(x, matrix, eps)
    # A wider copy of the streams would be saved for the backward: it is made again there.
    projected: Tensor = checkpoint(_project, x, matrix, eps, use_reentrant=False)
    return projected


def _project(x: Tensor, matrix: Tensor, eps: float) -> Tensor:
    x = x.to(matrix.dtype)
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return nn.functional.linear(x, matrix) * scale


def read(streams: Tensor, weights: Tensor) -> Tensor:
    """Return sum_j weights[j] H_j [N, D], of streams H [N, n, D] and weights [N, 1, n]."""
    return torch.bmm(weights, streams)[:, 0]


def write(streams: Tensor, y: Tensor, mixing: Tensor, weights: Tensor) -> Tensor:
    """Return H_i = sum_j mixing[i, j] H_j + weights[i] y [N, n, D].

    ``streams`` H [N, n, D], ``y`` [N, D], ``mixing`` [N, n, n], ``weights`` [N, n, 1].
    """
    return torch.addcmul(torch.bmm(mixing, streams), weights, y[:, None])
