"""What one run recorded: where it stands, its validations, its metrics, what made it.

It does not know: how runs are trained, what they are compared with.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from layermem.results.solved import Solved

LOSS = "validation loss"
RIGHT_ANSWERS = "right answers"
EVERY_STEP_RIGHT = "every step right"
F1 = "F1 of words"
"""Names of the metrics that there are."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number that an ended run is judged by."""

    value: float
    """The number."""
    is_share: bool
    """Whether it is written in percent."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """One validation of a run."""

    step: int
    """Training steps before it."""
    val_loss: float
    """Mean loss of a token of the validation set, in nats."""
    tokens: float | None = None
    """Tokens trained on before it."""
    flops: float | None = None
    """Training FLOPs before it, in closed form."""
    val_accuracy: float | None = None
    """Of a task: share of validation problems with the right final answer."""
    val_steps: float | None = None
    """Of a task: share with every step right."""


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """Where a run stopped because a number was no longer finite."""

    step: int
    """Training step."""
    message: str
    """What was seen."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What is recorded in one run folder."""

    name: str
    """Name of the run in a report: that of its folder, longer where two are the same."""
    folder: str
    """The folder."""
    run_id: str
    """Stands for every option of the run."""
    variant: str
    """Architecture."""
    seed: int
    """Seed of weights and order of the data."""
    steps: int
    """Training steps done."""
    max_steps: int
    """Training steps asked for."""
    ended: bool
    """Whether the final model is there."""
    diverged: Divergence | None = None
    """Where it diverged; None: it did not."""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Of an ended run: what it is judged by, by name."""
    validations: tuple[Validation, ...] = ()
    """Its validations with finite numbers, in order."""
    tokens_per_second: float | None = None
    """Median over the run, by wall time; None: not recorded."""
    solved: Solved | None = None
    """Of an ended run on a task: what it solves of the test set."""
    about: Mapping[str, str] = field(default_factory=dict)
    """Versions, commit, machine and command, as recorded."""
