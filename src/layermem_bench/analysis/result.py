"""The result of analyzing one model, or two side by side: numbers by layer.

Representations are "hidden" (hidden states) and "routed" (the values that attention reads).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from layermem_base.number_ranges import above, at_least, check_numbers, number

Representation = Literal["hidden", "routed"]
Probe = Literal["paper", "converged"]
Rows = tuple[tuple[float, ...], ...]
"""A matrix as a result holds it."""
FOLDS = 5
"""Folds in which probes are fitted."""


def to_rows(matrix: Any) -> Rows:
    """Return an array as a result holds it."""
    return tuple(map(tuple, matrix.tolist()))


@dataclass(frozen=True, kw_only=True)
class AnalysisOptions:
    """Which texts and words are analyzed, and how."""

    text: str | None = None
    """Text to read, as in --data.source; None: problems of the run's own task, else stdlib."""
    words: tuple[str, ...] | None = None
    """Words that a probe classifies; None: numbers or names for problems of a task; is, are, was
    and were for a text."""
    each: int = number(100, at_least(1))
    """Occurrences of each word (the paper: 1668; the standard library has less than 200 of one of
    the four)."""
    sequences: int = number(64, at_least(1))
    """Sequences whose entropy is computed."""
    length: int = number(128, at_least(2))
    """Tokens of a sequence, at most."""
    alpha: float = number(1.0, above(0))
    """Order of the entropy (the paper's code: 0.5)."""

    def __post_init__(self) -> None:
        check_numbers(self, "--")


@dataclass(frozen=True, kw_only=True)
class ByLayer:
    """Mean and standard deviation of a quantity, layer by layer."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class ProbeAccuracy(ByLayer):
    """How well a linear probe tells the words apart; mean and deviation are over folds."""

    shuffled: tuple[float, ...]
    """Accuracy with labels shuffled."""
    chance: float
    """Share of the commonest label."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Words in the plane, by the values that attention reads: the word of each point, and of each
    layer the points [x, y]."""

    labels: tuple[int, ...]
    layers: Mapping[int, Rows]


@dataclass(frozen=True, kw_only=True)
class Routing:
    """What a model's routers read, as shares of absolute weights."""

    heatmap: Rows
    """[target layer, source layer], averaged over heads, and over keys and values."""
    heads: tuple[Rows, ...]
    """[target layer, target head, source layer]."""
    parts: Mapping[str, Rows] | None = None
    """The heatmap of keys ("key") and of values ("value"); None if they read alike."""


@dataclass(frozen=True, kw_only=True)
class DepthMixture:
    """The weights with which one place mixes states or slots of different depths, [reader, source]:
    mean and standard deviation over the tokens of the texts."""

    place: str
    """Where it stands, for instance "layer 3, attention"."""
    readers: tuple[str, ...]
    sources: tuple[str, ...]
    mean: Rows
    deviation: Rows


@dataclass(frozen=True, kw_only=True)
class ModelAnalysis:
    """The analysis of one model."""

    class_name: str
    layers: int
    width: int
    parameters: int
    run_id: str | None = None
    entropy: Mapping[Representation, ByLayer]
    """Matrix entropy of a sequence's tokens, in nats; over sequences."""
    separability: Mapping[Probe, Mapping[Representation, ProbeAccuracy]]
    layout: Layout
    routing: Routing | None = None
    """What its routers read; None: it has none, or it is not known."""
    routing_unknown: str | None = None
    """Why it is not known what its routers read; None: it is, or it has none."""
    mixtures: tuple[DepthMixture, ...] = ()
    """Of each place that mixes over depth, what it read on the texts."""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The analysis of one model, or of two side by side, in the order of the command line."""

    KIND: ClassVar[str] = "analysis"
    VERSION: ClassVar[int] = 2
    COMMAND: ClassVar[str] = "layermem analyze"

    command: str
    options: AnalysisOptions
    """Options of the analysis; ``words`` are those that were used."""
    sequences: int
    models: Mapping[str, ModelAnalysis]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one layer reads: its sources, the most read first."""

    layer: int
    off_layer_share: float
    """Share that comes from earlier layers."""
    sources: tuple[int, ...]
    effective: float
    """Effective number of layers it reads: exp of the entropy of its shares."""


def readings(heatmap: Any, most: int = 3) -> list[Reading]:
    """Summarise each row of a heatmap; ``most``: number of sources that are named."""
    import numpy as np

    layers = []
    for layer, row in enumerate(heatmap):
        shares = row[row > 0]
        order = np.argsort(-row, kind="stable")[:most]
        layers.append(
            Reading(
                layer=layer,
                off_layer_share=float(1 - row[layer]),
                sources=tuple(int(j) for j in order if row[j] > 0),
                effective=float(np.exp(-(shares * np.log(shares)).sum())),
            )
        )
    return layers
