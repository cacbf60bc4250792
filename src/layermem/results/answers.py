"""What a run on records was trained on, and what its model answers to questions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class RecordCounts:
    """The records of one run."""

    KIND: ClassVar[str] = "records"
    VERSION: ClassVar[int] = 1
    COMMAND: ClassVar[str] = "layermem train --host MODEL --records"

    fields: tuple[str, ...]
    """Fields that hold the texts."""
    label: str
    """Field that holds the label."""
    separator: str | None
    """Token put between two texts, without special tokens at their ends; None: one text, or the
    tokenizer joins two in its own way."""
    classes: tuple[str, ...]
    """Labels, in the order of the model's outputs."""
    training: int
    """Training records."""
    validation: int
    """Validation records."""
    left_out: int
    """Records left out of training, since their texts are in the validation file."""
    training_cut: int
    """Training records longer than records.max_length, which were cut."""
    validation_cut: int
    """Validation records that were."""
    majority: str
    """Most frequent label of the validation records."""
    majority_share: float
    """Share of the validation records that have it: what always giving it gets right."""


@dataclass(frozen=True, kw_only=True)
class QuestionCounts:
    """The questions of one run."""

    training: int
    """Training questions."""
    validation: int
    """Validation questions."""
    left_out: int
    """Questions left out of training, since their contexts are in the validation file."""
    training_windows: int
    """Sequences that the training questions are read in."""
    validation_windows: int
    """Sequences that the validation questions are read in."""
    training_out_of_reach: int
    """Training questions whose first gold answer is in no window whole, or is longer than
    records.longest_answer."""
    validation_out_of_reach: int
    """Validation questions of which that is so."""
    separator: str | None
    """Token put after the question and after the context, without special tokens elsewhere; None:
    the tokenizer joins the two in its own way."""
    null_is_first: bool
    """Whether the null token is [CLS]; otherwise it is the last of a window."""


@dataclass(frozen=True, kw_only=True)
class AnswerScore:
    """Mean scores of answers to some questions."""

    count: int
    """Number of questions."""
    exact: float
    """Share of answers that match a gold answer."""
    exact_interval: tuple[float, ...] = ()
    """Its 95% interval (Wilson); empty for a guess."""
    f1: float
    """Mean F1 of words."""
    f1_interval: tuple[float, ...] = ()
    """Its 95% interval (Wilson, which takes in that a score may be between 0 and 1); empty for a
    guess."""

    def __post_init__(self) -> None:
        for name in ("exact", "f1"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, is {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Scores of one run's final model."""

    KIND: ClassVar[str] = "answers"
    VERSION: ClassVar[int] = 1
    COMMAND: ClassVar[str] = "layermem train --host MODEL --records FILE --kind question-answering"

    run_id: str
    """The run."""
    counts: QuestionCounts
    """Its questions."""
    all: AnswerScore
    """Scores of all validation questions."""
    has_answer: AnswerScore | None
    """Of those that have an answer (HasAns); None: there are none."""
    no_answer: AnswerScore | None
    """Of those that have none (NoAns); None: there are none."""
    guesses: Mapping[str, AnswerScore]
    """Name of a guess to its scores: "none" gives no answer, "first words" and "random words" as
    many words of the context as the training answers have in the median."""
