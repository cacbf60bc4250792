"""What an artefact of the paper says of itself: claim, numbers, boards, how it is observed.

Artefact        one table or figure, at three scales
Observing       what ``observe`` is given: records by board, arm and seed
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from layermem.config import Run
from layermem.results.study import Claim, Direction, Drawing, PaperNumber, Scale
from layermem.study.boards import arms_of_variants
from layermem.study.definition import Board, Observed, Study, Trained

SCALES: tuple[Scale, ...] = get_args(Scale)
SEEDS: Mapping[Scale, int] = {"tiny": 5, "small": 3, "paper": 1}
"""Seeds of each scale where none are asked for; the paper reports one run of each arm."""
FINEWEB = "a GPU, and FineWeb-Edu and GPT-2's tokenizer from the network"
"""What the runs on text of the larger scales need."""


@dataclass(frozen=True, kw_only=True)
class Observing(Trained):
    """The ended runs of an artefact."""

    scale: Scale
    """Size of the runs."""
    task_records: tuple[str, ...] = ()
    """Records of evaluation tasks, as ``layermem eval`` takes them."""


@dataclass(frozen=True, kw_only=True)
class Artefact:
    """One table or figure of the paper."""

    title: str
    """What it shows."""
    claim: str
    """The paper's claim in one sentence."""
    boards: Callable[[Scale], tuple[Board, ...]]
    """What is trained at a scale."""
    observe: Callable[[Observing], Iterable[Observed]]
    """The numbers of ended runs, or of what needs no run."""
    numbers: tuple[PaperNumber, ...] = ()
    """What the paper prints."""
    claims: Callable[[Scale], tuple[Claim, ...]]
    """What it claims of the arms of a scale."""
    drawings: Callable[[Scale], tuple[Drawing, ...]] = lambda scale: ()
    """What it draws at a scale."""
    needs: Mapping[Scale, str] = field(default_factory=dict)
    """What a scale needs beside a CPU and this machine's files."""
    on_gpu: tuple[Scale, ...] = ()
    """Scales that are refused where there is no GPU."""
    notes: tuple[str, ...] = ()
    """What tempers the comparison with the paper."""
    tasks: tuple[str, ...] = ()
    """Evaluation tasks that models are asked, by their columns."""
    missing: str = ""
    """What is not installed that it needs; empty: nothing."""

    def study(
        self,
        name: str,
        scale: Scale,
        count: int | None = None,
        task_records: Sequence[str] = (),
    ) -> Study:
        """Return its study at a scale; ``count``: how many seeds (None: as many as the scale has).

        Seeds start with that of its presets, which is 0 but for the paper's 42.
        """
        boards = self.boards(scale)
        first = max((board.base.seed for board in boards), default=0)
        seeds = range(first, first + (SEEDS[scale] if count is None else count))

        def observe(trained: Trained) -> Iterable[Observed]:
            records = tuple(task_records)
            return self.observe(Observing(**vars(trained), scale=scale, task_records=records))

        return Study(
            name=f"paper/{name}-{scale}",
            title=self.title,
            boards=boards,
            seeds=tuple(seeds),
            observe=observe,
            scale=scale,
            claim=self.claim,
            papers=self.numbers,
            claims=self.claims(scale),
            drawings=self.drawings(scale),
            notes=self.notes,
            missing=self.missing,
            tasks=self.tasks,
        )


def board(
    name: str,
    base: Run,
    arms: Sequence[str],
    rates: Sequence[float] = (),
    starts_from: Board | None = None,
) -> Board:
    """Return a board of variants."""
    return Board(
        name=name,
        base=base,
        arms=arms_of_variants(arms, base),
        rates=tuple(rates),
        starts_from=starts_from,
    )


def no_boards(scale: Scale) -> tuple[Board, ...]:
    """Return no board: what is counted or measured needs no run."""
    return ()


def beside_plain(quantity: str, arms: Iterable[str], direction: Direction) -> tuple[Claim, ...]:
    """Return the claim that each arm differs from the plain decoder in one direction."""
    return tuple(
        Claim(quantity=quantity, arm=arm, direction=direction) for arm in arms if arm != "plain"
    )
