"""What architectures cost: parameters and FLOPs in closed form, time and memory as measured.

Costs             one command's answer
  CostPoint         one preset at one depth, width and length
    counted           arm -> counting ("honest", "paper") -> Cost
    cache             arm -> CacheCost
    measured          mode ("eager", ...) -> arm -> Measurement
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from layermem.models.number_ranges import at_least, number

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
    """What one model costs, counted in closed form."""

    parameters: int
    """Trainable parameters."""
    forward: float
    """FLOPs of a forward of one sequence."""
    training: float
    """FLOPs of a training step on one sequence."""

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
    """What a training step of one model took."""

    seconds: float
    """A step, the median."""
    low: float
    """Lower quartile."""
    high: float
    """Upper quartile."""
    peak: int | None
    """Bytes the model, its optimiser and a step took at the peak; None: the system does not say."""


@dataclass(frozen=True, kw_only=True)
class CostPoint:
    """Arms side by side at one size."""

    preset: str
    """Preset the sizes are of, or started from."""
    layers: int
    """Number of layers."""
    width: int
    """Width of the residual stream."""
    heads: int
    """Number of query heads."""
    kv_heads: int
    """Number of key-value heads."""
    tokens: int
    """Tokens of a sequence."""
    counted: Mapping[str, Mapping[Counting, Cost]]
    """Arm to its closed-form cost under each counting."""
    cache: Mapping[str, CacheCost] = field(default_factory=dict)
    """Arm to what its cache of keys and values costs; empty: not counted."""
    measured: Mapping[str, Mapping[str, Measurement]] | None = None
    """Mode to arm to what was measured; None: nothing was."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What arms cost at some sizes."""

    KIND: ClassVar[str] = "costs"
    VERSION: ClassVar[int] = 1
    COMMAND: ClassVar[str] = "layermem costs --out"

    command: str
    """What printed it."""
    points: tuple[CostPoint, ...]
    """Sizes, in the order asked for."""
    machine: str | None = None
    """What measured; None: nothing was measured."""
    precision: Precision | None = None
    """Arithmetic of measured steps."""
    measuring: MeasuringOptions | None = None
    """How it was measured; None: nothing was."""
