"""MAD: six small tasks that tell architectures apart: recall, copying, compression, memorization.

    prompt      k3 v1 k5 v0 k3 v1 k5 v0
    queries     4 and 6, counted from 0
    solution    v1 v0

The settings are those of Poli et al. (2403.17844); ``mad_drawing`` has an example of each kind, and
docs/tasks.md says where they differ from the paper's.
"""

import random
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from tokenizers import Tokenizer

from layermem_bench.tasks.mad_drawing import DRAW, Drawn, Sizes, all_words
from layermem_bench.tasks.problems import (
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
    tokenizer_of_words,
)

Kind = Literal["recall", "noisy-recall", "fuzzy-recall", "copying", "compression", "memorization"]
# The paper's settings before difficulty is varied.
BASELINES: dict[str, Sizes] = {
    "recall": Sizes(),
    "noisy-recall": Sizes(vocabulary=32, noise_words=16, noise_share=0.2),
    "fuzzy-recall": Sizes(key_words=3, value_words=3),
    "copying": Sizes(length=256, copied=16),
    "compression": Sizes(length=32),
    "memorization": Sizes(vocabulary=256, length=32),
}
# Kinds that an option is for; the others are for all.
_ONLY_FOR = {
    "noise_words": "noisy-recall",
    "noise_share": "noisy-recall",
    "copied": "copying",
    "key_words": "fuzzy-recall",
    "value_words": "fuzzy-recall",
}


def generate(
    *,
    split: Split = "train",
    count: int,
    seed: int,
    kind: Kind = "recall",
    vocabulary: int | None = None,
    length: int | None = None,
    noise_words: int | None = None,
    noise_share: float | None = None,
    copied: int | None = None,
    key_words: int | None = None,
    value_words: int | None = None,
) -> list[Queried]:
    """Draw ``count`` different problems of a kind.

    Other options are sizes; None: the paper's. ``vocabulary`` counts all words, ``length`` those of
    a sequence, ``noise_words`` and ``noise_share`` the noise of noisy recall, ``copied`` the words
    to copy, ``key_words`` and ``value_words`` the most words of a key and a value of fuzzy recall.

    Splits are disjoint whatever the seeds and other options: the sequence decides.
    """
    check_split_and_count(split, count)
    sizes = choose_sizes(
        kind,
        vocabulary=vocabulary,
        length=length,
        noise_words=noise_words,
        noise_share=noise_share,
        copied=copied,
        key_words=key_words,
        value_words=value_words,
    )
    draw = random.Random(f"{split}-{seed}")

    def draw_problem() -> Queried | None:
        problem = _as_problem(DRAW[kind](draw, sizes, test=split != "train"))
        return problem if is_in_split(problem.prompt, split) else None

    return draw_different(
        draw_problem,
        count,
        f"kind {kind}, vocabulary {sizes.vocabulary}, length {sizes.length}, split {split}",
    )


def choose_sizes(kind: str, **options: Any) -> Sizes:
    """Return the paper's sizes of a kind with those that are given in their place."""
    require_one_of("kind", kind, BASELINES)
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        only = _ONLY_FOR.get(name, kind)
        require(kind == only, f"{name} is an option of kind={only}; kind={kind} has none of it")
    sizes = replace(BASELINES[kind], **given)
    _check_sizes(kind, sizes)
    return sizes


def grade(problem: Queried, text: str) -> Grade:
    """Grade words; of faults, "other" is a word of the problem that could have been an answer."""
    return grade_answers(problem, text, _possible_answers(problem) or problem.answers)


def chance(problems: Sequence[Queried]) -> float:
    """Return the share that a guess among the possible answers that stand in a problem has right.

    Of memorization none does, and the guess is among the answers of all problems.
    """
    every = {answer for problem in problems for answer in problem.answers}
    return statistics.fmean(1 / len(_possible_answers(p) or every) for p in problems)


def word_tokenizer(**options: Any) -> Tokenizer:
    return tokenizer_of_words(_all_words(**options))


