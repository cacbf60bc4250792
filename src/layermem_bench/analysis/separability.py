"""How well words are told apart by a layer's activations: linear probes, and layouts in a plane.

The paper's probe is a linear layer after one epoch of Adam at 1e-2 in batches of 64; the converged
one is logistic regression. Letters: N occurrences, F features.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.manifold import TSNE
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from layermem_bench.analysis.capture import KINDS, Place, Subject
from layermem_bench.analysis.entropy import check_finite
from layermem_bench.analysis.result import (
    FOLDS,
    Layout,
    Probe,
    ProbeAccuracy,
    Representation,
    to_rows,
)


def words_by_layer(subject: Subject) -> Mapping[str, Any]:
    """Return the accuracies of both probes by layer, and the layout of the words.

    The vectors of all layers are on the disk, one file each: some thousand words take about 50 MB a
    layer at width 2048.
    """
    layers = range(subject.model.config.num_hidden_layers)
    labels = np.array([occurrence.word for occurrence in subject.texts.occurrences])

    def accuracy(probe: Probe, kind: Representation) -> ProbeAccuracy:
        of_layers = [separability(vectors[kind, i], labels, probe=probe) for i in layers]
        return ProbeAccuracy(
            mean=tuple(each.mean for each in of_layers),
            deviation=tuple(float(np.std(each.folds)) for each in of_layers),
            shuffled=tuple(each.shuffled for each in of_layers),
            chance=of_layers[0].chance,
        )

    with TemporaryDirectory(prefix="layermem-", ignore_cleanup_errors=True) as folder:
        vectors = _vectors_on_disk(subject, Path(folder))
        accuracies = {p: {kind: accuracy(p, kind) for kind in KINDS} for p in get_args(Probe)}
        points = {layer: to_rows(embed(vectors["routed", layer]).round(3)) for layer in layers}
    return {
        "separability": accuracies,
        "layout": Layout(labels=tuple(labels.tolist()), layers=points),
    }


def _vectors_on_disk(subject: Subject, folder: Path) -> Mapping[Place, np.ndarray]:
    """Return the vectors [N, F] at all occurrences by place, in files."""
    occurrences = subject.texts.occurrences
    row_of = {text: i for i, text in enumerate(dict.fromkeys(each.text for each in occurrences))}
    rows = np.array([row_of[occurrence.text] for occurrence in occurrences])
    tokens = np.array([occurrence.token for occurrence in occurrences])
    vectors: dict[Place, np.ndarray] = {}
    first = 0
    for captured in subject.captured(list(row_of), "words"):
        end = first + len(captured.mask)
        here = (first <= rows) & (rows < end)
        for place, array in captured.arrays.items():
            if place not in vectors:
                file, shape = folder / f"{place[0]}-{place[1]}", (len(rows), array.shape[-1])
                vectors[place] = np.memmap(file, np.float32, "w+", shape=shape)
            vectors[place][here] = array[rows[here] - first, tokens[here]]
        first = end
    return vectors


class Separability(NamedTuple):
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


def separability(
    features: np.ndarray, labels: np.ndarray, *, probe: Probe = "paper"
) -> Separability:
    """Fit a probe that predicts labels [N] from features [N, F]; return its accuracy."""
    features, labels = np.asarray(features, dtype=np.float32), np.asarray(labels)
    check_finite(features, "occurrence")
    classes, labels = np.unique(labels, return_inverse=True)
    predict = _predict_by_paper_probe if probe == "paper" else _predict_by_converged_probe
    splits = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    shuffled = np.random.default_rng(0).permutation(labels)

    def accuracies(of: np.ndarray) -> tuple[float, ...]:
        return tuple(
            float((predict(features[a], of[a], features[b], len(classes)) == of[b]).mean())
            for a, b in splits.split(features, of)
        )

    return Separability(
        folds=accuracies(labels),
        shuffled=float(np.mean(accuracies(shuffled))),
        chance=float(np.bincount(labels).max() / len(labels)),
    )


def _predict_by_paper_probe(
    features: np.ndarray, labels: np.ndarray, unseen: np.ndarray, class_count: int
) -> np.ndarray:
    """Return the classes of ``unseen`` by a linear layer after one epoch of Adam."""
    generator = torch.Generator().manual_seed(0)
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
    return np.asarray(layer(torch.from_numpy(unseen)).detach().argmax(1))


def _predict_by_converged_probe(
    features: np.ndarray, labels: np.ndarray, unseen: np.ndarray, class_count: int
) -> np.ndarray:
    """Return the classes of ``unseen`` by weakly regularised logistic regression."""
    model = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, max_iter=2000))
    with warnings.catch_warnings():
        # A probe that has not quite converged after 2000 steps is used all the same.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(model.fit(features, labels).predict(unseen))


def embed(vectors: np.ndarray) -> np.ndarray:
    """Return where t-SNE lays vectors [N, F] in the plane, normalised to length 1: [N, 2]."""
    vectors = np.asarray(vectors, dtype=np.float64)
    check_finite(vectors, "occurrence")
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths, lengths, 1.0)
    # Less than the usual 30 if there are too few vectors for it.
    perplexity = min(30.0, (len(unit) - 1) / 3)
    plane = TSNE(2, perplexity=perplexity, init="pca", random_state=0, n_jobs=1)
    return np.asarray(plane.fit_transform(unit))
