"""The result of analyzing one model, or two side by side: numbers by layer.

    Analysis            the result of one command
      ModelAnalysis       one model: entropy, probes, layouts, routing

Representations are "hidden" (hidden states) and "routed" (the values that attention reads).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from layermem.models.number_ranges import above, at_least, check_numbers, number

Representation = Literal["hidden", "routed"]
Probe = Literal["paper", "converged"]


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
    documents: int = number(100_000, at_least(1))
    """Documents of a text that are searched for the words, at most."""
    sequences: int = number(64, at_least(1))
    """Sequences whose entropy is computed."""
    length: int = number(128, at_least(2))
    """Tokens of a sequence, at most."""
    alpha: float = number(1.0, above(0))
    """Order of the entropy (the paper's code: 0.5)."""
    seed: int = number(0, at_least(0))
    """Seed of folds, layouts and problems."""

    def __post_init__(self) -> None:
        check_numbers(self, "--")


@dataclass(frozen=True, kw_only=True)
class ByLayer:
    """A quantity with a mean and a standard deviation for every layer."""

    mean: tuple[float, ...]
    """Mean, layer by layer."""
    deviation: tuple[float, ...]
    """Standard deviation, layer by layer."""


@dataclass(frozen=True, kw_only=True)
class ProbeAccuracy(ByLayer):
    """How well a linear probe tells the words apart; mean and deviation are over folds."""

    shuffled: tuple[float, ...]
    """Accuracy with labels shuffled, layer by layer."""
    chance: float
    """Share of the commonest label."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Words laid out on a plane, layer by layer."""

    labels: tuple[int, ...]
    """Of each point, which of the words it is."""
    layers: Mapping[int, tuple[tuple[float, ...], ...]]
    """Layer to the points [x, y]."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one layer reads."""

    layer: int
    """Index of the layer."""
    off_layer_share: float
    """Share that comes from earlier layers."""
    sources: tuple[int, ...]
    """Layers it reads most, the most read first."""
    effective: float
    """Effective number of layers it reads: exp of the entropy of its shares."""


@dataclass(frozen=True, kw_only=True)
class Circuit:
    """A path through routers: the first layer reads the second, which reads the third, ..."""

    layers: tuple[int, ...]
    """Layers, the reader first, each below the one before."""
    weight: float
    """Product of the shares along the path."""


@dataclass(frozen=True, kw_only=True)
class Routing:
    """What a model's routers read, as shares of absolute weights."""

    heatmap: tuple[tuple[float, ...], ...]
    """[target layer, source layer], averaged over heads, and over keys and values."""
    heads: tuple[tuple[tuple[float, ...], ...], ...]
    """[target layer, target head, source layer]."""
    readings: tuple[Reading, ...]
    """Of each layer, what it reads."""
    circuits: tuple[Circuit, ...]
    """The heaviest paths of two steps."""
    parts: Mapping[str, tuple[tuple[float, ...], ...]] | None = None
    """The heatmap of keys ("key") and of values ("value"); None if they read alike."""


@dataclass(frozen=True, kw_only=True)
class DepthMixture:
    """The weights with which one place mixes states or slots of different depths."""

    place: str
    """Where it stands, for instance "layer 3, attention"."""
    readers: tuple[str, ...]
    """What reads a mixture of its own: the rows of the weights."""
    sources: tuple[str, ...]
    """What is mixed: the columns of the weights."""
    mean: tuple[tuple[float, ...], ...]
    """[reader, source], the mean over the tokens of the texts."""
    deviation: tuple[tuple[float, ...], ...]
    """[reader, source], the standard deviation over tokens; 0 for constant weights."""


@dataclass(frozen=True, kw_only=True)
class AnalyzedModel:
    """Which model was analyzed."""

    class_name: str
    """Its class."""
    layers: int
    """Number of layers."""
    width: int
    """Width of the residual stream."""
    parameters: int
    """Number of parameters."""
    run_id: str | None = None
    """Run that trained it; None: not known."""


@dataclass(frozen=True, kw_only=True)
class ModelAnalysis:
    """The analysis of one model."""

    about: AnalyzedModel
    """Which model it is."""
    entropy: Mapping[Representation, ByLayer]
    """Matrix entropy of a sequence's tokens, in nats; over sequences."""
    separability: Mapping[Probe, Mapping[Representation, ProbeAccuracy]]
    """How well each probe tells the words apart."""
    layout: Layout
    """Positions of words in the plane, by the values that attention reads."""
    routing: Routing | None = None
    """What its routers read; None: it has none, or it is not known."""
    routing_unknown: str | None = None
    """Why it is not known what its routers read; None: it is, or it has none."""
    mixtures: tuple[DepthMixture, ...] = ()
    """What each place that mixes over depth read on the texts; empty: none does."""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The analysis of one model, or of two side by side."""

    KIND: ClassVar[str] = "analysis"
    VERSION: ClassVar[int] = 1
    COMMAND: ClassVar[str] = "layermem analyze"

    command: str
    """Command that made it."""
    folder: str
    """Folder it was written to."""
    options: AnalysisOptions
    """Options of the analysis; ``words`` are those that were used."""
    sequences: int
    """Sequences whose entropy was computed."""
    models: Mapping[str, ModelAnalysis]
    """Each model's analysis by its name, in the order of the command line."""
