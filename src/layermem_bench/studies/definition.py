"""What is compared, as data: Study, its Boards, their Arms; and the studies known by name.

``@study`` makes a study known by the name of the function that returns it, with dashes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from layermem_bench.config.named import Named
from layermem_bench.config.run import Run
from layermem_bench.studies.result import LOSS, RIGHT_ANSWERS, OfPaper, Picture, Question, RunRecord

CHOOSING_SEED = 1000
"""Seed that learning rates are chosen with; results must be of other seeds."""
ALL_CONDITIONS = ("tokens", "time", "parameters")


def with_learning_rate(run: Run, rate: float) -> Run:
    """Return a run at another learning rate."""
    return replace(run, optim=replace(run.optim, lr=rate))


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One of the alternatives that are compared on a board."""

    name: str
    change: Callable[[Run], Run]
    """Returns the board's run with what this arm changes."""
    rates: tuple[float, ...] | None = None
    """Learning rates that it tries; None: the board's."""
    with_rate: Callable[[Run, float], Run] = with_learning_rate
    """Puts a learning rate into its run."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Board:
    """What the runs of some arms share, and the arms: the others are compared with the first."""

    name: str
    base: Run
    arms: tuple[Arm, ...]
    rates: tuple[float, ...] = ()
    """Learning rates that every arm tries on a seed kept for that; empty: the base's."""
    starts_from: "Board | None" = None
    """Board whose run of the same arm and seed each run starts from; None: new weights."""
    shape: str = ""
    """LAYERSxWIDTH, where it is a preset in another shape."""


def metric_of(run: Run) -> str:
    """Return what a run and those that are compared with it are ranked by."""
    return RIGHT_ANSWERS if run.task.name else LOSS


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One quantity of one arm, as a ``Row`` and a ``Metric`` of a result hold it."""

    quantity: str
    arm: str
    by_seed: Mapping[int, float]
    is_share: bool = False
    chance: float | None = None
    counted: bool = False


Records = Mapping[str, Mapping[str, Mapping[int, RunRecord]]]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The ended runs of a study, of its first condition, by board, arm and planned seed."""

    seeds: tuple[int, ...]
    records: Records
    out: Path
    """Folder for what is computed of them."""

    def of(self, board: Board) -> Mapping[str, Mapping[int, RunRecord]]:
        """Return a board's runs by arm and seed."""
        return self.records.get(board.name, {})


@dataclass(frozen=True, kw_only=True)
class Study(OfPaper):
    """Arms on boards, seed by seed, under conditions."""

    name: str
    title: str
    boards: tuple[Board, ...]
    seeds: tuple[int, ...]
    conditions: tuple[str, ...] = ("tokens",)
    """Under which the arms meet: of ``ALL_CONDITIONS``."""
    questions: tuple[Question, ...] = ()
    """What it is to tell, each tested alone; none: the arms of a table are tested together."""
    observe: Callable[[Trained], Iterable[Observed | Picture]] | None = None
    """What is seen of ended runs, or without any; None: what runs are judged by is all."""

    def __post_init__(self) -> None:
        if not self.seeds or CHOOSING_SEED in self.seeds:
            raise ValueError(
                f"--seeds: a study needs some, and {CHOOSING_SEED} is kept for choosing learning "
                f"rates, got {self.seeds or 'none'}"
            )
        names = [board.name for board in self.boards]
        if len(set(names)) < len(names):
            raise ValueError(f"two boards of a study have one name: {', '.join(names)}")
        arms = {(board.name, arm.name) for board in self.boards for arm in board.arms}
        for each in self.questions:
            asked = {(each.board, each.arm), (each.board, each.against)}
            if not asked <= arms or each.condition not in self.conditions:
                there = ", ".join(sorted({arm for _, arm in arms}))
                raise ValueError(
                    f"--ask: {each.arm} and {each.against} must be arms of {each.board} under "
                    f"{each.condition}; there are {there}"
                )


_KNOWN = Named[Study]("study")
study, names, description, get_study = _KNOWN.add, _KNOWN.names, _KNOWN.description, _KNOWN.make
"""Makes a function a study; names of all such studies; a study's one line; the study of a name."""
