"""Files of a task's splits: what one is tested by is not learnt by another.

It does not know: any particular task, what is in a file but the problems' prompts.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

logger = logging.getLogger(__name__)


class _Asks(Protocol):
    @property
    def prompt(self) -> str: ...


_P = TypeVar("_P", bound=_Asks)


def apart(
    split: str, files: Mapping[str, str | None], load: Callable[[str], Sequence[_P]]
) -> list[_P]:
    """Return the problems of a split's file but for those that a later split's file holds too.

    ``files``: of each split, in the order train, validation, test. Files that hold the same
    problems, in any order, are refused, and so is one of which nothing would be left.
    """
    path = str(files[split])
    problems = list(load(path))
    asked = {problem.prompt for problem in problems}
    later = False
    for other, held_in in files.items():
        later = later or other == split
        if other == split or not held_in:
            continue
        held = {problem.prompt for problem in load(held_in)}
        left = [problem for problem in problems if problem.prompt not in held]
        if asked == held or (later and not left):
            raise ValueError(
                f"{split}={path} holds no problem that {other}={held_in} does not hold; give each "
                "split problems of its own"
            )
        if later and len(left) < len(problems):
            count = f"{len(problems) - len(left):,} of {len(problems):,}"
            logger.warning(
                "%s problems of %s=%s are in %s=%s too: left out of %s",
                *(count, split, path, other, held_in, split),
            )
            problems = left
    return problems
