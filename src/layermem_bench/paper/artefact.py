"""What an artefact of the paper says of itself, and the study that it is."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import get_args

from layermem_bench.config.run import Run
from layermem_bench.studies.boards import arms_of_variants
from layermem_bench.studies.definition import Board, Observed, Study, Trained
from layermem_bench.studies.result import (
    Claim,
    Direction,
    Drawing,
    PaperNumber,
    Picture,
    Point,
    RunRecord,
    Scale,
)

SCALES: tuple[Scale, ...] = get_args(Scale)
SEEDS: Mapping[Scale, int] = {"tiny": 5, "small": 3, "paper": 1}
"""Seeds of each scale where none are asked for; the paper reports one run of each arm."""
FINEWEB = "a GPU, and FineWeb-Edu and GPT-2's tokenizer from the network"
"""What the runs on text of the larger scales need."""


@dataclass(frozen=True, kw_only=True)
class Observing(Trained):
    """The ended runs of an artefact: records by board, arm and seed."""

    scale: Scale
    """Size of the runs."""
    task_records: tuple[str, ...] = ()
    """Records of evaluation tasks, as ``layermem eval`` takes them."""

    def of(self, board: Board) -> Mapping[str, Mapping[int, RunRecord]]:
        """Return a board's runs by arm and seed."""
        return self.records.get(board.name, {})


@dataclass(frozen=True, kw_only=True)
class Artefact:
    """One table or figure of the paper, at three scales."""

    title: str
    """What it shows."""
    claim: str
    """The paper's claim in one sentence."""
    boards: Callable[[Scale], tuple[Board, ...]] = lambda scale: ()
    """What is trained at a scale; nothing for what is counted or measured."""
    observe: Callable[[Observing], Iterable[Observed | Picture]]
    """The numbers and pictures of ended runs, or of what needs no run."""
    numbers: tuple[PaperNumber, ...] = ()
    """What the paper prints."""
    claims: Callable[[Scale], Iterable[Claim]]
    """What it claims of the arms of a scale."""
    drawings: Callable[[Scale], tuple[Drawing, ...]] = lambda scale: ()
    """What it draws at a scale."""
    needs: Mapping[Scale, str] = field(default_factory=dict)
    """What a scale needs, a GPU among it, without which it is refused; none: a CPU is enough."""
    notes: tuple[str, ...] = ()
    """What tempers the comparison with the paper."""
    tasks: tuple[str, ...] = ()
    """Evaluation tasks that models are asked, by their columns."""
    missing: str = ""
    """What is not installed that it needs; empty: nothing."""

    def study(
        self, name: str, scale: Scale, count: int | None = None, task_records: Sequence[str] = ()
    ) -> Study:
        """Return its study at a scale; ``count``: how many seeds (None: as many as the scale has).

        Seeds start with that of its presets, which is 0 but for the paper's 42.
        """
        boards, records = self.boards(scale), tuple(task_records)
        first = max((board.base.seed for board in boards), default=0)
        return Study(
            name=f"paper/{name}-{scale}",
            title=self.title,
            boards=boards,
            seeds=tuple(range(first, first + (SEEDS[scale] if count is None else count))),
            observe=lambda trained: self.observe(
                Observing(**vars(trained), scale=scale, task_records=records)
            ),
            scale=scale,
            claim=self.claim,
            papers=self.numbers,
            claims=tuple(self.claims(scale)),
            drawings=self.drawings(scale),
            notes=self.notes,
            missing=self.missing,
        )


on_text = partial(Artefact, needs={"small": FINEWEB, "paper": f"{FINEWEB}; weeks of many GPUs"})
"""An artefact of runs on text."""


def board(
    base: Run,
    arms: Sequence[str] = ("plain", "lime"),
    rates: Sequence[float] = (),
    starts_from: Board | None = None,
    name: str = "",
) -> Board:
    """Return a board of variants; ``name``: that of the preset if it is empty."""
    return Board(
        name=name or base.preset,
        base=base,
        arms=arms_of_variants(arms, base),
        rates=tuple(rates),
        starts_from=starts_from,
    )


def claims_of_lime(
    *,
    similar: Iterable[str] = (),
    lower: Iterable[str] = (),
    higher: Iterable[str] = (),
    against: str = "plain",
) -> tuple[Claim, ...]:
    """Return how LIMe is claimed to differ from another arm: the quantities of each direction."""
    directions: Mapping[Direction, Iterable[str]]
    directions = {"similar": similar, "lower": lower, "higher": higher}
    return tuple(
        Claim(quantity=each, arm="lime", direction=direction, against=against)
        for direction, quantities in directions.items()
        for each in quantities
    )


def shares(where: str, printed: Mapping[tuple[str, str], float]) -> tuple[PaperNumber, ...]:
    """Return shares that the paper prints, by quantity and arm."""
    return tuple(
        PaperNumber(quantity=quantity, arm=arm, value=value, where=where, is_share=True)
        for (quantity, arm), value in printed.items()
    )


def lines(
    up: str, across: str, places: Iterable[int], row: Callable[[str, int], tuple[str, str]]
) -> Drawing:
    """Return a drawing of a line for the plain decoder and one for LIMe.

    ``places``: where points stand across. ``row``: the quantity and the arm of a line's point.
    """
    points = tuple(
        Point(quantity=quantity, arm=arm, line=line, at=at)
        for line in ("plain", "lime")
        for at in places
        for quantity, arm in [row(line, at)]
    )
    return Drawing(across=across, up=up, points=points)
