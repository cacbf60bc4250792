"""What a run on labelled records was trained and validated on: how many, which fields and classes.

It does not know: the records, how they are read or split.
"""

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
