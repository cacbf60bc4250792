"""Sinkhorn's iteration as its formula."""

from torch import Tensor


def sinkhorn(logits: Tensor, rounds: int) -> Tensor:
    """Return exp(logits) [N, n, n]; each round divides columns, then rows, by their sums."""
    # Without effect: the first division takes a factor of a column away.
    matrix = (logits - logits.amax(-2, keepdim=True)).exp()
    for _ in range(rounds):
        matrix = matrix / matrix.sum(-2, keepdim=True)
        matrix = matrix / matrix.sum(-1, keepdim=True)
    return matrix
