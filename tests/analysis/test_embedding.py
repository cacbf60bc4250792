"""Test that clouds stay apart when embedded, whatever the lengths, and that few vectors work."""

import numpy as np
import pytest

from layermem.analysis.embedding import embed


@pytest.mark.parametrize("by", ["tsne", "pca"])
def test_clouds_stay_apart(by):
    draw = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 20)
    vectors = 0.1 * draw.normal(size=(60, 8)) + np.eye(3, 8)[labels]
    points = embed(vectors, by=by)
    assert points.shape == (60, 2)
    centres = np.array([points[labels == i].mean(0) for i in range(3)])
    nearest = np.linalg.norm(points[:, None] - centres[None], axis=-1).argmin(1)
    assert (nearest == labels).all()
    np.testing.assert_allclose(embed(vectors, by=by), points)
    np.testing.assert_allclose(embed(7 * vectors, by="pca"), embed(vectors, by="pca"), atol=1e-9)


def test_few_vectors_and_bad_arguments():
    assert np.isfinite(embed(np.eye(4))).all()
    assert embed(np.array([[1.0], [2.0], [-1.0]])).shape == (3, 2)
    assert np.isfinite(embed(np.zeros((5, 3)), by="pca")).all()
    with pytest.raises(ValueError, match="expected at least 3 vectors"):
        embed(np.eye(2))
    with pytest.raises(ValueError, match="vector 1 holds a number that is not finite"):
        embed(np.array([[1.0, 2], [np.nan, 1], [0, 1]]))


def test_an_unknown_embedding_is_refused():
    with pytest.raises(ValueError, match="by must be one of tsne, pca, got 'umap'"):
        embed(np.eye(4), by="umap")
