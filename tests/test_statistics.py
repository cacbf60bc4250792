"""Intervals against figures one can look up."""

import math
import random
import statistics

import pytest
from scipy import stats

from layermem_bench.statistics import (
    Interval,
    adjusted_p_values,
    holm,
    interval,
    mcnemar,
    p_of_signs,
    p_value,
    paired,
    proportion,
    ratio_interval,
)


def test_intervals_are_those_of_the_tables_of_t():
    # 1, 9, 31 and 999 degrees of freedom.
    for count, quantile in ((2, 12.7062), (10, 2.2622), (32, 2.0395), (1000, 1.9623)):
        values = [float(i % 3) for i in range(count)]
        found = interval(values)
        assert found.mean == pytest.approx(sum(values) / count)
        half = found.half * math.sqrt(count) / statistics.stdev(values)
        assert half == pytest.approx(quantile, abs=6e-5)


def test_p_values_are_those_of_the_tables_and_of_scipy():
    # t(4) = 2.7764 is the quantile of p = 0.05, 4.6041 that of 0.01.
    assert p_value(Interval(mean=-1.0, half=1.0, count=5)) == pytest.approx(0.05)
    one_percent = Interval(mean=4.6041, half=2.7764, count=5)
    assert p_value(one_percent) == pytest.approx(0.01, abs=1e-5)
    assert p_value(Interval(mean=0.0, half=0.0, count=3)) == 1
    # Pairs that all differ by the same: by their signs, of which three alike are one case in four.
    assert p_value(Interval(mean=0.5, half=0.0, count=3)) == 0.25
    assert p_value(Interval(mean=-0.5, half=0.0, count=6)) == 2**-5 < 0.05
    assert interval([1.0]).half == math.inf and math.isnan(p_value(interval([1.0])))
    ours, theirs = [1.0, 2.5, 2.0, 4.0], [0.5, 2.7, 1.0, 2.0]
    expected = stats.ttest_rel(ours, theirs).pvalue
    assert p_value(paired(ours, theirs)) == pytest.approx(float(expected))


def test_rounding_is_not_taken_for_how_pairs_vary():
    # Each pair differs by 0.1, in floats by 0.0999... and 0.1000...: t would be 1e15.
    same = paired([1.7, 1.6, 1.65, 1.5], [1.6, 1.5, 1.55, 1.4])
    assert (same.half, p_value(same)) == (0, 2**-3)
    # Equal means that were summed in another order.
    none = paired([0.1 + 0.2, 0.3, 0.3], [0.3, 0.3, 0.1 + 0.2])
    assert (none.mean, none.half, p_value(none)) == (0, 0, 1)
    # What is small but not rounding stays: losses of a converged model.
    small = paired([2.0e-6, 3.0e-6], [1.0e-6, 1.5e-6])
    assert small.mean == pytest.approx(1.25e-6) and small.half > 1e-6


def test_holm_by_hand():
    # Ranked .01, .03, .04: 3 x .01, 2 x .03, then 1 x .04, which may not be below .06.
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_intervals_of_shares_are_wilsons():
    for right, count in ((0, 10), (10, 10), (1432, 2000), (842, 1000), (7, 30)):
        of_scipy = stats.binomtest(right, count).proportion_ci(method="wilson")
        assert proportion(right, count) == pytest.approx(tuple(of_scipy), rel=1e-12, abs=1e-15)
    # A sum of shares lies between two whole numbers, and so does its interval.
    for end in (0, 1):
        below, middle, above = (proportion(right, 30)[end] for right in (7, 7.5, 8))
        assert below < middle < above
        assert proportion(7 + 1e-12, 30)[end] == pytest.approx(below, rel=1e-9)
    # Exactly at the ends, whatever the count: what is drawn from an interval lies within it.
    assert all(proportion(n, n)[1] == 1 and proportion(0, n)[0] == 0 for n in range(1, 200))


