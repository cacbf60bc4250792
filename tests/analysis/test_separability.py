"""Both probes and layouts on clouds of points whose separability is known."""

import numpy as np
import pytest
import torch

from layermem_bench.analysis.separability import embed, separability


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


def test_occurrences_of_a_group_are_in_one_fold():
    """Each group has its own direction, which tells nothing of another group's labels."""
    draw = np.random.default_rng(0)
    groups, labels = np.repeat(np.arange(40), 10), np.tile([0, 1], 200)
    features = np.zeros((400, 80))
    features[np.arange(400), 2 * groups + labels * draw.integers(0, 2)] = 1
    apart = separability(features, labels, probe="converged", groups=groups)
    assert abs(apart.mean - 0.5) < 0.1 < separability(features, labels, probe="converged").mean


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


def test_what_is_not_finite_is_refused():
    features = np.array([[np.nan, 1]] + [[0.0, 1]] * 9)
    for compute in (lambda: separability(features, np.arange(10) % 2), lambda: embed(features)):
        with pytest.raises(ValueError, match="occurrence 0"):
            compute()
