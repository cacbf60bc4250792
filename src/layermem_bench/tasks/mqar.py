"""Multi-query associative recall (MQAR): the value of each key, asked for later in the sequence.

    prompt      k42 v17 k6 v80 k31 v55 k9 v12 _ _ k31 _ k42 _ _ _ k9 _ k6 _ ...
    solution    v55 v17 v12 v80

The setting is that of Arora et al. (2312.04927): different keys with different values, then every
key once more, at an even distance that follows a power law; what is asked for never stands in the
sequence after its query. docs/tasks.md says where this differs from the paper's code.
"""

import random
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from layermem_bench.tasks.problems import (
    BLANK,
    Queried,
    Split,
    draw_different,
    is_in_split,
    require,
    tokenizer_of_words,
)

# The exponent of the distances, more 1.
_ALPHA = 0.1


def generate(
    *,
    split: Split = "train",
    count: int,
    seed: int,
    vocabulary: int = 128,
    pairs: int = 8,
    length: int = 64,
) -> list[Queried]:
    """Draw ``count`` different problems of ``length`` words.

    ``vocabulary`` is the number of words: half are keys, half values. ``pairs`` of them open the
    sequence. Of the even distances after the pairs, each key takes one, with a probability that
    falls like ``distance ** -0.9``, as in the paper. Blanks stand everywhere else.

    Splits are disjoint whatever the seeds and other options: the set of pairs decides.
    """
    require(
        vocabulary % 2 == 0 and vocabulary >= 2 * pairs,
        f"vocabulary must be even and at least twice the pairs ({2 * pairs}), got {vocabulary}",
    )
    require(
        length % 2 == 0 and length >= 4 * pairs,
        f"length must be even and at least four times the pairs ({4 * pairs}), got {length}",
    )
    keys, values = _keys_and_values(vocabulary)
    rest = length - 2 * pairs
    weights = [distance ** (_ALPHA - 1) for distance in range(1, rest // 2 + 1)]
    draw = random.Random(f"{split}-{seed}")

    def draw_problem() -> Queried | None:
        drawn = list(zip(draw.sample(keys, pairs), draw.sample(values, pairs), strict=True))
        if not is_in_split(" ".join(f"{key} {value}" for key, value in sorted(drawn)), split):
            return None
        return _as_problem(drawn, _draw_gaps(draw, weights, pairs), [BLANK] * rest)

    sizes = f"vocabulary {vocabulary}, pairs {pairs}, length {length}, split {split}"
    return draw_different(draw_problem, count, sizes)


def possible_answers(problem: Queried) -> set[str]:
    """Return the values of a problem."""
    return set(problem.answers)


def word_tokenizer(vocabulary: int = 128, **_: Any) -> Tokenizer:
    keys, values = _keys_and_values(vocabulary)
    return tokenizer_of_words([BLANK, *keys, *values])


def _keys_and_values(vocabulary: int) -> tuple[list[str], list[str]]:
    numbers = range(vocabulary // 2)
    return [f"k{number}" for number in numbers], [f"v{number}" for number in numbers]


def _draw_gaps(draw: random.Random, weights: Sequence[float], count: int) -> list[int]:
    """Return different numbers of pairs of words between the pairs and each query, one a key.

    The smallest of exponential variables at these rates is each with probability proportional to
    its weight, and so is the next of those left. The result is shuffled, since otherwise the first
    key would be asked for first.
    """
    gaps = sorted(range(len(weights)), key=lambda gap: draw.expovariate(weights[gap]))[:count]
    return draw.sample(gaps, count)


def _as_problem(pairs: Sequence[tuple[str, str]], gaps: Sequence[int], words: list[str]) -> Queried:
    """Write the keys into the words that follow the pairs."""
    asked = sorted(zip(gaps, range(len(pairs)), strict=True))
    for gap, number in asked:
        words[2 * gap] = pairs[number][0]
    queries = [2 * len(pairs) + 2 * gap for gap, _ in asked]
    distances = [query - 2 * number for query, (_, number) in zip(queries, asked, strict=True)]
    return Queried(
        prompt=" ".join([*(word for pair in pairs for word in pair), *words]),
        solution=" ".join(pairs[number][1] for _, number in asked),
        queries=tuple(queries),
        # The power of two that a distance does not exceed.
        levels=tuple(1 << (distance - 1).bit_length() for distance in distances),
    )
