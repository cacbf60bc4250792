"""What a run on labelled records starts with: its tokenizer, its data, its model's config.

It does not know: the model, the trainer, the run folder.
"""

import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from layermem.config import Records, Run
from layermem.data.labelled_records import FieldNames, read_records
from layermem.data.record_splits import (
    Split,
    check_labels,
    find_classes,
    leave_out,
    split_by_hash,
)
from layermem.results.record_counts import RecordCounts
from layermem.train.record_dataset import RecordDataset, RecordEncoder, padding_of

logger = logging.getLogger(__name__)
_HEADED = "ForSequenceClassification"
# Models whose positions are counted from the id of the padding token on.
_OFFSET_POSITIONS = {
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "roberta-prelayernorm",
}


@dataclass(frozen=True, kw_only=True)
class PreparedRecords:
    """The data of a run on records, and the config of the classifier that it trains."""

    tokenizer: Any
    train_data: RecordDataset
    validation_data: RecordDataset
    config: Any
    """Config of the model, with the classes and the padding token."""
    counts: RecordCounts


def prepare_records(run: Run) -> PreparedRecords:
    """Read, split and encode the records of a run."""
    tokenizer = _load_tokenizer(run)
    (train, validation), names, left_out = _read(run.records)
    config = _load_config(run)
    classes = _order_classes(find_classes(train), config, str(run.host.model))
    for side in (train, validation):
        check_labels(side, classes)
    _check_fits(run, config, tokenizer)
    encoder = RecordEncoder(
        tokenizer,
        run.records.max_length,
        has_segments=getattr(config, "type_vocab_size", 0) > 1,
    )
    encoder.check_length(len(names.texts))
    train_data, validation_data = (
        RecordDataset(side, classes, encoder) for side in (train, validation)
    )
    _check_known(train_data, tokenizer, str(run.host.model))
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
        counts=counts,
    )


def _read(records: Records) -> tuple[Split, FieldNames, int]:
    """Return the two splits, the fields, and how many records were left out of training."""
    source = Path(str(records.source)).expanduser()
    train, names = read_records(source, records.fields, records.label)
    if records.validation is None:
        return split_by_hash(train, records.validation_share), names, 0
    path = Path(records.validation).expanduser()
    validation, _ = read_records(path, names.texts, names.label)
    kept = leave_out(train, validation)
    return (kept, validation), names, len(train) - len(kept)


def _load_tokenizer(run: Run) -> Any:
    host = run.host
    try:
        return AutoTokenizer.from_pretrained(host.model, revision=host.revision or "main")
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{host.model} has no tokenizer ({str(error).splitlines()[0]}); save one into it: "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        ) from error


def _load_config(run: Run) -> Any:
    """Return the config of the pretrained model, or that of a file for random weights."""
    file = run.records.from_config
    if file is None:
        return AutoConfig.from_pretrained(run.host.model, revision=run.host.revision or "main")
    try:
        fields = json.loads(Path(file).expanduser().read_text(encoding="utf-8"))
        return AutoConfig.for_model(fields.pop("model_type"), **fields)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{file} is no config of a model of transformers, a JSON object with model_type and "
            f"sizes ({type(error).__name__}: {error})"
        ) from error


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


def _check_fits(run: Run, config: Any, tokenizer: Any) -> None:
    """Raise if the model has no place for what the tokenizer makes of the records."""
    text, model = config.get_text_config(), run.records.from_config or run.host.model
    if len(tokenizer) > text.vocab_size:
        raise ValueError(
            f"{model} has {text.vocab_size} token ids, and its tokenizer {len(tokenizer)}: they "
            "do not belong together"
        )
    own, theirs = config.pad_token_id, tokenizer.pad_token_id
    if None not in (own, theirs) and own != theirs and run.records.from_config is None:
        raise ValueError(
            f"{model} takes token {own} for padding, and its tokenizer {theirs}: save the "
            "tokenizer that it was trained with"
        )
    offset = padding_of(tokenizer) + 1 if config.model_type in _OFFSET_POSITIONS else 0
    longest = getattr(text, "max_position_embeddings", None)
    if isinstance(longest, int) and run.records.max_length > longest - offset:
        raise ValueError(
            f"records.max_length={run.records.max_length} is more than {model} reads, "
            f"{longest - offset} tokens (max_position_embeddings): lower it"
        )


def _check_known(data: RecordDataset, tokenizer: Any, model: str) -> None:
    """Raise if most tokens are unknown: transformers makes a tokenizer up where there is none."""
    tokens = [token for ids, _ in data.sequences for token in ids]
    unknown = tokens.count(tokenizer.unk_token_id)
    special = sum(token in tokenizer.all_special_ids for token in tokens) - unknown
    if 2 * unknown > len(tokens) - special:
        raise ValueError(
            f"the tokenizer of {model} knows {len(tokens) - special - unknown} of "
            f"{len(tokens) - special} tokens of the training records: it is none of theirs, or "
            "there is none; save one there: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )


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