def test_mcnemar_is_the_exact_test_of_the_items_that_differ():
    # Two-sided binomial: 2 (C(10, 0) + C(10, 1)) / 2^10 for 1 against 9.
    assert mcnemar(1, 9) == mcnemar(9, 1) == pytest.approx(22 / 1024)
    assert mcnemar(0, 6) == pytest.approx(2 / 64)
    assert mcnemar(4, 4) == mcnemar(0, 0) == 1


def test_the_interval_of_a_ratio_of_equal_denominators_is_that_of_the_mean():
    values = [3.1, 2.2, 4.7, 3.9, 2.8]
    halves = tuple(end / 2 for end in interval(values).ends)
    assert ratio_interval([(values, [2.0] * 5)]).ends == pytest.approx(halves)


def test_the_interval_of_a_difference_is_paired_and_of_ratios_of_sums():
    generator = random.Random(0)
    sizes = [float(generator.randrange(1, 50)) for _ in range(300)]
    hard = [size * generator.gauss(5, 2) for size in sizes]
    easier = [a - 0.1 * size for a, size in zip(hard, sizes, strict=True)]
    # Every item differs by 0.1 in each of its parts, whichever is left out.
    assert ratio_interval([(hard, sizes), (easier, sizes)]).ends == pytest.approx((0.1, 0.1))
    low, high = ratio_interval([(hard, sizes)]).ends
    assert low < sum(hard) / sum(sizes) < high and high - low > 0.2
    # One without a denominator is no item, and a single one has no interval.
    assert ratio_interval([([*hard, 0.0], [*sizes, 0.0])]).ends == pytest.approx((low, high))
    assert ratio_interval([([1.0, 0.0], [1.0, 0.0])]) is None


@pytest.mark.parametrize("documents", [2, 3, 10])
def test_intervals_over_few_documents_hold_what_is_there(documents):
    """Of two models alike but for noise, at most one interval in ten leaves 0 out."""
    generator, held = random.Random(documents), 0
    for _ in range(400):
        sizes = [math.exp(generator.gauss(5, 1)) for _ in range(documents)]
        hard = [(size, generator.gauss(2, 0.3)) for size in sizes]
        models = [[size * (h + generator.gauss(0, 0.05)) for size, h in hard] for _ in range(2)]
        low, high = ratio_interval([(losses, sizes) for losses in models]).ends
        held += low <= 0 <= high
    assert held / 400 > 0.88


def test_p_values_are_adjusted_for_those_that_there_are():
    pairs = paired([1.0, 2.0, 3.5], [0.5, 1.1, 2.2])
    differences = {"a": pairs, "single": interval([1.0]), "none": None, "b": pairs}
    assert adjusted_p_values(differences) == dict.fromkeys("ab", 2 * p_value(pairs))
    assert adjusted_p_values({"single": interval([1.0])}) == {}


def test_all_signs_of_the_differences():
    """By hand: of three differences the observed mean and its mirror image, 2 of 8."""
    ours, zeros = {0: 1.0, 1: 2.0, 2: 4.0, 3: 9.0}, {0: 0.0, 1: 0.0, 2: 0.0}
    assert p_of_signs(ours, zeros) == 2 / 8
    # 4 - 2 - 1 = 1 and more: 4, 2, 1 with any signs.
    assert p_of_signs({0: -1.0, 1: -2.0, 2: 4.0}, zeros) == 1.0
    assert p_of_signs({0: -1.0, 1: 2.0, 2: 4.0}, zeros) == 4 / 8
    # Equal ones are as far from 0 as each other, in whatever order they are added up.
    ten = dict.fromkeys(range(10), 0.1)
    assert p_of_signs(ten, dict.fromkeys(range(10), 0.0)) == 2 / 2**10
    assert p_of_signs(ours, {}) is p_of_signs(*[dict.fromkeys(range(17), 1.0)] * 2) is None
