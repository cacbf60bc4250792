"""Variants ranked on boards, at equal tokens, equal training time and equal parameters.

    ArenaResult      arena.json
      Ranking          one board under one condition
        Standing         one arm: its number by seed, its difference from the first arm
    MeasuredSteps    steps.json of a board: how long a step of each arm takes
    MeasuredMemory   memory.json of a board: how much memory it takes

It does not know: how anything is trained or measured, tables, pages.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from layermem.results.artefact import Mean, RunState
from layermem.results.learning_rates import TriedRates

Condition = Literal["tokens", "time", "parameters"]


@dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    """How long a training step of each arm takes, against the first arm's in the same rounds."""

    KIND: ClassVar[str] = "arena_steps"
    VERSION: ClassVar[int] = 1
    COMMAND: ClassVar[str] = "layermem arena, or layermem retrofit,"

    machine: str
    """What measured."""
    base: str
    """Id of the run whose sizes were measured."""
    rounds: int
    """Rounds, one step of each arm in each."""
    seconds: Mapping[str, float]
    """Arm to the median of its steps."""
    ratios: Mapping[str, float]
    """Arm to the median over rounds of its step's time over the first arm's."""


@dataclass(frozen=True, kw_only=True)
class MeasuredMemory:
    """How much memory a training step of each arm takes, with its model and its optimiser."""

    KIND: ClassVar[str] = "arena_memory"
    VERSION: ClassVar[int] = 1
    COMMAND: ClassVar[str] = "layermem arena"

    machine: str
    """What measured."""
    base: str
    """Id of the run whose sizes were measured."""
    peaks: Mapping[str, int | None]
    """Arm to the peak bytes; None: the system does not report a peak."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One arm in a ranking."""

    arm: str
    """The arm."""
    rank: int | None
    """Its rank by the mean; None: a seed is missing or there are too few, so it has none."""
    by_seed: Mapping[int, float]
    """Its number by seed."""
    mean: Mean | None
    """Mean over seeds; None: no run has ended."""
    difference: Mean | None
    """Paired difference from the first arm; None: it is the first, or there is no pair."""
    p: float | None
    """p-value of that, adjusted by Holm's method for the arms of the ranking."""
    p_to_best: float | None
    """p-value of the paired difference from the arm of the best mean, adjusted by Holm's method for
    all pairs of ranked arms; None: it is that arm, or has no rank."""
    pairs_to_settle: int | None
    """Paired seeds that would settle a difference from the first arm as large as observed."""
    steps: int
    """Training steps."""
    width_of_mlp: int
    """Width inside the mlp."""
    parameters: int
    """Trainable parameters."""
    note: str = ""
    """What is missing."""


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """One board under one condition."""

    board: str
    """Name of the board: its preset."""
    condition: Condition
    """What is equal between the arms."""
    metric: str
    """What they are ranked by."""
    is_share: bool
    """Whether it is written in percent; then higher is better, else lower."""
    first: str
    """What the others are compared with."""
    standings: tuple[Standing, ...]
    """The arms, best first."""
    looks: tuple[tuple[int, ...], ...] = ()
    """Seeds of each look at these runs, this one last; older records do not say."""


@dataclass(frozen=True, kw_only=True)
class ArenaResult:
    """All rankings."""

    KIND: ClassVar[str] = "arena"
    VERSION: ClassVar[int] = 2
    COMMAND: ClassVar[str] = "layermem arena"

    command: str
    """What made it."""
    seeds: tuple[int, ...]
    """Seeds that were planned."""
    rankings: tuple[Ranking, ...]
    """Board by board, condition by condition."""
    shapes: tuple[Ranking, ...]
    """Of each preset that is a board in several shapes of equally many parameters: arms and shapes
    together, then the shapes of each arm."""
    rates: Mapping[str, Mapping[str, float]]
    """Learning rate that each arm took on each board, chosen at equal tokens."""
    steps: Mapping[str, MeasuredSteps]
    """Board to the measured steps."""
    runs: tuple[RunState, ...]
    """The runs, those included that are in no mean."""
    tried: Mapping[str, tuple[TriedRates, ...]] = field(default_factory=dict)
    """Board to the learning rates that each arm tried; older records do not say."""
    memory: Mapping[str, MeasuredMemory] = field(default_factory=dict)
    """Board to the measured memory; older records do not say."""
