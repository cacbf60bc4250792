"""How seldom one of several arms is told from the best: few seeds, all pairs, further looks."""

import pytest

from layermem_bench.results.comparing import compare
from layermem_bench.results.intervals import p_values_to


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_fewer_than_three_seeds_rank_no_arm(seeds):
    """Of two seeds 12.5% and 98.2% the mean is the highest, +- 544%."""
    values = {"a": (0.125, 0.982), "b": (0.5, 0.52), "c": (0.51, 0.5)}
    found = compare(
        {arm: {seed: of_arm[seed] for seed in seeds} for arm, of_arm in values.items()},
        seeds,
        "higher",
    )
    assert {x.rank for x in found} == {x.p_to_best for x in found} == {None}
    assert all(x.missing == () and x.mean.count == len(seeds) for x in found)


def test_an_arm_as_good_as_the_best_is_seldom_told_from_it():
    """A pair's p-value is that among all pairs: any could have been the best and another."""
    arms = {"a": (1.0, 1.2, 0.9, 1.1), "b": (1.1, 1.5, 1.3, 1.2), "c": (1.4, 1.3, 1.5, 1.7)}
    values = {arm: dict(enumerate(of_arm)) for arm, of_arm in arms.items()}
    found = {x.arm: x for x in compare(values, range(4), "lower")}
    adjusted = p_values_to("a", values)
    assert {arm: x.p_to_best for arm, x in found.items()} == {"a": None, **adjusted}
    assert found["c"].p_to_best > found["c"].p
    again = compare(values, range(4), "lower", looks=2)
    assert {x.arm: x.p_to_best for x in again if x.p_to_best} == {
        arm: pytest.approx(min(1.0, 4 * p)) for arm, p in adjusted.items()
    }
    assert {x.arm: x.p for x in again if x.p} == {
        x.arm: pytest.approx(min(1.0, 4 * x.p)) for x in found.values() if x.p
    }
