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

from layermem.tasks import word_problems
from layermem.tasks.grading import Grade
from layermem.tasks.queried import BLANK, Queried, count_answers, grade_answers
from layermem.tasks.splits import Split, check_split_and_count, is_in_split

# After so many draws in a row without a new problem, there are taken to be no more.
_PATIENCE = 2_000


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
    weights = [distance ** (alpha - 1) for distance in range(1, (length - 2 * pairs) // 2 + 1)]
    draw, problems, fruitless = random.Random(f"{split}-{seed}"), dict[str, Queried](), 0
    while len(problems) < count:
        fruitless += 1
        if fruitless > _PATIENCE:
            raise ValueError(
                f"only {len(problems)} of {count} problems were found with vocabulary "
                f"{vocabulary}, pairs {pairs}, length {length}, split {split}; choose a larger "
                "vocabulary or ask for fewer"
            )
        drawn = list(zip(draw.sample(keys, pairs), draw.sample(values, pairs), strict=True))
        if not is_in_split(_pairs_as_text(drawn), split):
            continue
        rest = length - 2 * pairs
        words = [BLANK] * rest if filler == "blank" else draw.choices([*keys, *values], k=rest)
        problem = _as_problem(drawn, _draw_gaps(draw, weights, pairs), words)
        if problem.prompt not in problems:
            problems[problem.prompt] = problem
            fruitless = 0
    return list(problems.values())


def grade(problem: Queried, text: str) -> Grade:
    """Grade the values that were read, in the order of the queries, separated by spaces.

    A fault is "other" (the value of another key of the problem), "foreign" (no value of the
    problem) or "missing".
    """
    return grade_answers(problem, text, set(problem.answers))


def chance(problems: Sequence[Queried]) -> float:
    """Return the share that a guess among the values of a problem has right."""
    return statistics.fmean(1 / len(problem.queries) for problem in problems)


def word_tokenizer(vocabulary: int = 128, **_: Any) -> Tokenizer:
    """Return a tokenizer with a token for each word."""
    return word_problems.word_tokenizer(_all_words(vocabulary))


def probe_words(**_: Any) -> tuple[str, ...]:
    """Return the first keys."""
    return ("k0", "k1", "k2", "k3")


def describe(problems: Sequence[Queried]) -> dict[str, Any]:
    """Return statistics of problems, and how often shortcuts have an answer right."""
    counts = count_answers(problems)
    levels = [level for problem in problems for level in problem.levels]
    return {
        **counts,
        "words back to the key, up to: fewest, median, most": [
            min(levels),
            statistics.median(levels),
            max(levels),
        ],
        "a guess among the values": chance(problems),
        "right answers by shortcut": {
            name: statistics.fmean(share for problem in problems for share in shortcut(problem))
            for name, shortcut in SHORTCUTS.items()
        },
    }


def overlap(tests: Sequence[Queried], training: Sequence[Queried]) -> dict[str, float]:
    """Return which share of the test problems has the pairs of a training problem."""
    if not tests or not training:
        raise ValueError("there are no test problems, or no training problems, to compare")
    trained_on = {_pairs_as_text(read_pairs(problem)) for problem in training}
    shared = sum(_pairs_as_text(read_pairs(problem)) in trained_on for problem in tests)
    return {"the pairs of a training problem": shared / len(tests)}


def read_pairs(problem: Queried) -> list[tuple[str, str]]:
    """Return the pairs that open a sequence."""
    words = problem.prompt.split()[: 2 * len(problem.queries)]
    return list(zip(words[::2], words[1::2], strict=True))


def _same_place(problem: Queried) -> list[bool]:
    """Answer the first query with the first value, the second with the second, and so on."""
    pairs = read_pairs(problem)
    return [value == given for value, (_, given) in zip(problem.answers, pairs, strict=True)]


def _reversed_place(problem: Queried) -> list[bool]:
    """Answer the first query with the last value, the second with the last but one."""
    pairs = read_pairs(problem)[::-1]
    return [value == given for value, (_, given) in zip(problem.answers, pairs, strict=True)]


def _nearest(problem: Queried) -> list[bool]:
    """Answer every query with the value nearest to it, the last one."""
    nearest = read_pairs(problem)[-1][1]
    return [value == nearest for value in problem.answers]


SHORTCUTS: dict[str, Callable[[Queried], list[bool]]] = {
    "values in the order in which they stand": _same_place,
    "values in the opposite order": _reversed_place,
    "the nearest value": _nearest,
}


def _check_sizes(vocabulary: int, pairs: int, length: int, alpha: float, filler: str) -> None:
    if pairs < 1:
        raise ValueError(f"pairs must be at least 1, got {pairs}")
    if vocabulary % 2 or vocabulary < 2 * pairs:
        raise ValueError(
            f"vocabulary must be even (half keys, half values) and at least twice the pairs "
            f"({2 * pairs}), got {vocabulary}"
        )
    if length % 2 or length < 4 * pairs:
        raise ValueError(
            f"length must be even and at least four times the pairs ({4 * pairs}: pairs, queries "
            f"and what follows each query), got {length}"
        )
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be from 0 to 1, got {alpha}")
    if filler not in ("blank", "random"):
        raise ValueError(f"filler must be blank or random, got {filler!r}")


def _keys_and_values(vocabulary: int) -> tuple[list[str], list[str]]:
    numbers = range(vocabulary // 2)
    return [f"k{number}" for number in numbers], [f"v{number}" for number in numbers]


def _all_words(vocabulary: int) -> list[str]:
    keys, values = _keys_and_values(vocabulary)
    return [BLANK, *keys, *values]


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
