"""Learning rates that the arms of a comparison of encoders tried, on a seed kept for that.

It does not know: how a run is trained, how a rate is chosen.
"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class EncoderTrial:
    """One arm with one learning rate."""

    arm: str
    """Memory of the arm."""
    rate: float
    """Learning rate."""
    right: float | None
    """Share of validation records whose class is right at the end; None: the run diverged."""
    loss: float | None
    """Validation loss at the end; None: the run diverged."""
    chosen: bool
    """Whether the arm took this rate: the one with most right classes, of these the lowest loss."""


@dataclass(frozen=True, kw_only=True)
class EncoderTrials:
    """All that were tried."""

    KIND: ClassVar[str] = "trials"
    VERSION: ClassVar[int] = 1
    COMMAND: ClassVar[str] = "layermem encoders"

    command: str
    """What made it."""
    seed: int
    """Seed of all."""
    trials: tuple[EncoderTrial, ...]
    """One for each arm and rate."""
