"""Boards by name, and the study of variants on some of them.

    tiny-lm          a preset
    recall           tiny-mqar
    tiny-lm@64x32    the preset with 64 layers of width 32

Heads keep their width. Of the shapes of one preset the first that is named has an mlp of the
preset's ratio; that of the others is as wide as it takes to have the first one's parameters.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from layermem.config import Run
from layermem.efficiency.model_sizes import reshaped
from layermem.presets import get_preset
from layermem.study.arms import arms_of_variants
from layermem.study.conditions import plain_parameters, with_parameters
from layermem.study.definition import Board, Study

OTHER_NAMES = {"recall": "mqar"}
"""Boards that are called otherwise than their presets."""
_SHAPE = re.compile(r"(?P<layers>[1-9]\d*)x(?P<width>[1-9]\d*)")


def study_of_variants(
    boards: Sequence[Board], seeds: Sequence[int], conditions: Sequence[str]
) -> Study:
    """Return the study of some boards."""
    names = [board.name for board in boards]
    arms = [arm.name for arm in boards[0].arms]
    shown = " against ".join(arms) if len(arms) < 4 else f"{len(arms)} arms"
    return Study(
        name="+".join(names),
        title=f"{shown} on {', '.join(names)}",
        boards=tuple(boards),
        seeds=tuple(seeds),
        conditions=tuple(conditions),
    )


def board_of(
    run: Run,
    variants: str,
    rates: Sequence[float] = (),
    decays: Sequence[float] = (),
    name: str = "",
    shape: str = "",
) -> Board:
    """Return the board of a run: its variant and learning rate are the arms' to say."""
    return Board(
        name=name or run.preset,
        base=run,
        arms=arms_of_variants(variants, run),
        rates=tuple(rates),
        decays=tuple(decays),
        shape=shape,
    )


@dataclass(frozen=True, kw_only=True)
class BoardName:
    """A board's name, taken apart."""

    preset: str
    """Full name of the preset."""
    shape: str
    """LAYERSxWIDTH; empty: the preset's."""

    @property
    def folder(self) -> str:
        """Name of its runs' folder."""
        return f"{self.preset}-{self.shape}" if self.shape else self.preset


def read_board(name: str) -> BoardName:
    """Take a board's name apart."""
    preset, at, shape = name.partition("@")
    if at and not _SHAPE.fullmatch(shape):
        raise ValueError(f"a board is PRESET or PRESET@LAYERSxWIDTH (tiny-lm@64x32), got {name!r}")
    base = get_preset(OTHER_NAMES.get(preset, preset))
    return BoardName(preset=base.preset or preset, shape=shape)


def open_boards(names: Sequence[str]) -> list[tuple[BoardName, Run]]:
    """Return the run at equal tokens of each board."""
    boards = [read_board(name) for name in names]
    if not boards or len({board.folder for board in boards}) < len(boards):
        raise ValueError(f"boards must be given and differ, got {', '.join(names) or 'none'}")
    opened: list[tuple[BoardName, Run]] = []
    firsts: dict[str, Run] = {}
    for board in boards:
        run = get_preset(board.preset)
        if board.shape:
            run = reshaped(run, *map(int, board.shape.split("x")))
            first = firsts.setdefault(board.preset, run)
            if run is not first:
                plain = with_parameters(replace(run, variant="plain"), plain_parameters(first))
                run = replace(run, model=plain.model)
        opened.append((board, run))
    return opened
