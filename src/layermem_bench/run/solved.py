"""What a run's final model solves of the problems of a task."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from layermem_bench.config.typed_dicts import from_dict, to_dict


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Of some problems, the share that was solved, and with every step right; 95% intervals."""

    count: int
    accuracy: float
    """Share with the right final answer; of problems with several answers, the mean share of right
    answers."""
    interval: tuple[float, ...]
    steps: float
    steps_interval: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Solved(Shares):
    """What a model solves of one set of problems, and the accuracy of a guess."""

    chance: float
    by: Mapping[str, Mapping[str, Shares]] = field(default_factory=dict)
    """What levels are called ("operands", "steps") to each level's shares."""
    faults: Mapping[str, int] = field(default_factory=dict)
    """How often each kind of fault was the first in a wrong solution."""
    task: str | None = None
    split: str | None = None
    model: str | None = None
    """Checkpoint that solved them, where it is not that of a run."""
    run_id: str | None = None
    steps_taken: int | None = None
    problems: str | None = None
    """Digest of the problems, the same for the same problems in the same order."""
    solutions: str | None = None
    """Digest of the solutions by which they were graded."""

    def to_json(self) -> str:
        """Return the text of a result.json, without what is not recorded."""
        values = {name: value for name, value in to_dict(self).items() if value is not None}
        return json.dumps(values, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Solved":
        """Return what a result.json says."""
        return from_dict(cls, json.loads(text), "")
