"""95% intervals: of means over seeds by Student's t, of proportions by Wilson's formula.

It does not know: what was measured.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A mean and half the width of its 95% interval."""

    mean: float
    half: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.4f} +- {self.half:.4f}"


def interval(values: Sequence[float]) -> Interval:
    """Return mean and interval; one value alone has an interval without end."""
    count = len(values)
    if not count:
        raise ValueError("an interval needs at least one value")
    if not all(map(math.isfinite, values)):
        raise ValueError(
            f"an interval needs finite values, got {', '.join(map(str, values))}; what diverged "
            "has no place in a mean"
        )
    if count == 1:
        return Interval(mean=values[0], half=math.inf, count=1)
    half = _t_quantile(count - 1) * statistics.stdev(values) / math.sqrt(count)
    return Interval(mean=statistics.fmean(values), half=half, count=count)


def _t_quantile(freedom: int) -> float:
    """Return the 97.5% quantile of Student's t."""
    # Where it is needed alone: scipy takes longer to import than all that this file does.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Return the interval of the differences, pair by pair."""
    return interval([a - b for a, b in zip(ours, theirs, strict=True)])


def proportion(right: int, count: int) -> tuple[float, float]:
    """Return the interval of a share, ``right`` out of ``count``."""
    if not 0 <= right <= count or not count:
        raise ValueError(f"a share needs 0 <= right <= count and count > 0, got {right}, {count}")
    share, spread = right / count, 1.96**2 / count
    middle = share + spread / 2
    half = math.sqrt(share * (1 - share) * spread + (spread / 2) ** 2)
    # Exact at the ends, which rounding would miss.
    low = (middle - half) / (1 + spread) if right else 0.0
    high = (middle + half) / (1 + spread) if right < count else 1.0
    return low, high
