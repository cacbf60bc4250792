"""Rank correlations of made-up studies: what the noise of seeds makes of them."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from layermem_bench.studies import comparing


def found_below(count, arms, seeds, noise, turned=0.0):
    """Return in how many studies the correlation is below what it is where boards rank alike: of
    made-up values [arms, seeds] on two boards, from arms' places, in other units, with noise."""
    generator, below = np.random.default_rng(1), 0
    for _ in range(count):
        places = generator.normal(size=(arms, 1))
        others = (1 - turned) * places + turned * generator.normal(size=(arms, 1))
        drawn = generator.normal(size=(2, arms, seeds)) * noise
        common = generator.normal(size=(2, 1, seeds))
        boards = places + drawn[0] + common[0], 0.1 * (others + 1.5 * drawn[1]) + common[1]
        bound = comparing._if_alike(boards, np.random.default_rng(0))
        value = spearmanr(*(board.mean(-1) for board in boards)).statistic
        below += bound is not None and value < bound
    return below


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(comparing, "_DRAWS", 200)


@pytest.mark.parametrize("noise", [0.1, 0.3, 1.0])
@pytest.mark.parametrize(("arms", "seeds"), [(8, 3), (12, 5)])
def test_boards_that_rank_alike_are_seldom_called_otherwise(arms, seeds, noise):
    # 5 expected of 100; 12 or more in one of 200 such tests.
    assert found_below(100, arms, seeds, noise) < 12


def test_boards_that_rank_otherwise_are_found():
    assert found_below(50, 12, 5, noise=0.2, turned=0.6) > 35


def test_arms_that_differ_by_no_more_than_seeds_cannot_be_compared():
    generator = np.random.default_rng(0)
    flat = generator.normal(size=(6, 4))
    flat -= flat.mean(-1, keepdims=True)
    assert comparing._if_alike([flat, flat], generator) is None
    # Without noise any other order is another.
    exact = np.arange(5.0)[:, None] + np.zeros((5, 3))
    assert comparing._if_alike([exact, exact], generator) == pytest.approx(1)


def test_correlations_are_those_of_scipy():
    one, other = np.random.default_rng(0).integers(4, size=(2, 20, 6)).astype(float)
    expected = [spearmanr(a, b).statistic for a, b in zip(one, other, strict=True)]
    np.testing.assert_allclose(comparing._spearman(one, other), expected)
    assert np.isnan(comparing._spearman(np.ones((1, 6)), one[:1]))[0]
