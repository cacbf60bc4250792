"""What came out of a quickstart: the same problems solved by a plain decoder and by LIMe."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from layermem.number_ranges import SEED, at_least, number
from layermem.results.solved import Solved
from layermem.results.study import Validation


@dataclass(frozen=True, kw_only=True)
class QuickstartOptions:
    """Sizes of a quickstart."""

    seed: int = number(0, SEED)
    """Seed of weights and order of the data, the same for both; 0 was not searched for."""
    epochs: int = number(6, at_least(1))
    """Passes over the expressions."""
    examples: int = number(20_000, at_least(1))
    """Expressions in the training set."""
    test: int = number(2_000, at_least(1))
    """Expressions in the test set."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What a model wrote for one problem, and what is wrong with it: a row of attempts.jsonl."""

    prompt: str
    """The problem."""
    solution: str
    """A right solution."""
    text: str
    """What the model wrote."""
    level: int
    """Level of the problem, such as its number of operands."""
    answer: bool
    """Whether the final answer is right."""
    steps: bool
    """Whether every step is right."""
    fault: str | None = None
    """What is wrong with the first wrong step; None or empty: nothing."""
    at: int | None = None
    """Which step that is."""


@dataclass(frozen=True, kw_only=True)
class QuickstartResult:
    """Both models of a quickstart, by variant."""

    KIND: ClassVar[str] = "quickstart"
    VERSION: ClassVar[int] = 1
    COMMAND: ClassVar[str] = "layermem quickstart"

    command: str
    """What made it."""
    options: QuickstartOptions
    """Sizes and seed."""
    results: Mapping[str, Solved]
    """Variant to what it solves of the test set."""
    validations: Mapping[str, tuple[Validation, ...]]
    """Variant to its validations."""
    heatmap: tuple[tuple[float, ...], ...]
    """What LIMe's routers read: [target layer, source layer]."""
    solved: tuple[Mapping[str, Attempt], ...]
    """The first problems that LIMe solved: variant to its attempt."""
    failed: tuple[Mapping[str, Attempt], ...]
    """The first that it failed."""
