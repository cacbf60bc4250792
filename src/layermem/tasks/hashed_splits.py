"""Splits that are disjoint by construction: a hash of what a problem asks decides its split.

    "k3 v9, k7 v2"  ->  0.41  ->  train        whatever the seed, the count and the order

It does not know: any particular task, which text of a problem is hashed.
"""

from typing import Literal

from layermem.text_hash import hash_to_unit_interval

Split = Literal["train", "validation", "test"]
# Where the number that decides a problem's split must lie.
SPLITS: dict[str, tuple[float, float]] = {
    "test": (0.0, 0.2),
    "validation": (0.2, 0.3),
    "train": (0.3, 1.0),
}


def check_split_and_count(split: str, count: int) -> None:
    """Raise if there is no such split, or the number of problems is negative."""
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if count < 0:
        raise ValueError(f"count must be at least 0, got {count}")


def is_in_split(text: str, split: str) -> bool:
    """Return whether the hash of ``text`` lies in a split."""
    low, high = SPLITS[split]
    return low <= hash_to_unit_interval(text) < high
