"""What a run on labelled records starts with: its tokenizer, its data, its model's config.

It does not know: the model, the trainer, the run folder.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoModelForSequenceClassification

from layermem.config import Records, Run
from layermem.data.labelled_records import FieldNames, LabelledRecord, read_records
from layermem.data.record_splits import check_labels, find_classes, leave_out, split_by_hash
from layermem.results.record_counts import RecordCounts
from layermem.train.host_inputs import (
    check_fits,
    check_known,
    load_host_config,
    load_host_tokenizer,
    padding_of,
)
from layermem.train.prepared_records import PreparedRecords
from layermem.train.question_data import prepare_questions
from layermem.train.record_dataset import RecordDataset, RecordEncoder
from layermem.train.record_results import save_classified
from layermem.train.record_trainer import ClassTrainer

logger = logging.getLogger(__name__)
_HEADED = "ForSequenceClassification"


def prepare_records(run: Run) -> PreparedRecords:
    """Read, split and encode the records of a run, of whatever kind."""
    if run.records.kind == "question-answering":
        return prepare_questions(run)
    return prepare_labelled(run)


def prepare_labelled(run: Run) -> PreparedRecords:
    """Read, split and encode the labelled records of a run."""
    tokenizer = load_host_tokenizer(run)
    train, validation, names, left_out = _read(run.records)
    config = load_host_config(run)
    classes = _order_classes(find_classes(train), config, str(run.host.model))
    for side in (train, validation):
        check_labels(side, classes)
    check_fits(run, config, tokenizer)
    encoder = RecordEncoder(
        tokenizer,
        run.records.max_length,
        has_segments=getattr(config, "type_vocab_size", 0) > 1,
    )
    encoder.check_length(len(names.texts))
    train_data, validation_data = (
        RecordDataset(side, classes, encoder) for side in (train, validation)
    )
    check_known((ids for ids, _ in train_data.sequences), tokenizer, str(run.host.model))
    _set_classes(config, classes, padding_of(tokenizer))
    majority, count = Counter(record.label for record in validation).most_common(1)[0]
    counts = RecordCounts(
        fields=names.texts,
        label=names.label,
        separator=encoder.separator(len(names.texts)),
        classes=tuple(classes),
        training=len(train),
        validation=len(validation),
        left_out=left_out,
        training_cut=train_data.cut,
        validation_cut=validation_data.cut,
        majority=majority,
        majority_share=count / len(validation),
    )
    _log(counts, run.records)
    return PreparedRecords(
        tokenizer=tokenizer,
        train_data=train_data,
        validation_data=validation_data,
        config=config,
        auto_class=AutoModelForSequenceClassification,
        trainer=ClassTrainer,
        save_results=partial(save_classified, counts, validation_data),
    )


def _read(
    records: Records,
) -> tuple[list[LabelledRecord], list[LabelledRecord], FieldNames, int]:
    """Return the two splits, the fields, and how many records were left out of training."""
    source = Path(str(records.source)).expanduser()
    train, names = read_records(source, records.fields, records.label)
    if records.validation is None:
        return *split_by_hash(train, records.validation_share), names, 0
    path = Path(records.validation).expanduser()
    validation, _ = read_records(path, names.texts, names.label)
    kept = leave_out(train, validation)
    return kept, validation, names, len(train) - len(kept)


def _order_classes(classes: list[str], config: Any, model: str) -> list[str]:
    """Return the classes in the order of the head that a model has already, if it has one."""
    if not any(name.endswith(_HEADED) for name in config.architectures or ()):
        return classes
    of_head = [str(config.id2label[i]) for i in range(config.num_labels)]
    if of_head == [f"LABEL_{i}" for i in range(config.num_labels)]:
        of_head = [str(i) for i in range(config.num_labels)]
    if sorted(of_head) != sorted(classes):
        raise ValueError(
            f"{model} is a classifier of {', '.join(of_head)}, and the records have the labels "
            f"{', '.join(classes)}: write them alike, or start from a model without that head"
        )
    return of_head


def _set_classes(config: Any, classes: Sequence[str], padding: int) -> None:
    config.id2label = dict(enumerate(classes))
    config.label2id = {label: i for i, label in enumerate(classes)}
    config.problem_type = "single_label_classification"
    # A decoder reads the class at the last token that is no padding.
    config.pad_token_id = padding


def _log(counts: RecordCounts, records: Records) -> None:
    logger.info(
        "records: %s and the label %s; %d for training, %d for validation (%d left out, since "
        "their texts are in both); cut to %d tokens: %d and %d; classes: %s",
        " and ".join(counts.fields),
        counts.label,
        counts.training,
        counts.validation,
        counts.left_out,
        records.max_length,
        counts.training_cut,
        counts.validation_cut,
        ", ".join(counts.classes),
    )
