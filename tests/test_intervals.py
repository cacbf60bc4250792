"""Intervals against figures one can look up."""

import math

import pytest

from layermem.intervals import interval, paired, proportion


def test_against_a_known_case():
    # Mean 3, deviation sqrt(2.5), t(4) = 2.776: 2.776 * 1.5811 / sqrt(5) = 1.963.
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3 and found.half == pytest.approx(1.963, abs=1e-3)
    assert str(found) == "3.0000 +- 1.9629"


def test_quantiles_fall_to_the_normals():
    halves = [interval([0.0, 1.0] * n).half * math.sqrt(2 * n) for n in range(1, 60)]
    assert halves == sorted(halves, reverse=True)


def test_pairs_one_value_and_none():
    assert paired([2.0, 3.0, 4.0], [1.0, 2.0, 3.0]).half == 0
    assert interval([2.0]).half == math.inf
    with pytest.raises(ValueError, match="at least one"):
        interval([])
    with pytest.raises(ValueError):
        paired([1.0], [1.0, 2.0])


def test_shares():
    # Wilson's intervals, as tabulated.
    assert proportion(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert proportion(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert proportion(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    low, high = proportion(1432, 2000)
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(0.716 * 0.284 / 2000), rel=1e-2)
    # Exactly at the ends, whatever the count: what is drawn from an interval lies within it.
    assert all(proportion(n, n)[1] == 1 and proportion(0, n)[0] == 0 for n in range(1, 3000))
    for right, count in ((0, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="a share needs"):
            proportion(right, count)
