"""Reading from and writing to a residual stream of several states, as formulas.

    input      h   = sum_j w[0, j] H_j
    next state H_i = sum_j w[1 + i, j] H_j + w[1 + i, n] y

The weights are one matrix of n + 1 rows and columns, the same for all tokens or one for each. Its
first row makes the input of a sub-layer, the others the next streams; its last column weighs the
sub-layer's output y. The first row's last weight has no meaning.

Letters: N tokens of all sequences, n streams, D width.
It does not know: where weights come from, autocast, modules.
"""

import torch
from torch import Tensor


def read(streams: Tensor, weights: Tensor) -> Tensor:
    """Return the input of a sub-layer [N, D], from streams [N, n, D] and weights [N, n + 1, n + 1].

    The weights' first dimension may be 1, for all tokens.
    """
    n = streams.shape[1]
    first = weights[:, :1, :n].expand(len(streams), 1, n)
    return torch.bmm(first, streams)[:, 0]


def write(streams: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Return the next streams [N, n, D], from the last, the output y [N, D] and the weights."""
    n = streams.shape[1]
    mixing = weights[:, 1:, :n].expand(len(streams), n, n)
    return torch.baddbmm(weights[:, 1:, n:] * y[:, None], mixing, streams)
