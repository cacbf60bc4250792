"""95% confidence intervals: of means by Student's t, of proportions by Wilson's method.

scipy.stats computes both. It takes a second to import, so it is imported where an interval is
computed, and commands that compute none do not wait for it.

It does not know: what was measured.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A mean and its 95% confidence interval."""

    mean: float
    half: float
    """Half the width of the interval."""
    count: int
    """Values that the mean is of."""

    def __str__(self) -> str:
        return f"{self.mean:.4f} +- {self.half:.4f}"


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of values with its interval, which is infinite for a single value."""
    count = len(values)
    if not count:
        raise ValueError("an interval needs at least one value, got none")
    if not all(map(math.isfinite, values)):
        raise ValueError(
            f"an interval needs finite values, got {', '.join(map(str, values))}; leave out the "
            "runs that diverged"
        )
    if count == 1:
        return Interval(mean=values[0], half=math.inf, count=1)
    from scipy import stats

    quantile = float(stats.t.ppf(0.975, count - 1))
    half = quantile * statistics.stdev(values) / math.sqrt(count)
    return Interval(mean=statistics.fmean(values), half=half, count=count)


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Return the interval of the differences, pair by pair."""
    return interval([a - b for a, b in zip(ours, theirs, strict=True)])


def proportion(successes: int, count: int) -> tuple[float, float]:
    """Return the interval of the proportion of successes among ``count`` trials."""
    if not 0 <= successes <= count or not count:
        raise ValueError(
            "a proportion needs 0 <= successes <= count and count > 0, got "
            f"{successes} successes of {count}"
        )
    from scipy import stats

    low, high = stats.binomtest(successes, count).proportion_ci(method="wilson")
    return float(low), float(high)
