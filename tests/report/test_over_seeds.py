"""Means over seeds of what was measured of every model."""

import math

from layermem.intervals import holm, p_value, paired
from layermem.report.over_seeds import over_seeds_tables

ARMS = {"plain": ("a0", "a1", "a2"), "lime": ("b0", "b1", "b2")}
SHARES = {"all": {"a0": 0.5, "a1": 0.6, "a2": 0.7, "b0": 0.6, "b1": 0.7, "b2": 0.8}}


def test_means_and_differences_are_seed_by_seed():
    """Equal differences have no spread, however far the seeds are apart, and the p-value of their
    three signs: how they vary is not known."""
    (table,) = over_seeds_tables("right", SHARES, ARMS, share=True)
    assert table.header == ["right", "plain", "lime", "lime against plain"]
    # t(0.975, 2) = 4.3027, the deviation 0.1: 4.3027 x 0.1 / sqrt(3) = 0.2484.
    assert table.rows[0][:3] == ["all", "60% ± 25%", "70% ± 25%"]
    assert table.rows[0][3].startswith("+10.0% ± 0.0% (p = 0.250)")


def test_p_values_are_adjusted_for_all_rows():
    ours, theirs = (1.0, 1.2, 1.5), (1.1, 1.0, 1.1)
    numbers = dict(zip((*ARMS["lime"], *ARMS["plain"]), (*ours, *theirs), strict=True))
    (alone,) = over_seeds_tables("loss", {"one": numbers}, ARMS, share=False)
    p = p_value(paired(ours, theirs))
    assert f"p = {p:.3f}" in alone.rows[0][3] and not math.isclose(p, 1)
    (both,) = over_seeds_tables("loss", {"one": numbers, "two": numbers}, ARMS, share=False)
    assert f"p = {holm([p, p])[0]:.3f}" in both.rows[0][3] != alone.rows[0][3]


def test_one_seed_or_no_arms_make_no_table():
    one = {arm: names[:1] for arm, names in ARMS.items()}
    assert over_seeds_tables("right", SHARES, one, share=True) == []
    assert over_seeds_tables("right", SHARES, {}, share=True) == []
