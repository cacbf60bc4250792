"""Matrix entropy against known cases and its written-out definition, and standardisation."""

import math

import numpy as np
import pytest

from layermem_bench.analysis.entropy import Standardiser, matrix_entropy, standardise

ALPHAS = (0.5, 0.99, 1.0, 2.0)


def by_definition(z, alpha):
    p = np.linalg.eigvals(z @ z.T).real.clip(0) / np.trace(z @ z.T)
    p = p[p > 1e-12]
    return -sum(p * np.log(p)) if alpha == 1 else math.log(sum(p**alpha)) / (1 - alpha)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("tokens", [1, 7, 64])
def test_equal_tokens_and_orthogonal_ones(tokens, alpha):
    equal = np.tile(np.random.default_rng(0).normal(size=(1, 64)), (tokens, 1))
    assert matrix_entropy(equal, alpha) == pytest.approx(0, abs=1e-6)
    assert matrix_entropy(3.0 * np.eye(tokens, 64), alpha) == pytest.approx(math.log(tokens))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("shape", [(9, 30), (30, 9)])
def test_against_the_definition(shape, alpha):
    z = np.random.default_rng(1).normal(size=shape)
    assert matrix_entropy(z, alpha) == pytest.approx(by_definition(z, alpha), rel=1e-9)
    # Neither scale, nor order matters; the order is Shannon's unless asked otherwise.
    assert matrix_entropy(1e-200 * z, alpha) == pytest.approx(matrix_entropy(z, alpha))
    assert matrix_entropy(1e200 * z[::-1], alpha) == pytest.approx(matrix_entropy(z, alpha))
    assert matrix_entropy(z) == pytest.approx(by_definition(z, 1), rel=1e-9)


def test_standardising_in_parts_is_standardising_at_once():
    z = np.random.default_rng(2).normal(3.0, 5.0, size=(4, 10, 6))
    standardiser = Standardiser()
    for part in (z[:1], z[1:3], z[3:]):
        standardiser.add(part.reshape(-1, 6))
    np.testing.assert_allclose(standardiser.standardise(z), standardise(z), rtol=1e-12)


def test_standardising_is_in_float64_with_a_small_number_added_to_the_deviation():
    # A feature far from zero, one that is constant, and one that hardly varies.
    draw = np.random.default_rng(4).normal(size=100)
    z = np.stack([1e6 + draw, np.full(100, 0.1), 1e-6 * draw], axis=-1).astype(np.float32)
    exact = z.astype(np.float64)
    expected = (exact - exact.mean(0)) / (exact.std(0) + 1e-5)
    np.testing.assert_allclose(standardise(z), expected, rtol=1e-9, atol=1e-12)
    assert standardise(z).dtype == np.float64 and not standardise(z)[:, 1].any()


def test_arrays_without_an_entropy_are_refused():
    for z in (np.zeros((3, 2)), np.array([[1.0], [np.nan]])):
        with pytest.raises(ValueError):
            matrix_entropy(z)
    with pytest.raises(ValueError, match="token 1"):
        standardise(np.array([[1.0, 2.0], [np.nan, 1.0]]))
