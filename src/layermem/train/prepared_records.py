"""``PreparedRecords``: what a run on records starts with, whatever is learnt of them.

A kind of records brings its data, the head of its model, its trainer and its results; nothing else
in training tells the kinds apart.

It does not know: any kind of records.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from layermem.runs import RunFolder
from layermem.train.question_dataset import QuestionDataset
from layermem.train.record_dataset import RecordDataset
from layermem.train.record_trainer import RecordTrainer


@dataclass(frozen=True, kw_only=True)
class PreparedRecords:
    """The data of a run on records, and what a kind of records brings to it."""

    tokenizer: Any
    train_data: RecordDataset | QuestionDataset
    validation_data: RecordDataset | QuestionDataset
    config: Any
    """Config of the model, with what its head needs, and the padding token."""
    auto_class: Any
    """Class of transformers that loads the model with its head."""
    trainer: type[RecordTrainer]
    """Trains it."""
    save_results: Callable[[RecordTrainer, RunFolder], None]
    """Writes what the trained model makes of the validation records, called by one process."""
