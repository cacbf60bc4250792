"""Multi-query associative recall (MQAR): the value of each key, asked for later in the sequence.

    prompt      k42 v17 k6 v80 k31 v55 k9 v12 _ _ k31 _ k42 _ _ _ k9 _ k6 _ ...
    solution    v55 v17 v12 v80

The setting is that of Arora et al. (2312.04927): different keys with different values, then every
key once more, at an even distance that follows a power law; what is asked for never stands in the
sequence after its query. docs/tasks.md says where this differs from the paper's code.
"""

import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal

from tokenizers import Tokenizer

from layermem_bench.tasks.problems import (
    BLANK,
    Grade,
    Queried,
    Split,
    check_split_and_count,
    describe_queried,
    draw_different,
    grade_answers,
    is_in_split,
    require,
    require_one_of,
    shared_with_training,
    tokenizer_of_words,
)


def generate(
    *,
    split: Split = "train",
    count: int,
    seed: int,
    vocabulary: int = 128,
    pairs: int = 8,
    length: int = 64,
    alpha: float = 0.1,
    filler: Literal["blank", "random"] = "blank",
) -> list[Queried]:
    """Draw ``count`` different problems of ``length`` words.

    ``vocabulary`` is the number of words: half are keys, half values. ``pairs`` of them open the
    sequence. Of the even distances after the pairs, each key takes one, with a probability that
    falls like ``distance ** (alpha - 1)`` (1: uniform). ``filler`` stands everywhere else: a blank,
    or words drawn from the whole vocabulary, which may repeat a key or a value.

    Splits are disjoint whatever the seeds and other options: the set of pairs decides.
    """
    check_split_and_count(split, count)
    _check_sizes(vocabulary, pairs, length, alpha, filler)
    keys, values = _keys_and_values(vocabulary)
    rest = length - 2 * pairs
    weights = [distance ** (alpha - 1) for distance in range(1, rest // 2 + 1)]
    draw = random.Random(f"{split}-{seed}")

    def draw_problem() -> Queried | None:
        drawn = list(zip(draw.sample(keys, pairs), draw.sample(values, pairs), strict=True))
        if not is_in_split(_pairs_as_text(drawn), split):
            return None
        words = [BLANK] * rest if filler == "blank" else draw.choices([*keys, *values], k=rest)
        return _as_problem(drawn, _draw_gaps(draw, weights, pairs), words)

    sizes = f"vocabulary {vocabulary}, pairs {pairs}, length {length}, split {split}"
    return draw_different(draw_problem, count, sizes)


def grade(problem: Queried, text: str) -> Grade:
    """Grade values; of faults, "other" is the value of another key of the problem."""
    return grade_answers(problem, text, set(problem.answers))


def chance(problems: Sequence[Queried]) -> float:
    return statistics.fmean(1 / len(problem.queries) for problem in problems)


def word_tokenizer(vocabulary: int = 128, **_: Any) -> Tokenizer:
    keys, values = _keys_and_values(vocabulary)
    return tokenizer_of_words([BLANK, *keys, *values])


def describe(problems: Sequence[Queried]) -> dict[str, Any]:
    return {
        **describe_queried(problems),
        "words back to the key, up to: fewest, median, most": [
            summary([level for problem in problems for level in problem.levels])
            for summary in (min, statistics.median, max)
        ],
        "a guess among the values": chance(problems),
        "right answers by shortcut": {
            name: statistics.fmean(ok for p in problems for ok in _try_shortcut(name, p))
            for name in SHORTCUTS
        },
    }


def overlap(tests: Sequence[Queried], training: Sequence[Queried]) -> dict[str, float]:
    share = shared_with_training(tests, training, lambda p: _pairs_as_text(read_pairs(p)))
    return {"the pairs of a training problem": share}


def read_pairs(problem: Queried) -> list[tuple[str, str]]:
    words = problem.prompt.split()[: 2 * len(problem.queries)]
    return list(zip(words[::2], words[1::2], strict=True))


# What each answers to the queries, one after the other, given the values in their order.
SHORTCUTS: dict[str, Callable[[list[str]], list[str]]] = {
    "values in the order in which they stand": lambda values: values,
    "values in the opposite order": lambda values: values[::-1],
    "the nearest value": lambda values: [values[-1]] * len(values),
}


def _try_shortcut(name: str, problem: Queried) -> list[bool]:
    guesses = SHORTCUTS[name]([value for _, value in read_pairs(problem)])
    return [guess == answer for guess, answer in zip(guesses, problem.answers, strict=True)]


def _check_sizes(vocabulary: int, pairs: int, length: int, alpha: float, filler: str) -> None:
    require(pairs >= 1, f"pairs must be at least 1, got {pairs}")
    require(
        vocabulary % 2 == 0 and vocabulary >= 2 * pairs,
        f"vocabulary must be even and at least twice the pairs ({2 * pairs}), got {vocabulary}",
    )
    require(
        length % 2 == 0 and length >= 4 * pairs,
        f"length must be even and at least four times the pairs ({4 * pairs}), got {length}",
    )
    require(0 <= alpha <= 1, f"alpha must be from 0 to 1, got {alpha}")
    require_one_of("filler", filler, ("blank", "random"))


def _keys_and_values(vocabulary: int) -> tuple[list[str], list[str]]:
    numbers = range(vocabulary // 2)
    return [f"k{number}" for number in numbers], [f"v{number}" for number in numbers]


def _pairs_as_text(pairs: Sequence[tuple[str, str]]) -> str:
    return " ".join(f"{key} {value}" for key, value in sorted(pairs))


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
