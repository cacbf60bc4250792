"""Records with one or two texts and a label, in the manner of GLUE's files.

    index	question	sentence	label
    0	What came into force ...?	As of that day, ...	entailment

The fields of the texts are found by the names that such data sets use, unless they are given.
``records`` says which files are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from layermem.data.records import Record, file_records

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
    for record in file_records(path):
        names = names or _find_fields(record, fields, label)
        texts = tuple(map(record.text, names.texts))
        records.append(
            LabelledRecord(texts=texts, label=_label(record, names.label), where=record.where)
        )
    if names is None:
        raise ValueError(f"there are no records in {path}")
    return records, names


def _find_fields(record: Record, fields: Sequence[str], label: str | None) -> FieldNames:
    """Return the names to read, which must be in the first record and leave no doubt."""
    label = label or _USUAL_LABEL
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
        raise ValueError(
            f"{record.where}: {name} is {value!r}, which stands for no label: leave such records "
            "out"
        )
    if "." in text and text.replace(".", "", 1).lstrip("-").isdecimal():
        raise ValueError(
            f"{record.where}: {name} is {text}, a score and no class: scores are not learnt"
        )
    return text
