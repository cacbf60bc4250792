"""What an artefact of the paper says of itself: claim, numbers, studies, how it is observed.

    Artefact        one table or figure
      PaperNumber     a number that the paper prints, and where
      Claim           a difference that the paper claims
      Study           arms on one base run: what is trained, as ``layermem sweep`` would
    Trained         what ``observe`` is given: records by study, arm and seed
    Observed        what it returns: one quantity of one arm, by seed

It does not know: which artefacts there are, how runs are trained.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from layermem.config import Run
from layermem.number_ranges import above, number
from layermem.results.artefact import Direction, Scale, Unit
from layermem.results.run_record import RunRecord

SCALES: tuple[Scale, ...] = ("tiny", "small", "paper")
SEEDS: Mapping[Scale, int] = {"tiny": 5, "small": 3, "paper": 1}
"""Seeds of each scale where none are asked for; the paper reports one run of each arm."""
FINEWEB = "a GPU, and FineWeb-Edu and GPT-2's tokenizer from the network"
"""What the runs on text of the larger scales need."""


@dataclass(frozen=True, kw_only=True)
class PaperNumber:
    """A number that the paper prints."""

    quantity: str
    """What it is of."""
    arm: str
    """The arm, as studies name it."""
    value: float
    """The number; a share between 0 and 1."""
    where: str
    """Table, figure or section."""
    unit: Unit = "number"
    """Whether it is written in percent."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A difference that the paper claims; "equal": to its own number, of what is counted."""

    quantity: str
    """What it is of."""
    arm: str
    """The arm it is about."""
    direction: Direction
    """How it differs."""
    against: str | None = "plain"
    """The arm it differs from; None: the paper's number."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Arms on one base run, seed by seed."""

    name: str
    """Its folder: for a base that is a preset as it stands, the one that a sweep takes."""
    base: Run
    """What all its runs share."""
    arms: tuple[str, ...]
    """Arms, as for ``layermem sweep --variants``."""
    rates: tuple[float, ...] = number((), above(0))
    """Learning rates that are tried with every arm on a seed kept for that; empty: the base's."""
    starts_from: "Study | None" = None
    """Study whose run of the same arm and seed each run starts from; None: new weights."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The ended runs of an artefact."""

    scale: Scale
    """Size of the runs."""
    seeds: tuple[int, ...]
    """Seeds that were planned."""
    records: Mapping[str, Mapping[str, Mapping[int, RunRecord]]]
    """Study, arm and seed to what the run recorded; runs that did not end well are left out."""
    out: Path
    """Folder for what is computed of them."""
    task_records: tuple[str, ...] = ()
    """Records of evaluation tasks, as ``layermem eval`` takes them."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One quantity of one arm."""

    quantity: str
    """What it is."""
    arm: str
    """The arm."""
    by_seed: Mapping[int, float]
    """Its number by seed (of measurements: by repeat; of what is counted: one)."""
    unit: Unit = "number"
    """Whether it is written in percent."""
    chance: float | None = None
    """What a guess comes to."""
    counted: bool = False
    """Whether it is counted in closed form."""


@dataclass(frozen=True, kw_only=True)
class Artefact:
    """One table or figure of the paper."""

    title: str
    """What it shows."""
    claim: str
    """The paper's claim in one sentence."""
    studies: Callable[[Scale], tuple[Study, ...]]
    """What is trained at a scale."""
    observe: Callable[[Trained], Iterable[Observed]]
    """The numbers of ended runs, or of what needs no run."""
    numbers: tuple[PaperNumber, ...] = ()
    """What the paper prints."""
    claims: Callable[[Scale], tuple[Claim, ...]]
    """What it claims of the arms of a scale."""
    needs: Mapping[Scale, str] = field(default_factory=dict)
    """What a scale needs beside a CPU and this machine's files."""
    on_gpu: tuple[Scale, ...] = ()
    """Scales that are refused where there is no GPU."""
    notes: tuple[str, ...] = ()
    """What tempers the comparison with the paper."""
    tasks: tuple[str, ...] = ()
    """Evaluation tasks that models are asked, by their columns."""
    missing: str | None = None
    """What is not installed that it needs; None: nothing."""


def no_studies(scale: Scale) -> tuple[Study, ...]:
    """Return no study: what is counted or measured needs no run."""
    return ()


def beside_plain(quantity: str, arms: Iterable[str], direction: Direction) -> tuple[Claim, ...]:
    """Return the claim that each arm differs from the plain decoder in one direction."""
    return tuple(
        Claim(quantity=quantity, arm=arm, direction=direction) for arm in arms if arm != "plain"
    )
