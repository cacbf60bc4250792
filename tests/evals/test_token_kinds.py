"""Kinds of predicted tokens, against a search through all earlier sequences."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layermem_bench.evals.token_kinds import (
    LossSums,
    repetition_bins,
    spans_by_frequency,
    spans_by_repetition,
)


def longest_repeated(ids, i):
    """The length of the longest sequence ending at i that ends at an earlier token, too."""
    longest = 0
    for j in range(i):
        n = 0
        while n <= j and ids[j - n] == ids[i - n]:
            n += 1
        longest = max(longest, n)
    return longest


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_repeated_sequences_are_those_of_a_search(ids):
    expected = [longest_repeated(ids, i).bit_length() for i in range(len(ids))]
    assert repetition_bins(np.array(ids)).tolist() == expected


def test_losses_by_repetition_have_the_lengths_of_their_bin():
    sums = LossSums(6)
    sums.add(np.array([0, 0, 1, 3]), np.array([4.0, 2.0, 1.0, 0.5]))
    spans = spans_by_repetition(sums)
    assert [(s.first, s.last, s.tokens, s.loss) for s in spans] == [
        *((0, 0, 2, 3.0), (1, 1, 1, 1.0), (2, 3, 0, None), (4, 7, 1, 0.5)),
    ]


def test_the_most_frequent_tokens_come_first_and_every_token_counts_once():
    counts = {7: 8, 2: 4, 5: 2, 1: 1, 3: 1}
    sums = LossSums(9)
    for token, count in counts.items():
        sums.add(np.full(count, token), np.full(count, float(token)))
    spans = spans_by_frequency(sums)
    assert [(s.first, s.last, s.tokens, s.loss) for s in spans] == [
        *((1, 1, 8, 7.0), (2, 2, 4, 2.0), (3, 3, 2, 5.0), (4, 4, 1, 1.0), (5, 5, 1, 3.0)),
    ]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=200))
def test_spans_of_frequency_hold_all_tokens_once(tokens):
    sums = LossSums(13)
    sums.add(np.array(tokens), np.ones(len(tokens)))
    spans = spans_by_frequency(sums)
    assert sum(span.tokens for span in spans) == len(tokens)
    assert [span.first for span in spans[1:]] == [span.last + 1 for span in spans[:-1]]
    assert spans[0].tokens >= len(tokens) / 2
    assert sum(s.loss * s.tokens for s in spans) == pytest.approx(len(tokens))