def probe_words(**options: Any) -> tuple[str, ...]:
    """Return four words that are frequent: keys, or what is copied or compressed."""
    return tuple(word for word in _all_words(**options) if word[0] in "kw")[:4]


def describe(problems: Sequence[Queried]) -> dict[str, Any]:
    return {
        **describe_queried(problems),
        "a guess among the possible answers": chance(problems),
        "right answers by shortcut": {
            name: statistics.fmean(statistics.fmean(try_shortcut(name, p)) for p in problems)
            for name in SHORTCUTS
        },
    }


def try_shortcut(name: str, problem: Queried) -> list[bool]:
    """Return which answers of a problem a shortcut has right."""
    words, possible = problem.prompt.split(), _possible_answers(problem)
    places = [place for place, word in enumerate(words) if word in possible]
    guesses = ["", *SHORTCUTS[name]([words[place] for place in places])]
    return [
        guesses[bisect_right(places, query)] == answer
        for query, answer in zip(problem.queries, problem.answers, strict=True)
    ]


def _commonest(words: Sequence[str]) -> Iterator[str]:
    """Answer with the word that stood most often so far, of several the one that stood first."""
    counts, commonest = Counter[str](), ""
    order = {word: number for number, word in enumerate(dict.fromkeys(words))}
    for word in words:
        counts[word] += 1
        if (counts[word], -order[word]) > (counts[commonest], -order.get(commonest, 0)):
            commonest = word
        yield commonest


# What each gives after each word that could be an answer.
SHORTCUTS: dict[str, Callable[[Sequence[str]], Iterable[str]]] = {
    "the latest possible answer": lambda words: words,
    "the first possible answer": lambda words: [words[0] for _ in words],
    "the commonest possible answer so far": _commonest,
}


def _possible_answers(problem: Queried) -> set[str]:
    """Return the words of a problem of the sort that its answers are of."""
    sort = problem.solution[0]
    return {word for word in problem.prompt.split() if word[0] == sort and word[1:].isdigit()}


def _all_words(kind: str = "recall", **options: Any) -> list[str]:
    sizes = {name: value for name, value in options.items() if name in Sizes.__slots__}
    return all_words(kind, choose_sizes(kind, **sizes))


def _check_sizes(kind: str, sizes: Sizes) -> None:
    length, vocabulary = sizes.length, sizes.vocabulary
    words = sizes.key_words, sizes.value_words
    least = {"copying": 2 * sizes.copied + 2, "compression": 2, "fuzzy-recall": 3 * sum(words)}
    require(
        length >= least.get(kind, 4),
        f"length of kind={kind} must be at least {least.get(kind, 4)}, got {length}",
    )
    require(
        length % 2 == 0 or kind not in ("recall", "noisy-recall", "memorization"),
        f"length of kind={kind} must be even (pairs of words), got {length}",
    )
    # A key and a value at least, or as many as the longest has; two words of what is copied.
    fewest = 2 * max(words) + 2 + sizes.noise_words
    require(
        vocabulary >= fewest,
        f"vocabulary of kind={kind} must be at least {fewest}, got {vocabulary}",
    )
    require(
        min(words) >= 1 and (kind != "copying" or sizes.copied >= 1),
        f"key_words, value_words and copied must be at least 1, got {words} and {sizes.copied}",
    )
    require(
        0 <= sizes.noise_share < 1 and sizes.noise_words >= bool(sizes.noise_share),
        "noise_share must be at least 0 and below 1, and needs noise_words, got "
        f"{sizes.noise_share} and {sizes.noise_words}",
    )


def _as_problem(drawn: Drawn) -> Queried:
    places = dict[str, int]()
    levels, words = dict[int, int](), drawn.words
    for place, word in enumerate(words):
        places[word] = place
        if place in drawn.answers:
            # 0 where it stands nowhere, or at the query itself.
            distance = place - places.get(drawn.answers[place], place)
            # The power of two that a distance does not exceed.
            levels[place] = 1 << (distance - 1).bit_length() if distance else 0
    return Queried(
        prompt=" ".join(words),
        solution=" ".join(drawn.answers.values()),
        queries=tuple(drawn.answers),
        levels=tuple(levels.values()),
    )
