"""Evaluation of checkpoints: losses, grammar, their own tasks' problems, benchmarks; their scores.

Here is what all kinds have: shares of right answers with intervals, and differences item by item.
Two questions have two intervals: what other items would show (Wilson, jackknife, McNemar), and what
other few-shot examples would show (Student's t over seeds, of the repeats that a score holds).
"""

import csv
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import fsspec

from layermem_bench.evals.result import Difference, Score
from layermem_bench.statistics import holm, mcnemar, paired, proportion, ratio_interval

Key = TypeVar("Key")
Tell = Callable[[str, int | None, int | None], None]
"""Called with what is being done, how much is done, and of how much, where that is known."""


def tokens_of(tell: Tell, what: str) -> Callable[[int], None]:
    """Return what tells how many tokens of ``what`` are done."""
    return lambda tokens: tell(f"{what}: {tokens:,} tokens", None, None)


@contextmanager
def in_eval_mode(model: Any) -> Iterator[None]:
    """Hold a model in eval mode; afterwards it is in the mode that it was in."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file, plain or compressed (.xz, .gz, .bz2): of JSON lines, of a .tsv
    with a header, whose quotation marks are text, or of one JSON object over all lines."""
    with fsspec.open(path, "rt", encoding="utf-8-sig", compression="infer", newline="") as file:
        if ".tsv" in path.suffixes:
            return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        text = file.read()
    try:
        if ".json" in path.suffixes:
            return [json.loads(text)]
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    except ValueError as error:
        raise ValueError(f"{path} is not JSON, an object a line: {error}") from error


def share_right(repeats: Sequence[Sequence[int]]) -> Score:
    """Return the share of right answers, given 1 or 0 for each item, repeat by repeat."""
    items = len(repeats[0])
    by_repeat = tuple(sum(right) / items for right in repeats)
    return Score(
        value=statistics.fmean(by_repeat),
        # An item counts with the share of repeats that it is right with.
        interval=proportion(sum(map(sum, repeats)) / len(repeats), items),
        count=items,
        repeats=by_repeat,
    )


def compare_right(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> Difference:
    """Return the difference of two models, given 1 or 0 for each item, repeat by repeat.

    The p-value is McNemar's, by the first repeat.
    """
    items = len(ours[0])
    sides = (ours, theirs)
    means = [[sum(item) / len(side) for item in zip(*side, strict=True)] for side in sides]
    interval = ratio_interval([(mean, [1.0] * items) for mean in means])
    pairs = list(zip(ours[0], theirs[0], strict=True))
    return Difference(
        value=paired(*([sum(right) / items for right in side] for side in sides)).mean,
        # No difference of shares is larger than 1.
        interval=tuple(max(-1.0, min(1.0, end)) for end in interval.ends) if interval else (),
        p=mcnemar(pairs.count((1, 0)), pairs.count((0, 1))),
    )


def adjust(differences: Mapping[Key, Difference]) -> dict[Key, Difference]:
    """Return differences with p-values, where they have one, adjusted by Holm's method."""
    adjusted = iter(holm([each.p for each in differences.values() if each.p is not None]))
    return {
        key: each if each.p is None else replace(each, p=next(adjusted))
        for key, each in differences.items()
    }
