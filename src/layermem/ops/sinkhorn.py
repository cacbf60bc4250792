"""Matrices whose rows and columns sum to one, by Sinkhorn's iteration.

After every round the matrix is diag(u) K diag(v), K = exp(logits), where from u = 1

    v = 1 / (K^T u)        columns sum to one
    u = 1 / (K v)          rows sum to one

so that autograd saves K once and two vectors a round, in place of two matrices a round.

Letters: N matrices, n rows and columns.
"""

import torch
from torch import Tensor


def sinkhorn(logits: Tensor, rounds: int) -> Tensor:
    """Return exp(logits) [N, n, n]; each round divides columns, then rows, by their sums."""
    # The matrices last, [n, n, N]: sums over n are sums of long rows.
    logits = logits.permute(1, 2, 0).contiguous()
    # Without effect: the first division takes a factor of a column away.
    kernel = (logits - logits.detach().amax(0, keepdim=True)).exp()
    u, v = torch.ones_like(kernel[:, 0]), kernel[0]
    for _ in range(rounds):
        v = (kernel * u[:, None]).sum(0).reciprocal()
        u = (kernel * v).sum(1).reciprocal()
    return (u[:, None] * kernel * v).permute(2, 0, 1)
