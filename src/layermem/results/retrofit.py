"""Four ways of going on training one model, with layer memory and without, ranked.

    RetrofitResult    retrofit.json
      Ranking           one condition: equal tokens, or equal training time
      RetrofitTrial     one way with one learning rate, on a seed kept for that

It does not know: how anything is trained or measured, tables, pages.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from layermem.results.arena import MeasuredMemory, MeasuredSteps, Ranking
from layermem.results.artefact import RunState


@dataclass(frozen=True, kw_only=True)
class RetrofitTrial:
    """One way with one learning rate."""

    arm: str
    """The way."""
    rate: float
    """Learning rate: that of routers where they alone are trained."""
    loss: float | None
    """Validation loss at the end; None: the run diverged."""
    chosen: bool
    """Whether the way took this rate."""


@dataclass(frozen=True, kw_only=True)
class RetrofitResult:
    """All rankings."""

    KIND: ClassVar[str] = "retrofit"
    VERSION: ClassVar[int] = 1
    COMMAND: ClassVar[str] = "layermem retrofit"

    command: str
    """What made it."""
    model: str
    """The model that is trained on."""
    memory: str
    """What is attached where there is memory, as in ``layermem.attach``."""
    before: float
    """Validation loss before the first step, the same for all."""
    seeds: tuple[int, ...]
    """Seeds that were planned."""
    rankings: tuple[Ranking, ...]
    """At equal tokens, then at equal training time."""
    trained: Mapping[str, int]
    """Way to the number of parameters that it trains."""
    trials: tuple[RetrofitTrial, ...]
    """The learning rates that were tried."""
    steps: MeasuredSteps
    """How long a step of each way takes."""
    runs: tuple[RunState, ...]
    """The runs, those included that are in no mean."""
    peaks: MeasuredMemory | None = None
    """How much memory a step of each way takes; older records do not say."""
