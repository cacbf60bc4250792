"""Intervals against figures one can look up."""

import math

import pytest

from layermem.intervals import interval, paired


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
