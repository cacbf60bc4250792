"""What architectures cost: parameters and FLOPs in closed form, time and memory as measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from layermem_base.number_ranges import at_least, number

Counting = Literal["honest", "paper"]
Mode = Literal["eager", "default", "reduce-overhead"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class MeasuringOptions:
    """How training steps are measured."""

    batch: int = number(4, at_least(1))
    """Sequences of a measured step."""
    repeats: int = number(9, at_least(2))
    """Measured rounds, after a warm-up."""
    modes: tuple[Mode, ...] = ("eager",)
    """How measured steps are carried out: eager, or torch.compile's modes (the paper: default and
    reduce-overhead)."""
    precision: Precision | None = None
    """Arithmetic of measured steps; None: bfloat16 on a GPU, else float32."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Trainable parameters, and FLOPs of a forward and of a training step on one sequence."""

    parameters: int
    forward: float
    training: float

    def overhead(self, baseline: "Cost") -> tuple[float, float]:
        """Return by which share parameters and forward FLOPs exceed those of ``baseline``."""
        return self.parameters / baseline.parameters - 1, self.forward / baseline.forward - 1


@dataclass(frozen=True, kw_only=True)
class CacheCost:
    """What a cache of keys and values costs, in numbers, not bytes."""

    held: int
    """Numbers that it holds for one token."""
    read: int
    """Numbers that one decoded token reads of each token that it holds."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a training step of one model took: median and quartiles of its seconds."""

    seconds: float
    low: float
    high: float
    peak: int | None
    """Bytes the model, its optimiser and a step took at the peak; None: the system does not say."""


@dataclass(frozen=True, kw_only=True)
class CostPoint:
    """Arms side by side at one size, on sequences of as many tokens."""

    preset: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    tokens: int
    counted: Mapping[str, Mapping[Counting, Cost]]
    """By arm and counting."""
    cache: Mapping[str, CacheCost] = field(default_factory=dict)
    """By arm; empty: not counted."""
    measured: Mapping[str, Mapping[str, Measurement]] | None = None
    """By mode and arm; None: nothing was measured."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What arms cost at some sizes."""

    KIND: ClassVar[str] = "costs"
    VERSION: ClassVar[int] = 1
    COMMAND: ClassVar[str] = "layermem costs --out"

    command: str
    points: tuple[CostPoint, ...]
    machine: str | None = None
    precision: Precision | None = None
    measuring: MeasuringOptions | None = None
