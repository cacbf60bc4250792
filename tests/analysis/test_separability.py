"""Test both probes and layouts on clouds of points whose separability is known."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from layermem_bench.analysis.separability import embed, separability


def clouds(distance, n=200, features=12, classes=4):
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), n)
    return draw.normal(size=(n * classes, features)) + distance * np.eye(classes, features)[
        labels
    ], labels


# With few occurrences one epoch would be too few steps for the paper's probe.
@pytest.mark.parametrize(("probe", "n"), [("paper", 1000), ("converged", 200)])
def test_clouds_apart_and_in_one_place(probe, n):
    far = separability(*clouds(8.0, n), probe=probe)
    assert far.mean > 0.97 and len(far.folds) == 5 and far.deviation < 0.03
    near = separability(*clouds(0.0, n), probe=probe)
    assert abs(near.mean - 0.25) < 0.07 and near.chance == 0.25
    for result in (far, near):
        assert abs(result.shuffled - 0.25) < 0.07
    again = separability(*clouds(8.0, n), probe=probe)
    assert again == far


def test_the_converged_probe_is_logistic_regression():
    features, labels = clouds(1.5)
    order = np.random.default_rng(1).permutation(len(labels))
    half = len(order) // 2
    seen, unseen = order[:half], order[half:]
    expected = LogisticRegression(max_iter=2000).fit(features[seen], labels[seen])
    result = separability(features, labels, probe="converged", folds=2)
    assert result.mean == pytest.approx(expected.score(features[unseen], labels[unseen]), abs=0.05)


def test_the_random_state_is_left_alone():
    import torch

    torch.manual_seed(3)
    before = torch.get_rng_state()
    with torch.inference_mode():
        pass
    with torch.no_grad():
        separability(*clouds(1.0, n=20))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (np.ones((4, 2)), np.zeros(4), "at least two different labels"),
        (np.ones((4, 2)), np.zeros(3), r"got \(4, 2\) and \(3,\)"),
        (np.ones((8, 2)), np.arange(8) % 2, "label 0 occurs 4 times, fewer than the 5 folds"),
        (np.full((10, 2), np.nan), np.arange(10) % 2, "occurrence 0 holds a number that is not"),
    ],
)
def test_arrays_that_cannot_be_probed_are_refused(features, labels, message):
    with pytest.raises(ValueError, match=message):
        separability(features, labels)


def test_an_unknown_probe_is_refused():
    with pytest.raises(ValueError, match="probe must be one of paper, converged, got 'linear'"):
        separability(np.eye(20), np.arange(20) % 2, probe="linear")


def test_clouds_stay_apart_in_a_layout():
    draw = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 20)
    vectors = 0.1 * draw.normal(size=(60, 8)) + np.eye(3, 8)[labels]
    points = embed(vectors)
    assert points.shape == (60, 2)
    centres = np.array([points[labels == i].mean(0) for i in range(3)])
    nearest = np.linalg.norm(points[:, None] - centres[None], axis=-1).argmin(1)
    assert (nearest == labels).all()
    # The length of each vector does not count.
    lengths = 2.0 ** draw.integers(0, 5, size=(60, 1))
    np.testing.assert_allclose(embed(lengths * vectors), points)


def test_layouts_of_few_vectors_and_of_unusable_ones():
    assert np.isfinite(embed(np.eye(4))).all()
    assert embed(np.array([[1.0], [2.0], [-1.0]])).shape == (3, 2)
    assert not embed(np.zeros((5, 3))).any()
    with pytest.raises(ValueError, match="expected at least 3 vectors"):
        embed(np.eye(2))
    with pytest.raises(ValueError, match="occurrence 1 holds a number that is not finite"):
        embed(np.array([[1.0, 2], [np.nan, 1], [0, 1]]))
