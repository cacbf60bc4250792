"""What a model solves of a task's problems: shares with intervals, by level, faults counted.

problem of the test set -> what the model wrote -> right or wrong -> these shares
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from layermem.typed_dicts import from_dict, to_dict


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Of some problems, the share that was solved."""

    count: int
    """Number of problems."""
    accuracy: float
    """Share with the right final answer; of problems with several answers, the mean share of right
    answers."""
    interval: tuple[float, ...]
    """Its 95% interval: lower and upper end."""
    steps: float
    """Share with every step right."""
    steps_interval: tuple[float, ...]
    """Its 95% interval."""

    def __post_init__(self) -> None:
        for name in ("accuracy", "steps"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, is {getattr(self, name)}")
        if len(self.interval) != 2:
            raise ValueError(f"interval must have two ends, has {len(self.interval)}")


@dataclass(frozen=True, kw_only=True)
class Solved(Shares):
    """What a model solves of one set of problems."""

    chance: float
    """Accuracy of a guess."""
    by: Mapping[str, Mapping[str, Shares]] = field(default_factory=dict)
    """What levels are called ("operands", "steps") to each level's shares."""
    faults: Mapping[str, int] = field(default_factory=dict)
    """How often each kind of fault was the first in a wrong solution."""
    task: str | None = None
    """Name of the task."""
    split: str | None = None
    """Which problems: "validation" or "test"."""
    model: str | None = None
    """Checkpoint that solved them, where it is not that of a run."""
    run_id: str | None = None
    """Run whose final model solved them."""
    steps_taken: int | None = None
    """Training steps of that run."""
    problems: str | None = None
    """Digest of the problems, the same for the same problems in the same order."""

    def to_json(self) -> str:
        """Return it as the text of a result.json; what is not recorded is left out."""
        values = {name: value for name, value in to_dict(self).items() if value is not None}
        return json.dumps(values, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Solved":
        """Return what a result.json says."""
        return from_dict(cls, json.loads(text), "")
