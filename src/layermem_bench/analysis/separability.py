"""How well words are told apart by a layer's activations: linear probes, and layouts in a plane.

The paper's probe is a linear layer after one epoch of Adam at 1e-2 in batches of 64; the converged
one is logistic regression. Letters: N occurrences, F features.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
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

from layermem_bench.analysis.capture import KINDS, Place, Subject
from layermem_bench.analysis.entropy import check_finite
from layermem_bench.analysis.texts import Occurrence
from layermem_bench.results.analysis import FOLDS as FOLDS
from layermem_bench.results.analysis import Layout, Probe, ProbeAccuracy, to_rows


def words_by_layer(subject: Subject) -> Mapping[str, Any]:
    """Return the accuracies of both probes by layer, and the layout of the words.

    The vectors of all layers are on the disk, one file each: some thousand words take about 50 MB a
    layer at width 2048.
    """
    seed, layers = subject.options.seed, range(subject.model.config.num_hidden_layers)
    with TemporaryDirectory(prefix="layermem-", ignore_cleanup_errors=True) as folder:
        vectors, labels = vectors_on_disk(subject, Path(folder))
        accuracies = {
            probe: {
                kind: _of_layers(
                    separability(vectors[kind, layer], np.array(labels), probe=probe, seed=seed)
                    for layer in layers
                )
                for kind in KINDS
            }
            for probe in get_args(Probe)
        }
        points = {layer: embed(vectors["routed", layer], seed=seed).round(3) for layer in layers}
    in_layers = {layer: to_rows(array) for layer, array in points.items()}
    layout = Layout(labels=tuple(labels), layers=in_layers)
    return {"separability": accuracies, "layout": layout}


def vectors_on_disk(subject: Subject, folder: Path) -> tuple[dict[Place, np.ndarray], list[int]]:
    """Return the vectors [N, F] at all occurrences by place, in files of a folder, and their
    words."""
    by_text: dict[str, list[Occurrence]] = {}
    for occurrence in subject.occurrences:
        by_text.setdefault(occurrence.text, []).append(occurrence)
    vectors: dict[Place, np.ndarray] = {}
    remaining, words = iter(by_text.values()), list[int]()
    for captured in subject.captured(list(by_text), "words"):
        # Rows of the batch come first: the texts go on to the next batch.
        for row, in_text in zip(range(len(captured.ids)), remaining, strict=False):
            for occurrence in in_text:
                for place, array in captured.arrays.items():
                    if place not in vectors:
                        shape = len(subject.occurrences), array.shape[-1]
                        file = folder / f"{place[0]}-{place[1]}"
                        vectors[place] = np.memmap(file, np.float32, "w+", shape=shape)
                    vectors[place][len(words)] = array[row, occurrence.token]
                words.append(occurrence.word)
    return vectors, words


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


def _of_layers(probed: Iterator[Separability]) -> ProbeAccuracy:
    results = list(probed)
    return ProbeAccuracy(
        mean=tuple(result.mean for result in results),
        deviation=tuple(result.deviation for result in results),
        shuffled=tuple(result.shuffled for result in results),
        chance=results[0].chance,
    )


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
    features, labels = np.asarray(features, dtype=np.float32), np.asarray(labels)
    check_finite(features, "occurrence")
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
