"""Matrix entropy, in nats: over how many directions the tokens of a sequence are spread.

    K = Z Z^T        p = eigenvalues(K) / trace(K)        H_a = ln(sum p^a) / (1 - a)

The limit a = 1 is Shannon's entropy. T equal tokens have entropy 0; T orthogonal tokens of one
length have entropy ln T. The paper's figure standardises every feature over batch and tokens first;
its released code uses a = 0.5.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.preprocessing import StandardScaler

from layermem_bench.analysis.capture import KINDS, Place, Subject
from layermem_bench.analysis.result import ByLayer


def entropy_by_layer(subject: Subject) -> Mapping[str, Any]:
    """Return the entropy of the sequences by representation and layer.

    The texts are read twice, so that no more than a batch is held in memory: for the moments by
    which features are standardised over all sequences, then for the entropies.
    """
    standardisers: dict[Place, Standardiser] = {}
    for captured in subject.captured(subject.texts.sequences, "moments"):
        for place, array in captured.arrays.items():
            standardisers.setdefault(place, Standardiser()).add(array[captured.mask])
    entropies: dict[Place, list[float]] = {place: [] for place in standardisers}
    for captured in subject.captured(subject.texts.sequences, "entropy"):
        for place, array in captured.arrays.items():
            for tokens, mask in zip(array, captured.mask, strict=True):
                standardised = standardisers[place].standardise(tokens[mask])
                entropies[place].append(matrix_entropy(standardised, subject.options.alpha))
    layers = range(len(standardisers) // len(KINDS))
    by_layer = {
        kind: ByLayer(
            mean=tuple(float(np.mean(entropies[kind, layer])) for layer in layers),
            deviation=tuple(float(np.std(entropies[kind, layer])) for layer in layers),
        )
        for kind in KINDS
    }
    return {"entropy": by_layer}


def matrix_entropy(z: np.ndarray, alpha: float = 1.0) -> float:
    """Return the entropy of one array [tokens, features], which is not standardised first."""
    z = np.asarray(z, dtype=np.float64)
    check_finite(z, "token")
    # Z Z^T and Z^T Z have the same nonzero eigenvalues, so the smaller one is decomposed. Dividing
    # by the largest number first keeps squares from underflow and overflow.
    largest = np.abs(z).max()
    if not largest:
        raise ValueError("every number is zero, so the entropy is not defined")
    z = z / largest
    kernel = z @ z.T if len(z) <= z.shape[1] else z.T @ z
    eigenvalues = np.linalg.eigvalsh(kernel).clip(min=0)
    p = eigenvalues / eigenvalues.sum()
    # Rounding leaves zero eigenvalues at about this size, and small alphas would count them.
    p = p[p > len(p) * np.finfo(np.float64).eps]
    if abs(alpha - 1) < 1e-6:
        return float(-(p * np.log(p)).sum())
    return float(np.log((p**alpha).sum()) / (1 - alpha))


class Standardiser:
    """Standardise features by their mean and standard deviation over arrays that come one by one.

    Unlike in ``StandardScaler``, which gathers the moments, a small number is added to deviations:
    a feature that hardly varies, such as rounding noise, would count as much as any other.
    """

    def __init__(self) -> None:
        self._moments = StandardScaler()

    def add(self, tokens: np.ndarray) -> None:
        """Add an array [tokens, features] to the moments."""
        # StandardScaler would leave NaN out of the moments without a word.
        check_finite(tokens, "token")
        self._moments.partial_fit(np.asarray(tokens, dtype=np.float64))

    def standardise(self, tokens: np.ndarray) -> np.ndarray:
        """Return (tokens - mean) / (deviation + 1e-5) of [..., features]."""
        deviation = np.sqrt(self._moments.var_)
        return np.asarray((tokens - self._moments.mean_) / (deviation + 1e-5))


def standardise(z: np.ndarray) -> np.ndarray:
    """Standardise each feature of [..., features] over all other axes."""
    standardiser = Standardiser()
    standardiser.add(z.reshape(-1, z.shape[-1]))
    return standardiser.standardise(z)


def check_finite(rows: np.ndarray, name: str) -> None:
    """Raise, with the number of the first such row, unless all numbers are finite."""
    if not np.isfinite(rows).all():
        bad = int(np.argwhere(~np.isfinite(rows))[0, 0])
        raise ValueError(f"{name} {bad} holds a number that is not finite")
