"""What is measured of arrays: matrix entropy, both probes, and layouts, on known cases."""

import math

import numpy as np
import pytest
import torch

from layermem_bench.analysis.entropy import Standardiser, matrix_entropy, standardise
from layermem_bench.analysis.separability import embed, separability

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


def clouds(distance, n=200, features=12, classes=4):
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), n)
    centres = distance * np.eye(classes, features)[labels]
    return draw.normal(size=(n * classes, features)) + centres, labels


# With few occurrences one epoch would be too few steps for the paper's probe.
@pytest.mark.parametrize(("probe", "n"), [("paper", 1000), ("converged", 200)])
def test_clouds_apart_and_in_one_place(probe, n):
    before = torch.get_rng_state()
    far = separability(*clouds(8.0, n), probe=probe)
    assert far.mean > 0.97 and len(far.folds) == 5
    near = separability(*clouds(0.0, n), probe=probe)
    assert abs(near.mean - 0.25) < 0.07 and near.chance == 0.25
    assert all(abs(result.shuffled - 0.25) < 0.07 for result in (far, near))
    assert separability(*clouds(8.0, n), probe=probe) == far
    assert torch.equal(torch.get_rng_state(), before)


def test_clouds_stay_apart_in_a_layout():
    draw = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 20)
    vectors = 0.1 * draw.normal(size=(60, 8)) + np.eye(3, 8)[labels]
    points = embed(vectors)
    centres = np.array([points[labels == i].mean(0) for i in range(3)])
    nearest = np.linalg.norm(points[:, None] - centres[None], axis=-1).argmin(1)
    assert points.shape == (60, 2) and (nearest == labels).all()
    # The length of each vector does not count.
    lengths = 2.0 ** draw.integers(0, 5, size=(60, 1))
    np.testing.assert_allclose(embed(lengths * vectors), points)
    assert np.isfinite(embed(np.eye(4))).all()


def test_what_is_not_finite_or_all_zero_is_refused():
    features = np.array([[0.0, 1]] + [[np.nan, 1]] + [[0.0, 1]] * 8)
    for compute, row in (
        (lambda: separability(features, np.arange(10) % 2), "occurrence 1"),
        (lambda: embed(features), "occurrence 1"),
        (lambda: standardise(features), "token 1"),
        (lambda: matrix_entropy(features), "token 1"),
        (lambda: matrix_entropy(np.zeros((3, 2))), "zero"),
    ):
        with pytest.raises(ValueError, match=row):
            compute()
