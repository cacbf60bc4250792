"""Layouts: clouds stay apart, lengths do not matter, few vectors are no trouble."""

import numpy as np
import pytest

from layermem.analysis.embedding import embed


@pytest.mark.parametrize("by", ["tsne", "pca"])
def test_clouds_stay_apart(by):
    draw = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 20)
    vectors = 0.1 * draw.normal(size=(60, 8)) + np.eye(3, 8)[labels]
    found = embed(vectors, by=by)
    assert found.shape == (60, 2)
    centres = np.array([found[labels == i].mean(0) for i in range(3)])
    nearest = np.linalg.norm(found[:, None] - centres[None], axis=-1).argmin(1)
    assert (nearest == labels).all()
    np.testing.assert_allclose(embed(vectors, by=by), found)
    np.testing.assert_allclose(embed(7 * vectors, by="pca"), embed(vectors, by="pca"), atol=1e-9)


def test_few_vectors_and_what_is_refused():
    assert np.isfinite(embed(np.eye(4))).all()
    assert embed(np.array([[1.0], [2.0], [-1.0]])).shape == (3, 2)
    assert np.isfinite(embed(np.zeros((5, 3)), by="pca")).all()
    with pytest.raises(ValueError, match="at least 3 vectors"):
        embed(np.eye(2))
    with pytest.raises(ValueError, match="vector 1 holds a number that is not finite"):
        embed(np.array([[1.0, 2], [np.nan, 1], [0, 1]]))
