"""A table or figure of the paper beside what runs here came to: rows, claims, the runs.

    ArtefactResult    artefact.json: what is claimed, at which scale
      ArtefactRow       one quantity of one arm: the paper's number, ours by seed, mean, chance
      JudgedClaim       one claimed difference: paired over seeds, Holm, and whether it holds
      RunState          one run: recorded, diverged, failed or not begun

It does not know: how anything is computed, tables, pages.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from layermem.results.learning_rates import TriedRates

Scale = Literal["tiny", "small", "paper"]
Unit = Literal["number", "share"]
Direction = Literal["higher", "lower", "similar", "equal"]
Verdict = Literal["holds", "does not hold", "cannot be said at this scale"]
State = Literal["ended", "diverged", "failed", "begun", "not begun"]
RULE = (
    "A claim of a higher or lower value holds if the 95% interval of the paired difference "
    "excludes 0 in the claim's direction, does not hold if it excludes 0 in the other, and cannot "
    "be said at this scale otherwise, or where a planned run diverged, failed or is missing, or "
    "where there is a chance level and neither arm's own interval lies above it, or where fewer "
    "than six pairs all differ by the same, which has no interval. Where seeds were added to a "
    "result, the interval is that of the level which is left after so many looks. That two are "
    "similar does not hold if the interval excludes 0, and is never shown by one that "
    "includes it. A counted number equals the paper's if both are the same in the digits that the "
    "paper prints; that is said at the paper's sizes alone."
)
"""How verdicts are reached."""


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean with its 95% interval."""

    mean: float
    """The mean."""
    half: float | None
    """Half the width of its interval by Student's t; None: of a single value."""
    count: int
    """Values it is of."""


@dataclass(frozen=True, kw_only=True)
class ArtefactRow:
    """One quantity of one arm."""

    quantity: str
    """What it is, such as "right answers, 6 operands"."""
    arm: str
    """Architecture with its options."""
    unit: Unit
    """Whether it is written in percent."""
    paper: float | None
    """The paper's number; None: it prints none."""
    where: str
    """Where the paper's number stands; empty: it prints none."""
    by_seed: Mapping[int, float]
    """Ours, by seed; of what is counted, one number; of what is measured, by repeat."""
    mean: Mean | None
    """Mean over seeds; None: no run has ended."""
    chance: float | None = None
    """What a guess comes to; None: there is none."""
    counted: bool = False
    """Whether it is counted in closed form and so has no seeds."""


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """One claimed difference, or a counted number, and what came of it."""

    quantity: str
    """What is compared."""
    arm: str
    """The arm that the claim is about."""
    against: str | None
    """The arm it is compared with; None: the paper's own number."""
    direction: Direction
    """How the first is claimed to differ from the second."""
    paper: float | None
    """The paper's difference, or number; None: it prints none."""
    difference: Mean | None
    """Ours, paired over seeds; None: there are no pairs."""
    p: float | None
    """p-value adjusted by Holm's method for the number of this result's claims; None: fewer than
    two pairs."""
    pairs_to_settle: int | None
    """Paired seeds with which a difference as observed would be told from 0 in four of five
    repetitions; None: the difference is 0, or fewer than two pairs say how it varies."""
    verdict: Verdict
    """What came of it, by ``RULE``."""
    reason: str
    """Why, in a few words."""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """One planned run."""

    name: str
    """Its name in the plan."""
    run_id: str
    """Stands for every option of the run."""
    folder: str
    """Where it is recorded, or would be."""
    state: State
    """Where it stands."""
    note: str = ""
    """Of one that diverged or failed: what was seen."""


@dataclass(frozen=True, kw_only=True)
class ArtefactResult:
    """One artefact of the paper at one scale."""

    KIND: ClassVar[str] = "artefact"
    VERSION: ClassVar[int] = 1
    COMMAND: ClassVar[str] = "layermem reproduce"

    command: str
    """What made it."""
    name: str
    """Fixed name: table7, fig4."""
    title: str
    """What the artefact shows."""
    claim: str
    """The paper's claim in one sentence."""
    scale: Scale
    """Size of the runs."""
    seeds: tuple[int, ...]
    """Seeds that were planned."""
    rows: tuple[ArtefactRow, ...]
    """The paper's numbers and ours."""
    claims: tuple[JudgedClaim, ...]
    """What came of each claim."""
    rates: Mapping[str, Mapping[str, float]]
    """Learning rate that each arm of a study took, where some were tried."""
    runs: tuple[RunState, ...]
    """The runs, those included that are in no mean."""
    notes: tuple[str, ...] = ()
    """What tempers the comparison with the paper."""
    missing: str | None = None
    """What was not evaluated and why; None: nothing."""
    tried: Mapping[str, tuple[TriedRates, ...]] = field(default_factory=dict)
    """Study to the learning rates that each arm tried; older records do not say."""
    looks: tuple[tuple[int, ...], ...] = ()
    """Seeds of each look at these runs, this one last; older records do not say."""
