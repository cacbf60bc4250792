"""What evaluations of checkpoints came to, in one form for all of them: eval.json.

A part (losses, grammar, tasks) has tables, whose rows ("arc_easy") have a score for each model.
Shares have two intervals, since there are two questions: what other items would show (Wilson,
jackknife, McNemar), and what other few-shot examples would (Student's t, of a score's repeats).
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, TypeVar

from layermem_base.number_ranges import at_least, number
from layermem_bench.statistics import holm, mcnemar, paired, proportion, ratio_interval

Key = TypeVar("Key")
Tell = Callable[[str, int | None, int | None], None]
"""Called with what is being done, how much is done, and of how much, where that is known."""


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """What is measured, and how."""

    tasks: tuple[str, ...] = ()
    """ppl=FILE: loss and bits per byte of a file, a folder or a dataset; blimp=DIR: BLiMP's minimal
    pairs; the name of a task that runs were trained on (arithmetic); evaluation tasks by name, or
    "paper" (all of the paper's), as `layermem list evals` shows them."""
    limit: int | None = number(None, at_least(1))
    """The first documents of each text, pairs of each paradigm, problems or items of each task;
    None: all, of tasks that runs were trained on 10,000."""
    batch_size: int | None = number(None, at_least(1))
    """Sequences of a batch; None: as many as 128 MB of logits allow, at most 64 (generated
    solutions: 256)."""
    field: str = "text"
    """Of ppl: field of the text, in JSON lines and Parquet."""
    context: int | None = number(None, at_least(1))
    """Of ppl: most tokens that one forward reads; None: of a run on text its block size, of another
    model its longest sequence, the smallest of all checkpoints."""
    stride: int | None = number(None, at_least(1))
    """Of ppl: tokens by which windows of a long document are apart; None: half of the context."""
    ablate: bool = False
    """Of ppl: also measure the loss without what routers read from the first layer, and from other
    earlier layers; every group of weights takes as long as the whole model."""
    task_options: tuple[str, ...] = ()
    """Of a run's task: options of the task, each NAME=VALUE, added to the run's. Asked are problems
    of its test split."""
    shots: int = number(3, at_least(0))
    """Of evaluation tasks: few-shot examples before each item."""
    seeds: int = number(5, at_least(1))
    """Of evaluation tasks: seeds by which few-shot examples are drawn: 0, 1, ..."""
    records: tuple[str, ...] = ()
    """Of evaluation tasks: folders of records; a task without any is fetched from the hub."""
    truncate: bool = False
    """Of evaluation tasks: cut the start of prompts that are longer than the model reads, and say
    how many; without it they are refused."""
    max_length: int | None = number(None, at_least(1))
    """Of evaluation tasks: tokens that a model is given at most; None: as many as it can read."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """What one model comes to in one row: a loss, or a share of right answers."""

    value: float
    interval: tuple[float, ...] = ()
    """Its 95% interval over items: lower and upper end; empty: it has none."""
    count: int | None = None
    """How many of the row's ``unit`` it is of; None: it is a mean of other rows."""
    repeats: tuple[float, ...] = ()
    """The value of each seed of few-shot examples, that it is the mean of; empty: there are no
    examples."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """What tempers it: ties, unknown tokens, cut prompts; or the first faults of wrong solutions.
    Only what there is."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A model's value minus the first model's, on the same items."""

    value: float
    interval: tuple[float, ...] = ()
    """Its 95% interval over items, by the jackknife; empty: there is one item."""
    p: float | None = None
    """p-value, of shares by McNemar's exact test, of losses by the jackknife, adjusted by Holm's
    method; None: there is one item."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a table: of each model that has a value its score, and of each that can be
    compared with the first its difference. ``unit``: what scores count, such as "tokens"."""

    table: str
    name: str
    scores: Mapping[str, Score]
    differences: Mapping[str, Difference] = field(default_factory=dict)
    unit: str = ""
    is_comparable: bool = True
    """Whether models may be compared by it; a loss per token says nothing of other tokens."""
    chance: float | None = None
    """What a guess has right; None: there are no guesses, or models have different problems."""
    most_frequent: float | None = None
    """What always giving the most frequent right answer has right; None: not counted."""
    about: Mapping[str, str] = field(default_factory=dict)
    """Where its items and examples are from."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """What the values of a table have in common."""

    better: Literal["lower", "higher"]
    is_share: bool = True
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Tables of what was measured together, and how, in a few sentences."""

    title: str
    how: str
    tables: Mapping[str, Table]
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """Models side by side."""

    KIND: ClassVar[str] = "eval"
    VERSION: ClassVar[int] = 3
    COMMAND: ClassVar[str] = "layermem eval"

    command: str
    options: EvalOptions
    models: tuple[str, ...]
    """Names of the models; the others are compared with the first."""
    parts: tuple[Part, ...]
    arms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name of each arm to its models, which differ in the seed alone, by seed; all arms have the
    same seeds. Empty: the models are not runs on the same data and of the same seeds."""

    @property
    def tables(self) -> dict[str, Table]:
        """The tables of all parts by name."""
        return {name: table for part in self.parts for name, table in part.tables.items()}

    def of(self, table: str) -> dict[str, Row]:
        """Return the rows of a table by name."""
        return {row.name: row for part in self.parts for row in part.rows if row.table == table}


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
    """Return the difference of two models, given 1 or 0 for each item, repeat by repeat; the
    p-value is McNemar's, by the first repeat."""
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
