"""What a grader says of an attempt, whatever the task.

It does not know: any particular task.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """What an attempt is worth."""

    answer: bool
    """Whether the final answer is right."""
    steps: bool
    """Whether every step is valid, the first follows from the question, and the last is the answer
    given."""
    fault: str = ""
    """What is wrong with the first bad step, in one word of the task; empty if none is."""
    at: int = 0
    """Which step that is, from 1; 0 if none is."""
