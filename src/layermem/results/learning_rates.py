"""Learning rates that were tried before seeds that count were run: ``TriedRates`` of one arm.

It does not know: how runs are trained, tables, pages.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TriedRates:
    """Learning rates that one arm was trained with, on a seed kept for that."""

    arm: str
    """Name of the arm."""
    rates: tuple[float, ...]
    """Learning rates."""
    losses: tuple[float | None, ...]
    """Validation loss at each; None: the run diverged."""
    chosen: float | None
    """Learning rate of the lowest loss; None: that is at another weight decay, or the arm
    diverged at every one."""
    decay: float | None = None
    """Weight decay they were tried with; None: no others were tried."""
