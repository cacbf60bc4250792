"""How well words are told apart by a layer's activations: linear probes, and layouts in a plane.

The paper's probe is a linear layer after one epoch of Adam at 1e-2 in batches of 64; the converged
one is logistic regression. Letters: N occurrences, F features.
"""

import warnings
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.manifold import TSNE
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from layermem_bench.analysis.entropy import check_finite
from layermem_bench.results.analysis import Probe

FOLDS = 5


@dataclass(frozen=True, kw_only=True)
class Separability:
    """Accuracy of one probe."""

    folds: tuple[float, ...]
    """Accuracy on each fold, by a probe fitted to the others."""
    shuffled: float
    """Mean accuracy over folds with labels shuffled: what chance looks like."""
    chance: float
    """Share of the most frequent label."""

    @property
    def mean(self) -> float:
        """Mean accuracy over folds."""
        return float(np.mean(self.folds))

    @property
    def deviation(self) -> float:
        """Standard deviation over folds, as the paper gives it."""
        return float(np.std(self.folds))


def separability(
    features: np.ndarray,
    labels: np.ndarray,
    *,
    probe: Probe = "paper",
    folds: int = FOLDS,
    seed: int = 0,
    groups: np.ndarray | None = None,
) -> Separability:
    """Fit a probe that predicts labels [N] from features [N, F]; return its accuracy.

    ``groups`` [N]: occurrences of one group are in one fold, and the control shuffles labels within
    each group; None: every occurrence is by itself.
    """
    if probe not in get_args(Probe):
        raise ValueError(f"probe must be one of {', '.join(get_args(Probe))}, got {probe!r}")
    features, labels = np.asarray(features, dtype=np.float32), np.asarray(labels)
    _check_arrays(features, labels, folds)
    classes, labels = np.unique(labels, return_inverse=True)
    shuffled = _shuffle(labels, groups, np.random.default_rng(seed))
    predict = _predict_by_paper_probe if probe == "paper" else _predict_by_converged_probe
    folding = StratifiedKFold if groups is None else StratifiedGroupKFold

    def accuracies(of_labels: np.ndarray) -> list[float]:
        on_folds = []
        splits = folding(folds, shuffle=True, random_state=seed).split(features, of_labels, groups)
        for train, test in splits:
            fitted_to = features[train], of_labels[train]
            predicted = predict(*fitted_to, features[test], len(classes), seed)
            on_folds.append(float((predicted == of_labels[test]).mean()))
        return on_folds

    return Separability(
        folds=tuple(accuracies(labels)),
        shuffled=float(np.mean(accuracies(shuffled))),
        chance=float(np.bincount(labels).max() / len(labels)),
    )


def _shuffle(labels: np.ndarray, groups: np.ndarray | None, generator: Any) -> np.ndarray:
    """Return the labels in another order; with groups, each label stays in its group."""
    if groups is None:
        return np.asarray(generator.permutation(labels))
    order = np.lexsort((generator.random(len(labels)), groups))
    shuffled = np.empty_like(labels)
    shuffled[np.argsort(groups, kind="stable")] = labels[order]
    return shuffled


def _check_arrays(features: np.ndarray, labels: np.ndarray, folds: int) -> None:
    if features.ndim != 2 or len(features) != len(labels):
        raise ValueError(
            f"a probe needs features [N, F] and labels [N], got {features.shape} and {labels.shape}"
        )
    check_finite(features, "occurrence")
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        raise ValueError("a probe needs at least two different labels")
    if counts.min() < folds:
        raise ValueError(
            f"label {classes[counts.argmin()]} occurs {counts.min()} times, fewer than the {folds} "
            "folds; ask for fewer folds or give more occurrences"
        )


def _predict_by_paper_probe(
    features: np.ndarray, labels: np.ndarray, unseen: np.ndarray, class_count: int, seed: int
) -> np.ndarray:
    """Return the classes of ``unseen`` by a linear layer after one epoch of Adam."""
    generator = torch.Generator().manual_seed(seed)
    with torch.enable_grad():
        layer = nn.utils.skip_init(nn.Linear, features.shape[1], class_count)
        bound = features.shape[1] ** -0.5
        nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
        nn.init.zeros_(layer.bias)
        optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
        x, y = torch.from_numpy(features), torch.from_numpy(labels)
        for batch in torch.randperm(len(x), generator=generator).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(layer(x[batch]), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        predictions: np.ndarray = layer(torch.from_numpy(unseen)).argmax(1).numpy()
    return predictions


def _predict_by_converged_probe(
    features: np.ndarray, labels: np.ndarray, unseen: np.ndarray, class_count: int, seed: int
) -> np.ndarray:
    """Return the classes of ``unseen`` by weakly regularised logistic regression."""
    model = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, max_iter=2000))
    with warnings.catch_warnings():
        # A probe that has not quite converged after 2000 steps is used all the same.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(model.fit(features, labels).predict(unseen))


def embed(vectors: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """Return where t-SNE lays vectors [N, F] in the plane, normalised to length 1: [N, 2]."""
    vectors = np.asarray(vectors, dtype=np.float64)
    if vectors.ndim != 2 or len(vectors) < 3:
        raise ValueError(f"expected at least 3 vectors [N, F], got shape {vectors.shape}")
    check_finite(vectors, "occurrence")
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths, lengths, 1.0)
    if not np.ptp(unit, axis=0).any():
        # All vectors are the same, so there is nothing to lay out.
        return np.zeros((len(unit), 2))
    layout: np.ndarray = TSNE(
        2,
        # Less than the usual 30 if there are too few vectors for it.
        perplexity=min(30.0, (len(unit) - 1) / 3),
        init="pca" if unit.shape[1] > 1 else "random",
        random_state=seed,
        n_jobs=1,
    ).fit_transform(unit)
    return layout
