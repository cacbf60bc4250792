"""The grade of an attempt at a problem, the same for every task."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """What is right in an attempt, and the first thing that is wrong."""

    answer: bool
    """Whether the final answer is right."""
    steps: bool
    """Whether every step is valid, the first follows from the question, and the last is the
    answer."""
    fault: str = ""
    """What is wrong with the first invalid step, as one of the task's faults; empty if none is."""
    at: int = 0
    """The number of that step, from 1; 0 if all steps are valid."""
    right: tuple[bool, ...] = ()
    """Which answers are right, of a problem that has several; ``answer`` and ``steps`` then say
    whether all are. Empty where there is one."""
