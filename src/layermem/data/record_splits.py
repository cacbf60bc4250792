"""Training and validation records, and the classes that their labels name.

A record's side depends on its texts alone, of a question on its context alone: not on its place in
the file, nor on the seed. Records with the same texts are therefore on one side, and so are all
questions about a text.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from layermem.data.labelled_records import LabelledRecord
from layermem.text_hash import hash_to_unit_interval


class Splittable(Protocol):
    """A record that is on the side of a text."""

    @property
    def split_key(self) -> str:
        """The text that decides on the side."""


_R = TypeVar("_R", bound=Splittable)


def split_records(
    records: Sequence[_R], validation: list[_R] | None, share: float
) -> tuple[list[_R], list[_R], int]:
    """Return training and validation records, and how many are left out of training.

    ``validation``: records of a file of their own; None: a share is held out.
    """
    if validation is None:
        return *split_by_hash(records, share), 0
    train = leave_out(records, validation)
    return train, validation, len(records) - len(train)


def split_by_hash(records: Sequence[_R], share: float) -> tuple[list[_R], list[_R]]:
    """Return training and validation records, of which there are about ``share``."""
    sides: tuple[list[_R], list[_R]] = ([], [])
    for record in records:
        sides[hash_to_unit_interval(record.split_key) < share].append(record)
    for side, name in zip(sides, ("training", "validation"), strict=True):
        if not side:
            raise ValueError(
                f"of {len(records)} records none are left for {name} with "
                f"records.validation_share={share}: choose another share, or name a --validation "
                "file"
            )
    return sides


def leave_out(records: Sequence[_R], validation: Sequence[_R]) -> list[_R]:
    """Return the records whose texts are none of the validation records'."""
    validated = {record.split_key for record in validation}
    kept = [record for record in records if record.split_key not in validated]
    if not kept:
        raise ValueError(
            f"the texts of all {len(records)} training records are in the validation file too: "
            "name another --validation, or none for a share of the records"
        )
    return kept


def find_classes(records: Sequence[LabelledRecord]) -> list[str]:
    """Return the labels of training records, whole numbers by size, others by the alphabet."""
    labels = {record.label for record in records}
    if len(labels) < 2:
        raise ValueError(
            f"all {len(records)} training records have the label {labels.pop()!r}: there is "
            "nothing to learn"
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
