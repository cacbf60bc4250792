"""Problems of a split from files: problems that a later split's file holds too are left out.

It does not know: any particular task, what a file holds beside the prompts of its problems.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

logger = logging.getLogger(__name__)


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
