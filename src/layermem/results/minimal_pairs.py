"""Judgements of grammar by minimal pairs: shares of right pairs, and paired differences.

    MinimalPairsResult    blimp.json: options, and of each model
      JudgedPairs           its shares: of all pairs, by field, phenomenon, paradigm
      PairComparison        of each model but the first, against the first
      GrammarProbes         of each model: what probes read in its layers

It does not know: sentences, models, how a pair is judged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from layermem.number_ranges import at_least, number
from layermem.results.analysis import Probe, ProbeAccuracy, Representation
from layermem.results.arms import Arms

CHANCE = 0.5
"""Share of right pairs of a guess."""


@dataclass(frozen=True, kw_only=True)
class PairShare:
    """Of some pairs, how many are right."""

    count: int
    """Number of pairs."""
    right: int
    """Pairs whose good sentence is the more probable one."""
    ties: int
    """Pairs whose sentences are equally probable; they are not right."""
    interval: tuple[float, ...]
    """95% interval (Wilson) of the share of right ones, over pairs."""

    @property
    def accuracy(self) -> float:
        """Share of right pairs."""
        return self.right / self.count


@dataclass(frozen=True, kw_only=True)
class JudgedPairs:
    """What one model finds more probable."""

    all: PairShare
    """Of all pairs."""
    fields: Mapping[str, PairShare]
    """Field of linguistics to its share."""
    phenomena: Mapping[str, PairShare]
    """Phenomenon to its share."""
    paradigms: Mapping[str, PairShare]
    """Paradigm to its share."""


@dataclass(frozen=True, kw_only=True)
class PairDifference:
    """A model against another on the same pairs."""

    count: int
    """Number of pairs."""
    only_ours: int
    """Pairs that are right in this model alone."""
    only_theirs: int
    """Pairs that are right in the other model alone."""
    p_value: float
    """Two-sided p-value by McNemar's exact test; by phenomenon, adjusted by Holm's method."""

    @property
    def accuracy(self) -> float:
        """Difference of the shares of right pairs."""
        return (self.only_ours - self.only_theirs) / self.count


@dataclass(frozen=True, kw_only=True)
class PairComparison:
    """A model against the first one."""

    all: PairDifference
    """On all pairs."""
    phenomena: Mapping[str, PairDifference]
    """Phenomenon to the difference on its pairs."""


@dataclass(frozen=True, kw_only=True)
class GrammarProbes:
    """How well a linear probe tells grammatical sentences from the others, layer by layer."""

    pairs: int
    """Pairs whose sentences it is fitted to and tested on; none is in two folds."""
    accuracy: Mapping[Probe, Mapping[Representation, ProbeAccuracy]]
    """Probe to representation to its accuracy."""


@dataclass(frozen=True, kw_only=True)
class MinimalPairsOptions:
    """What is judged."""

    records: tuple[str, ...]
    """Files of BLiMP's JSON lines, plain or compressed, or folders of such files."""
    per_paradigm: int | None = number(None, at_least(1))
    """Pairs of each paradigm, the first ones; None: all."""
    probe: int | None = number(None, at_least(1))
    """Pairs of each paradigm, the first ones, by which linear probes are fitted to every layer's
    representations of the sentences; None: no probe."""
    batch_size: int | None = number(None, at_least(1))
    """Sentences of a batch; None: as many as 128 MB of logits allow, at most 64."""


@dataclass(frozen=True, kw_only=True)
class MinimalPairsResult:
    """Models on the same pairs."""

    KIND: ClassVar[str] = "blimp"
    VERSION: ClassVar[int] = 2
    COMMAND: ClassVar[str] = "layermem eval --tasks blimp=DIR"

    command: str
    """What made it."""
    options: MinimalPairsOptions
    """What was judged."""
    models: Mapping[str, JudgedPairs]
    """Name of each model to its shares."""
    comparisons: Mapping[str, PairComparison]
    """Name of each model but the first to its differences from the first."""
    probes: Mapping[str, GrammarProbes]
    """Name of each model to what probes read in its layers; empty: there was no probe."""
    arms: Arms = field(default_factory=dict)
    """Which models differ in the seed alone."""
