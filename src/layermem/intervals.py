"""95% confidence intervals of means and proportions, and p-values of differences.

Means are by Student's t, proportions by Wilson's method. scipy.stats has the distributions. It
takes a second to import, so it is imported where an interval is computed, and commands that compute
none do not wait for it.

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


def p_value(difference: Interval) -> float:
    """Return the two-sided p-value of a mean difference by Student's t; NaN of a single pair."""
    if difference.count < 2:
        return math.nan
    if not difference.half:
        return 0.0 if difference.mean else 1.0
    from scipy import stats

    degrees = difference.count - 1
    t = difference.mean / difference.half * float(stats.t.ppf(0.975, degrees))
    return float(2 * stats.t.sf(abs(t), degrees))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number by Holm's method.

    With m values, the smallest is multiplied by m, the next by m - 1 and so on; none becomes
    smaller than one before it, or larger than 1. To call those below 0.05 different is wrong about
    any of them at most once in twenty such tables.
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise ValueError(f"p-values must be between 0 and 1, got {', '.join(map(str, p_values))}")
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def proportion(successes: float, count: int) -> tuple[float, float]:
    """Return the interval of the proportion of successes among ``count`` trials.

    ``successes`` may be a sum of shares, each between 0 and 1, in place of a number of successes.
    """
    if not 0 <= successes <= count or not count:
        raise ValueError(
            "a proportion needs 0 <= successes <= count and count > 0, got "
            f"{successes} successes of {count}"
        )
    if successes != int(successes):
        # scipy's takes whole numbers only.
        square = statistics.NormalDist().inv_cdf(0.975) ** 2
        middle = (successes + square / 2) / (count + square)
        variance = successes * (count - successes) / count + square / 4
        half = math.sqrt(square * variance) / (count + square)
        return middle - half, middle + half
    from scipy import stats

    low, high = stats.binomtest(int(successes), count).proportion_ci(method="wilson")
    return float(low), float(high)
