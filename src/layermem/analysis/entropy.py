"""Matrix entropy: how many directions the tokens of a sequence are spread over, in nats.

    K = Z Z^T        p = eigenvalues(K) / trace(K)        H_a = ln(sum p^a) / (1 - a)

a = 1 is the Shannon limit. T equal tokens have entropy 0, T orthogonal ones of one length ln T. The
paper's figure standardises every feature over batch and tokens first; its released code calls it
with a = 0.5.

It does not know: models, where arrays come from.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np


def matrix_entropy(z: np.ndarray, alpha: float = 1.0) -> float:
    """Return the entropy of one array [tokens, features], as it is given."""
    z = np.asarray(z, dtype=np.float64)
    if z.ndim != 2 or min(z.shape) < 1:
        raise ValueError(f"entropy is of one array [tokens, features], got shape {z.shape}")
    if not np.isfinite(z).all():
        bad = int(np.argwhere(~np.isfinite(z))[0, 0])
        raise ValueError(f"token {bad} holds a number that is not finite; entropy is not defined")
    if not alpha > 0:
        raise ValueError(f"alpha must be positive, got {alpha}")
    # The smaller of Z Z^T and Z^T Z: their eigenvalues that are not zero are the same. The scale
    # is taken out first, so that squares neither vanish nor overflow.
    largest = np.abs(z).max()
    if not largest:
        raise ValueError("every number is zero; entropy is not defined")
    z = z / largest
    kernel = z @ z.T if len(z) <= z.shape[1] else z.T @ z
    eigenvalues = np.linalg.eigvalsh(kernel).clip(min=0)
    p = eigenvalues / eigenvalues.sum()
    # Rounding leaves eigenvalues that should be zero at about this; small alphas would count them.
    p = p[p > len(p) * np.finfo(np.float64).eps]
    if math.isinf(alpha):
        return float(-np.log(p.max()))
    if abs(alpha - 1) < 1e-6:
        return float(-(p * np.log(p)).sum())
    return float(np.log((p**alpha).sum()) / (1 - alpha))


@dataclass
class Moments:
    """Mean and deviation of each feature, gathered array by array (Chan's update)."""

    count: int = 0
    mean: np.ndarray = field(default_factory=lambda: np.zeros(0))
    square: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def add(self, tokens: np.ndarray) -> None:
        """Take in an array [tokens, features]."""
        tokens = np.asarray(tokens, dtype=np.float64)
        count, mean = len(tokens), tokens.mean(0)
        square = ((tokens - mean) ** 2).sum(0)
        if self.count:
            gap, whole = mean - self.mean, self.count + count
            square += self.square + gap**2 * (self.count * count / whole)
            mean = self.mean + gap * (count / whole)
        self.count, self.mean, self.square = self.count + count, mean, square

    def standardise(self, tokens: np.ndarray, eps: float = 1e-5) -> np.ndarray:
        """Return tokens with each feature's mean taken off, divided by its deviation."""
        deviation = np.sqrt(self.square / max(1, self.count))
        return np.asarray((tokens - self.mean) / (deviation + eps))


def standardise(z: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    """Standardise each feature of [..., features] over everything before it."""
    moments = Moments()
    moments.add(z.reshape(-1, z.shape[-1]))
    return moments.standardise(z, eps)


def sequence_entropies(sequences: Iterable[np.ndarray], alpha: float = 1.0) -> np.ndarray:
    """Return the entropy of each array [tokens, features]."""
    return np.array([matrix_entropy(sequence, alpha) for sequence in sequences])
