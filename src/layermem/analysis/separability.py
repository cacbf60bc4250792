"""How well a linear probe tells words apart by what a layer holds at them.

Five folds; accuracy on the fold left out. Two probes: the paper's (a linear layer, Adam at 1e-2,
batches of 64, one epoch) and a converged one (logistic regression). A control with labels shuffled
says what chance looks like with these arrays.

Letters: N occurrences, F features.
It does not know: models, where arrays come from.
"""

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from layermem.results.analysis import Probe

FOLDS = 5


@dataclass(frozen=True, kw_only=True)
class Separability:
    """Accuracy of one probe."""

    folds: tuple[float, ...]
    """Accuracy on each fold left out."""
    shuffled: float
    """The same, over all folds, with labels shuffled: what chance looks like."""
    chance: float
    """Share of the commonest label."""

    @property
    def mean(self) -> float:
        """Mean over folds."""
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
) -> Separability:
    """Probe arrays [N, F] for labels [N]."""
    features, labels = np.asarray(features, dtype=np.float32), np.asarray(labels)
    _check(features, labels, folds)
    kinds, labels = np.unique(labels, return_inverse=True)
    draw = np.random.default_rng(seed)
    shuffled = draw.permutation(labels)
    return Separability(
        folds=tuple(_accuracies(features, labels, probe, folds, seed, len(kinds))),
        shuffled=float(np.mean(_accuracies(features, shuffled, probe, folds, seed, len(kinds)))),
        chance=float(np.bincount(labels).max() / len(labels)),
    )


def _check(features: np.ndarray, labels: np.ndarray, folds: int) -> None:
    if features.ndim != 2 or len(features) != len(labels):
        raise ValueError(
            f"a probe needs features [N, F] and labels [N], got {features.shape} and {labels.shape}"
        )
    if not np.isfinite(features).all():
        bad = int(np.argwhere(~np.isfinite(features))[0, 0])
        raise ValueError(f"occurrence {bad} holds a number that is not finite")
    kinds, counts = np.unique(labels, return_counts=True)
    if len(kinds) < 2:
        raise ValueError("a probe needs at least two different labels")
    if counts.min() < folds:
        raise ValueError(
            f"label {kinds[counts.argmin()]} occurs {counts.min()} times, fewer than the {folds} "
            "folds; ask for fewer folds or give more occurrences"
        )


def _accuracies(
    features: np.ndarray, labels: np.ndarray, probe: Probe, folds: int, seed: int, kinds: int
) -> list[float]:
    splits = StratifiedKFold(folds, shuffle=True, random_state=seed).split(features, labels)
    guess = _paper if probe == "paper" else _converged
    return [
        float((guess(features[a], labels[a], features[b], kinds, seed) == labels[b]).mean())
        for a, b in splits
    ]


def _paper(
    features: np.ndarray, labels: np.ndarray, unseen: np.ndarray, kinds: int, seed: int
) -> np.ndarray:
    """Guess by a linear layer after one epoch of Adam."""
    generator = torch.Generator().manual_seed(seed)
    with torch.enable_grad():
        weight = torch.empty(kinds, features.shape[1])
        bound = features.shape[1] ** -0.5
        weight.uniform_(-bound, bound, generator=generator)
        layer = nn.utils.skip_init(nn.Linear, features.shape[1], kinds)
        layer.weight.data.copy_(weight)
        layer.bias.data.zero_()
        optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
        x, y = torch.from_numpy(features), torch.from_numpy(labels)
        for batch in torch.randperm(len(x), generator=generator).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(layer(x[batch]), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        guesses: np.ndarray = layer(torch.from_numpy(unseen)).argmax(1).numpy()
    return guesses


def _converged(
    features: np.ndarray, labels: np.ndarray, unseen: np.ndarray, kinds: int, seed: int
) -> np.ndarray:
    """Guess by logistic regression on standardised features, weakly regularised."""
    model = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, max_iter=2000))
    with warnings.catch_warnings():
        # What has not quite converged after so many steps is still a probe.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(model.fit(features, labels).predict(unseen))
