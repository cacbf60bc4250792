"""Matrices whose rows and columns sum to one, by Sinkhorn's iteration.

After every round the matrix is diag(u) K diag(v), K = exp(logits): from u = 1 on, v = 1 / (K^T u),
then u = 1 / (K v). So autograd saves K and two vectors a round, in place of two matrices.

Letters: N matrices, n rows and columns.
"""

import torch
from torch import Tensor

from layermem.ops.gradients import is_traced

# Numbers up to which calls cost more than arithmetic: then the division is one call, of logarithms.
_FEW = 8192


def sinkhorn(logits: Tensor, rounds: int) -> Tensor:
    """Return exp(logits) [N, n, n]; each round divides columns, then rows, by their sums."""
    # The matrices last, [n, n, N]: sums over n are sums of long rows.
    logits = logits.permute(1, 2, 0).contiguous()
    if logits.numel() <= _FEW and not (torch.is_grad_enabled() or is_traced()):
        for _ in range(rounds):
            logits = logits.log_softmax(0).log_softmax(1)
        return logits.exp().permute(2, 0, 1)
    # Without effect: the first division takes a factor of a column away.
    kernel = (logits - logits.detach().amax(0, keepdim=True)).exp()
    u, v = torch.ones_like(kernel[:, 0]), kernel[0]
    for _ in range(rounds):
        v = (kernel * u[:, None]).sum(0).reciprocal()
        u = (kernel * v).sum(1).reciprocal()
    return (u[:, None] * kernel * v).permute(2, 0, 1)
