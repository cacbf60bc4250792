"""Records with one or two texts and a label, in the manner of GLUE's files.

    index	question	sentence	label
    0	What came into force ...?	As of that day, ...	entailment

``.tsv`` and ``.csv`` have a header, ``.jsonl`` an object on each line. The fields of the texts are
found by the names that such data sets use, unless they are given.

It does not know: tokens, models, how records are split.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layermem.data import compression
from layermem.data.local_files import json_records
from layermem.data.tables import comma_separated_rows, tab_separated_rows

_READERS = {
    ".tsv": tab_separated_rows,
    ".csv": comma_separated_rows,
    ".jsonl": json_records,
    ".ndjson": json_records,
}
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
_USUAL_LABEL = "label"
# Written where there is no label: in test files of GLUE, and where SNLI's annotators differ.
_NO_LABEL = ("", "-", "-1")


@dataclass(frozen=True, kw_only=True)
class LabelledRecord:
    """One record."""

    texts: tuple[str, ...]
    """Its one or two texts."""
    label: str
    """Its label, a whole number as its digits."""
    where: str
    """File and line, for errors."""

    @property
    def split_key(self) -> str:
        """Return the texts as one."""
        # No text holds this sign, so that "a b" and "c" are not "a" and "b c".
        return "\x1f".join(self.texts)


@dataclass(frozen=True, kw_only=True)
class FieldNames:
    """Names of the fields that hold the texts and the label of a record."""

    texts: tuple[str, ...]
    """One or two names."""
    label: str
    """The name."""


def read_records(
    path: Path, fields: Sequence[str] = (), label: str | None = None
) -> tuple[list[LabelledRecord], FieldNames]:
    """Return the records of a file, and the fields that were read.

    ``fields``, ``label``: names of the fields; none given: those with usual names. A record that
    lacks one, or whose label is none, is an error that names its line.
    """
    records: list[LabelledRecord] = []
    names: FieldNames | None = None
    for row, where in _rows(path):
        if not isinstance(row, Mapping):
            raise ValueError(f"{where} must hold an object, got {row!r:.60}")
        names = names or _find_fields(row, where, fields, label)
        records.append(_record(row, where, names))
    if names is None:
        raise ValueError(f"there are no records in {path}")
    return records, names


def _rows(path: Path) -> Iterator[tuple[Any, str]]:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in compression.SUFFIXES:
        suffixes.pop()
    read = _READERS.get(suffixes[-1] if suffixes else "")
    if read is None:
        raise ValueError(
            f"{path} is of no kind of records that is read: {', '.join(_READERS)}, plain or "
            "compressed"
        )
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist or is no file; name a file of records")
    yield from read(path)


def _find_fields(
    row: Mapping[str, Any], where: str, fields: Sequence[str], label: str | None
) -> FieldNames:
    """Return the names to read, which must be in the first record and leave no doubt."""
    label = label or _USUAL_LABEL
    for name in (*fields, label):
        if name not in row:
            raise ValueError(
                f"{where} has no field {name!r} (it has {', '.join(map(str, row))}); name the "
                "fields with --fields and --label"
            )
    if fields:
        return FieldNames(texts=tuple(fields), label=label)
    present = [names for names in _USUAL_FIELDS if set(names) <= row.keys() - {label}]
    usual = {name for names in _USUAL_FIELDS for name in names} & row.keys() - {label}
    # The names that take in all others; "question" alone would leave out what it is asked of.
    whole = [names for names in present if set(names) == usual]
    if not whole:
        raise ValueError(
            f"{where} does not say which of {', '.join(map(str, row))} hold the texts: name one or "
            "two with --fields"
        )
    return FieldNames(texts=whole[0], label=label)


def _record(row: Mapping[str, Any], where: str, names: FieldNames) -> LabelledRecord:
    for name in (*names.texts, names.label):
        if name not in row:
            raise ValueError(f"{where} has no field {name!r} (it has {', '.join(map(str, row))})")
    texts = tuple(row[name] for name in names.texts)
    for name, text in zip(names.texts, texts, strict=True):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{where}: {name} must be a text, got {text!r:.60}")
    return LabelledRecord(texts=texts, label=_label(row, where, names.label), where=where)


def _label(row: Mapping[str, Any], where: str, name: str) -> str:
    value = row[name]
    if value is None or isinstance(value, float | list | dict):
        raise ValueError(
            f"{where}: {name} must be a class, a text or a whole number, got {value!r:.60}"
        )
    text = str(value).strip()
    if text in _NO_LABEL:
        raise ValueError(
            f"{where}: {name} is {value!r}, which stands for no label: leave such records out"
        )
    if "." in text and text.replace(".", "", 1).lstrip("-").isdecimal():
        raise ValueError(f"{where}: {name} is {text}, a score and no class: scores are not learnt")
    return text
