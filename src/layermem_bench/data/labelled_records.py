"""Records with one or two texts and a label, as in GLUE; training and validation records.

    index	question	sentence	label
    0	What came into force ...?	As of that day, ...	entailment

The fields of the texts are found by the names that such data sets use, unless they are given.

A record's side depends on its texts alone (of a question, on its context), so that all records with
the same texts are on one side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from layermem_bench.config.hashing import hash_to_unit_interval
from layermem_bench.data.question_records import QuestionRecord
from layermem_bench.data.records import Record, file_records

_USUAL_FIELDS = (
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("question", "sentence"),
    ("question", "passage"),
    ("premise", "hypothesis"),
    ("sentence",),
    ("text",),
)
# Written where there is no label: in test files of GLUE, and where SNLI's annotators differ.
_NO_LABEL = ("", "-", "-1")
_R = TypeVar("_R", "LabelledRecord", QuestionRecord)


@dataclass(frozen=True, kw_only=True)
class LabelledRecord:
    """One record of one or two texts."""

    texts: tuple[str, ...]
    label: str
    """Its label, a whole number as its digits."""
    where: str
    """File and line, for errors."""

    @property
    def split_key(self) -> str:
        """Return the texts as one, whatever their whitespace is."""
        # No normalised text holds this sign, so that "a b" and "c" are not "a" and "b c".
        return "\x1f".join(" ".join(text.split()) for text in self.texts)


@dataclass(frozen=True, kw_only=True)
class FieldNames:
    """Names of the fields that hold the texts and the label of a record."""

    texts: tuple[str, ...]
    label: str


def read_records(
    path: Path, fields: Sequence[str] = (), label: str | None = None
) -> tuple[list[LabelledRecord], FieldNames]:
    """Return the records of a file, and the fields that were read: as given, or the usual ones."""
    records: list[LabelledRecord] = []
    names: FieldNames | None = None
    for record in file_records(path):
        names = names or _find_fields(record, fields, label)
        texts, of_record = tuple(map(record.text, names.texts)), _label(record, names.label)
        records.append(LabelledRecord(texts=texts, label=of_record, where=record.where))
    if names is None:
        raise ValueError(f"there are no records in {path}")
    return records, names


def _find_fields(record: Record, fields: Sequence[str], label: str | None) -> FieldNames:
    """Return the names to read, which must be in the first record and leave no doubt."""
    label = label or "label"
    for name in (*fields, label):
        record.field(name, "; name the fields with --fields and --label")
    if fields:
        return FieldNames(texts=tuple(fields), label=label)
    names = record.fields.keys() - {label}
    usual = names & {name for group in _USUAL_FIELDS for name in group}
    # The names that take in all others; "question" alone would leave out what it is asked of.
    for group in _USUAL_FIELDS:
        if set(group) == usual:
            return FieldNames(texts=group, label=label)
    raise ValueError(
        f"{record.where} does not say which of {', '.join(map(str, record.fields))} hold the "
        "texts: name one or two with --fields"
    )


def _label(record: Record, name: str) -> str:
    value = record.field(name)
    if not isinstance(value, str | int):
        raise record.error(name, "be a class, a text or a whole number", value)
    text = str(value).strip()
    if text in _NO_LABEL:
        raise ValueError(f"{record.where}: {name} is {value!r}, which is no label: leave it out")
    if "." in text and text.replace(".", "", 1).lstrip("-").isdecimal():
        raise ValueError(f"{record.where}: {name} is {text}, a score, and only classes are learnt")
    return text


def split_records(
    records: Sequence[_R], validation: list[_R] | None, share: float
) -> tuple[list[_R], list[_R], int]:
    """Return training and validation records, and how many are left out of training; without
    ``validation``, the records of another file, a share is held out."""
    if validation is not None:
        validated = {record.split_key for record in validation}
        train = [record for record in records if record.split_key not in validated]
        if not train:
            raise ValueError(
                f"the texts of all {len(records)} training records are in the validation file too: "
                "name another --validation, or none for a share of the records"
            )
        return train, validation, len(records) - len(train)
    sides: tuple[list[_R], list[_R]] = ([], [])
    for record in records:
        sides[hash_to_unit_interval(record.split_key) < share].append(record)
    for side, name in zip(sides, ("training", "validation"), strict=True):
        if not side:
            raise ValueError(
                f"of {len(records)} records none are left for {name} with records.validation_share="
                f"{share}: choose another share, or name a --validation file"
            )
    return sides[0], sides[1], 0


def find_classes(records: Sequence[LabelledRecord]) -> list[str]:
    """Return the labels of training records, whole numbers by size, others by the alphabet."""
    labels = {record.label for record in records}
    if len(labels) < 2:
        raise ValueError(
            f"all {len(records)} training records have the label {labels.pop()!r}: nothing to learn"
        )
    if len(labels) > len(records) / 2:
        raise ValueError(
            f"{len(records)} training records have {len(labels)} labels, such as "
            f"{records[0].label!r}: that is no class; name the field of the classes with --label"
        )
    numbers = all(label.lstrip("-").isdecimal() for label in labels)
    return sorted(labels, key=int if numbers else None)


def check_labels(records: Sequence[LabelledRecord], classes: Sequence[str]) -> None:
    """Raise, naming the line, if a label is none of the classes."""
    for record in records:
        if record.label not in classes:
            raise ValueError(
                f"{record.where}: the label {record.label!r} is none of the classes that are "
                f"learnt: {', '.join(classes)}"
            )
