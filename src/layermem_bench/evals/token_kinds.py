"""Kinds of predicted tokens: how much before them has been seen, and how frequent they are.

Letters: N tokens of a window, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class SpanLoss:
    """Loss of the tokens of which a number, such as a rank, is from ``first`` to ``last``."""

    first: int
    last: int
    tokens: int
    loss: float | None
    """Nats per token; None: there are no such tokens."""


class LossSums:
    """Losses summed by bin."""

    def __init__(self, bins: int) -> None:
        self.nats, self.tokens = np.zeros(bins), np.zeros(bins, dtype=np.int64)

    def add(self, bins: Numbers, losses: Numbers) -> None:
        """Add the loss of each token to its bin."""
        np.add.at(self.nats, bins, losses)
        np.add.at(self.tokens, bins, 1)

    def span(self, bins: slice, first: int, last: int) -> SpanLoss:
        """Return the loss of some bins together, which hold the tokens of a span."""
        nats, tokens = float(self.nats[bins].sum()), int(self.tokens[bins].sum())
        return SpanLoss(
            first=first, last=last, tokens=tokens, loss=nats / tokens if tokens else None
        )


def repetition_bins(ids: Numbers) -> Numbers:
    """Return a bin [N] of each token, by the longest sequence that it ends for a second time.

    Bin 0: the token itself occurs for the first time. Bin i: the last 2^(i-1) tokens, itself
    included, occur before it among ``ids`` in the same order, the last 2^i do not.
    """
    total = len(ids)
    bins = np.zeros(total, dtype=np.int64)
    # ``kinds[i]`` numbers the sequence of ``length`` tokens that ends at token i + length - 1.
    kinds, length = ids, 1
    while len(kinds) > 1:
        _, first, kinds = np.unique(kinds, return_index=True, return_inverse=True)
        is_repeated = first[kinds] < np.arange(len(kinds))
        if not is_repeated.any():
            break
        bins[length - 1 :] += is_repeated
        kinds = kinds[:-length] * len(kinds) + kinds[length:]
        length *= 2
    return bins


def spans_by_repetition(sums: LossSums) -> tuple[SpanLoss, ...]:
    """Return the losses by ``repetition_bins``, of sequences from 2^(i-1) to 2^i - 1 tokens."""
    last = int(np.flatnonzero(sums.tokens).max(initial=0))
    return tuple(
        sums.span(slice(i, i + 1), 2 ** (i - 1) if i else 0, 2**i - 1 if i else 0)
        for i in range(last + 1)
    )


def spans_by_frequency(sums: LossSums) -> tuple[SpanLoss, ...]:
    """Return the losses of tokens by their rank among the V, the most frequent one first.

    ``sums`` has a bin for each id. The first span holds the most frequent tokens that make up half
    of all, the second those that make up half of the rest, and so on; the fifth holds all others.
    """
    order = np.argsort(-sums.tokens, kind="stable")
    order = order[: np.count_nonzero(sums.tokens)]
    by_rank = LossSums(len(order))
    by_rank.nats, by_rank.tokens = sums.nats[order], sums.tokens[order]
    up_to = np.cumsum(by_rank.tokens)
    spans, start = [], 0
    for share in (1 / 2, 3 / 4, 7 / 8, 15 / 16, 1):
        end = int(np.searchsorted(up_to, share * up_to[-1])) + 1 if len(order) else 0
        if end > start:
            spans.append(by_rank.span(slice(start, end), start + 1, end))
            start = end
    return tuple(spans)
