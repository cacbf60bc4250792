"""95% confidence intervals of means and proportions, and p-values of differences.

A difference that a study was planned to tell is tested alone, others beside each other by Holm's
method, which needs nothing of how arms vary together. scipy.stats takes a second to import, so it
is imported where it is used.
"""

import math
import operator
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

LEVEL = 0.05
"""A difference with a p-value below is told from 0."""
# Of more pairs signs are not counted out: the ways double with each.
_MOST_SIGNS = 16
# Of values, relative: some units of a float64's last digit, as where they are means themselves.
_ROUNDING = 1e-12
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A mean and its 95% confidence interval."""

    mean: float
    half: float
    """Half the width of the interval."""
    count: int
    """Values that the mean is of."""

    @property
    def ends(self) -> tuple[float, float]:
        return self.mean - self.half, self.mean + self.half


def _quantile(degrees: int, share: float = 0.975) -> float:
    """Return a quantile of Student's t."""
    from scipy import stats

    return float(stats.t.ppf(share, degrees))


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of values with its interval, which is infinite for a single value."""
    count = len(values)
    if count == 1:
        return Interval(mean=values[0], half=math.inf, count=1)
    half = _quantile(count - 1) * statistics.stdev(values) / math.sqrt(count)
    return Interval(mean=statistics.fmean(values), half=half, count=count)


def mean_by_seed(values: Mapping[int, float]) -> Interval | None:
    """Return the interval of values by seed; None: there is no value."""
    return interval(list(values.values())) if values else None


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Return the interval of the differences, pair by pair.

    A mean or a half width no larger than the rounding of the values is 0: 0.7 - 0.6 and 0.81 - 0.71
    are the same difference.
    """
    differences = interval([a - b for a, b in zip(ours, theirs, strict=True)])
    rounding = _ROUNDING * max(map(abs, (*ours, *theirs)))
    return Interval(
        mean=differences.mean if abs(differences.mean) > rounding else 0.0,
        half=differences.half if differences.half > rounding else 0.0,
        count=differences.count,
    )


def paired_by_seed(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Interval | None:
    """Return the interval of the differences over the seeds that both have; None: there is none."""
    common = [seed for seed in ours if seed in theirs]
    return paired([ours[s] for s in common], [theirs[s] for s in common]) if common else None


def p_value(difference: Interval) -> float:
    """Return the two-sided p-value of a mean difference by Student's t; NaN of a single pair.

    Where all pairs differ by the same, as shares of few items may, it is that of their signs.
    """
    if difference.count < 2:
        return math.nan
    if not difference.half:
        return 2.0 ** (1 - difference.count) if difference.mean else 1.0
    from scipy import stats

    degrees = difference.count - 1
    t = abs(difference.mean) / difference.half * _quantile(degrees)
    return float(2 * stats.t.sf(t, degrees))


def p_of_signs(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float | None:
    """Return the share of all ways to give the differences of pairs signs whose mean is as far from
    0: a p-value that asks nothing of how they vary. None: there are no pairs, or more than 16.

    Of eight pairs it can be as small as 2 / 256; of five, never below 0.05.
    """
    differences = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if not 0 < len(differences) <= _MOST_SIGNS:
        return None
    # Sums of the same differences in another order are the same.
    least = abs(math.fsum(differences)) - _ROUNDING * sum(map(abs, differences))
    ways = product((1, -1), repeat=len(differences))
    sums = (math.fsum(map(operator.mul, signs, differences)) for signs in ways)
    return sum(abs(each) >= least for each in sums) / 2 ** len(differences)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number by Holm's method.

    Of m values the smallest is multiplied by m, the next by m - 1 and so on; none becomes smaller
    than one before it. To call those below 0.05 different is wrong in one such table of twenty.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def adjusted_p_values(differences: Mapping[_Key, Interval | None]) -> dict[_Key, float]:
    """Return the p-value of each difference of several pairs, adjusted by Holm's method."""
    p_values = {key: p_value(each) for key, each in differences.items() if each is not None}
    p_values = {key: p for key, p in p_values.items() if not math.isnan(p)}
    return dict(zip(p_values, holm(list(p_values.values())), strict=True))


def proportion(successes: float, count: int) -> tuple[float, float]:
    """Return the interval of the proportion of successes (or of a sum of shares) in some trials."""
    square = statistics.NormalDist().inv_cdf(0.975) ** 2
    middle = (successes + square / 2) / (count + square)
    variance = successes * (count - successes) / count + square / 4
    half = math.sqrt(square * variance) / (count + square)
    # At its ends exactly, whatever the rounding: what is drawn of it lies within.
    low = middle - half if successes else 0.0
    return low, middle + half if successes < count else 1.0


def mcnemar(only_ours: int, only_theirs: int) -> float:
    """Return the two-sided p-value of two shares of right answers, by McNemar's exact test.

    Of the same items ``only_ours`` are right in the first alone, ``only_theirs`` in the second.
    """
    if not only_ours + only_theirs:
        return 1.0
    from scipy import stats

    return float(stats.binomtest(only_ours, only_ours + only_theirs).pvalue)


def ratio_interval(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> Interval | None:
    """Return the 95% interval of a ratio of sums over items, or of the first ratio minus a second.

    Each pair holds a numerator and a denominator of every item, such as the loss and the number of
    tokens of a document. The interval is the jackknife's, by Student's t. Of a difference that is
    not there, over documents of very different lengths, it holds 0 in 96% at 2 documents, 92% at
    10, 94% at 50; the bootstrap in 49%, 90% and 91%. None: fewer than two items have a denominator.
    """
    items = [
        i for i in range(len(pairs[0][0])) if any(denominators[i] for _, denominators in pairs)
    ]
    without = [0.0] * len(items)
    value = 0.0
    for sign, (numerators, denominators) in zip((1, -1), pairs, strict=False):
        above, below = math.fsum(numerators), math.fsum(denominators)
        if any(below == denominators[i] for i in items):
            return None
        value += sign * above / below
        for place, i in enumerate(items):
            without[place] += sign * (above - numerators[i]) / (below - denominators[i])
    count = len(items)
    error = math.sqrt((count - 1) / count * (count - 1) * statistics.variance(without))
    return Interval(mean=value, half=_quantile(count - 1) * error, count=count)
