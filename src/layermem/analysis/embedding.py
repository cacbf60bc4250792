"""Two-dimensional embeddings of vectors: t-SNE, as in the paper's figure, and PCA."""

from typing import Literal, get_args

import numpy as np
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

By = Literal["tsne", "pca"]


def embed(
    vectors: np.ndarray,
    *,
    by: By = "tsne",
    seed: int = 0,
    perplexity: float = 30.0,
) -> np.ndarray:
    """Normalise vectors [N, F] to length 1 and embed them in the plane; return [N, 2].

    ``perplexity`` is that of t-SNE, lowered if there are too few vectors for it.
    """
    if by not in get_args(By):
        raise ValueError(f"by must be one of {', '.join(get_args(By))}, got {by!r}")
    vectors = np.asarray(vectors, dtype=np.float64)
    if vectors.ndim != 2 or len(vectors) < 3:
        raise ValueError(f"expected at least 3 vectors [N, F], got shape {vectors.shape}")
    if not np.isfinite(vectors).all():
        bad = int(np.argwhere(~np.isfinite(vectors))[0, 0])
        raise ValueError(f"vector {bad} holds a number that is not finite")
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths, lengths, 1.0)
    if not np.ptp(unit, axis=0).any():
        # All vectors are the same, so there is nothing to embed.
        return np.zeros((len(unit), 2))
    if by == "pca" or unit.shape[1] < 2:
        width = min(2, unit.shape[1])
        components = PCA(width, random_state=seed).fit_transform(unit)
        return np.pad(components, ((0, 0), (0, 2 - width)))
    perplexity = min(perplexity, (len(unit) - 1) / 3)
    points: np.ndarray = TSNE(
        2, perplexity=perplexity, init="pca", random_state=seed, n_jobs=1
    ).fit_transform(unit)
    return points
