"""What a run's final model gets right: problems of a task, labels of records, questions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from layermem_bench.config.typed_dicts import from_dict, to_dict

# Of 64-bit floats, in an interval whose end is the share itself.
_ROUNDED = 1e-9


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Of some problems, the share that was solved, and with every step right; 95% intervals."""

    count: int
    accuracy: float
    """Share with the right final answer; of problems with several answers, the mean share of right
    answers."""
    interval: tuple[float, ...]
    steps: float
    steps_interval: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_shares(accuracy=self.accuracy, steps=self.steps)
        for name, share, interval in (
            ("interval", self.accuracy, self.interval),
            ("steps_interval", self.steps, self.steps_interval),
        ):
            if len(interval) != 2 or not interval[0] - _ROUNDED <= share <= interval[1] + _ROUNDED:
                raise ValueError(f"{name} must be two ends around {share}, is {[*interval]}")


@dataclass(frozen=True, kw_only=True)
class Solved(Shares):
    """What a model solves of one set of problems, and the accuracy of a guess."""

    chance: float
    by: Mapping[str, Mapping[str, Shares]] = field(default_factory=dict)
    """What levels are called ("operands", "steps") to each level's shares."""
    faults: Mapping[str, int] = field(default_factory=dict)
    """How often each kind of fault was the first in a wrong solution."""
    task: str | None = None
    split: str | None = None
    model: str | None = None
    """Checkpoint that solved them, where it is not that of a run."""
    run_id: str | None = None
    steps_taken: int | None = None
    problems: str | None = None
    """Digest of the problems, the same for the same problems in the same order."""
    solutions: str | None = None
    """Digest of the solutions by which they were graded."""

    def to_json(self) -> str:
        """Return the text of a result.json, without what is not recorded."""
        values = {name: value for name, value in to_dict(self).items() if value is not None}
        return json.dumps(values, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Solved":
        """Return what a result.json says."""
        return from_dict(cls, json.loads(text), "")


@dataclass(frozen=True, kw_only=True)
class RecordCounts:
    """Numbers of records of one run, the fields of their texts and their label, and its classes in
    the order of the model's outputs."""

    KIND: ClassVar[str] = "records"
    VERSION: ClassVar[int] = 1
    COMMAND: ClassVar[str] = "layermem train --host MODEL --records"

    fields: tuple[str, ...]
    label: str
    separator: str | None
    """Token put between two texts, without special tokens at their ends; None: one text, or the
    tokenizer joins two in its own way."""
    classes: tuple[str, ...]
    training: int
    validation: int
    left_out: int
    """Training records whose texts are in the validation file."""
    training_cut: int
    """Training records cut to records.max_length."""
    validation_cut: int
    majority: str
    majority_share: float
    """Share of the validation records that have the most frequent label."""


@dataclass(frozen=True, kw_only=True)
class QuestionCounts:
    """Numbers of questions of one run, and of the sequences that they are read in (windows)."""

    training: int
    validation: int
    left_out: int
    """Training questions whose contexts are in the validation file."""
    training_windows: int
    validation_windows: int
    training_out_of_reach: int
    """Training questions whose first gold answer is in no window whole, or is longer than
    records.longest_answer."""
    validation_out_of_reach: int
    separator: str | None
    """Token put after the question and after the context, without special tokens elsewhere; None:
    the tokenizer joins the two in its own way."""
    null_is_first: bool
    """Whether the null token is [CLS]; otherwise it is the last of a window."""


@dataclass(frozen=True, kw_only=True)
class AnswerScore:
    """Mean scores of answers to some questions, with 95% intervals by Wilson's method, which takes
    in that a score may be between 0 and 1; a guess has none."""

    count: int
    exact: float
    """Share of answers that match a gold answer."""
    exact_interval: tuple[float, ...] = ()
    f1: float
    f1_interval: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _check_shares(exact=self.exact, f1=self.f1)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Scores of one run's final model on all validation questions, and on each kind of them."""

    KIND: ClassVar[str] = "answers"
    VERSION: ClassVar[int] = 1
    COMMAND: ClassVar[str] = "layermem train --host MODEL --records FILE --kind question-answering"

    run_id: str
    counts: QuestionCounts
    all: AnswerScore
    has_answer: AnswerScore | None
    """Of questions that have an answer (HasAns); None: there are none."""
    no_answer: AnswerScore | None
    """Of those that have none (NoAns)."""
    guesses: Mapping[str, AnswerScore]
    """Name of a guess to its scores: "none" gives no answer, "first words" and "random words" as
    many words of the context as the training answers have in the median."""


def _check_shares(**shares: float) -> None:
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise ValueError(f"{name} must be from 0 to 1, is {share}")
