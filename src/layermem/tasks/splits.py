"""Splits of problems: by a hash, disjoint by construction, or of files, made disjoint.

"k3 v9, k7 v2"  ->  0.41  ->  train        whatever the seed, the count and the order
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, TypeVar

from layermem.text_hash import hash_to_unit_interval

logger = logging.getLogger(__name__)
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


class _HasPrompt(Protocol):
    @property
    def prompt(self) -> str: ...


_P = TypeVar("_P", bound=_HasPrompt)


def load_split(
    split: str, files: Mapping[str, str | None], load: Callable[[str], Sequence[_P]]
) -> list[_P]:
    """Return the problems of a split's file without those that a later split's file holds too.

    ``files`` has the file of each split, in the order train, validation, test. Two files that hold
    the same problems, in any order, are refused, and so is a file of which nothing would be left.
    """
    path = str(files[split])
    problems = list(load(path))
    prompts = {problem.prompt for problem in problems}
    later = False
    for other_split, other_path in files.items():
        later = later or other_split == split
        if other_split == split or not other_path:
            continue
        other_prompts = {problem.prompt for problem in load(other_path)}
        remaining = [problem for problem in problems if problem.prompt not in other_prompts]
        if prompts == other_prompts or (later and not remaining):
            raise ValueError(
                f"{split}={path} holds no problem that {other_split}={other_path} does not hold; "
                "give each split problems of its own"
            )
        if later and len(remaining) < len(problems):
            count = f"{len(problems) - len(remaining):,} of {len(problems):,}"
            logger.warning(
                "%s problems of %s=%s are in %s=%s too: left out of %s",
                *(count, split, path, other_split, other_path, split),
            )
            problems = remaining
    return problems
