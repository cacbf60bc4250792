"""The boards of the arena: presets as they are, or in other shapes of equally many parameters.

    tiny-lm          the preset
    recall           tiny-mqar
    tiny-lm@64x32    the preset with 64 layers of width 32

Heads keep their width. Of the shapes of one preset the first that is named has an mlp of the
preset's ratio; that of the others is as wide as it takes to have the first one's parameters.

It does not know: how runs are trained, ranked or shown.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from layermem.config import Run
from layermem.counting import count_parameters
from layermem.experiments.model_sizes import model_sizes, reshaped
from layermem.experiments.presets import get_preset
from layermem.models.registry import lookup

OTHER_NAMES = {"recall": "mqar"}
"""Boards that are called otherwise than their presets."""
# Parameters of two models are equal within this share.
_TOLERANCE = 0.005
_SHAPE = re.compile(r"(?P<layers>[1-9]\d*)x(?P<width>[1-9]\d*)")


@dataclass(frozen=True, kw_only=True)
class Board:
    """A board's name, taken apart."""

    preset: str
    """Full name of the preset."""
    shape: str
    """LAYERSxWIDTH; empty: the preset's."""

    @property
    def study(self) -> str:
        """Name of its runs' folder."""
        return f"{self.preset}-{self.shape}" if self.shape else self.preset


def read_board(name: str) -> Board:
    """Take a board's name apart."""
    preset, at, shape = name.partition("@")
    if at and not _SHAPE.fullmatch(shape):
        raise ValueError(f"a board is PRESET or PRESET@LAYERSxWIDTH (tiny-lm@64x32), got {name!r}")
    base = get_preset(OTHER_NAMES.get(preset, preset))
    return Board(preset=base.preset or preset, shape=shape)


def open_boards(names: Sequence[str]) -> dict[str, Run]:
    """Return the run at equal tokens of each board, by the name of its study."""
    boards = [read_board(name) for name in names]
    if len({board.study for board in boards}) < len(boards):
        raise ValueError(f"two of --board are one preset in one shape: {', '.join(names)}")
    opened: dict[str, Run] = {}
    firsts: dict[str, Run] = {}
    for board in boards:
        run = get_preset(board.preset)
        if board.shape:
            run = reshaped(run, *map(int, board.shape.split("x")))
            first = firsts.setdefault(board.preset, run)
            if run is not first:
                plain = _fit(replace(run, variant="plain"), _plain_parameters(first))
                run = replace(run, model=plain.model)
        opened[board.study] = run
    return opened


def at_equal_parameters(run: Run, base: Run) -> Run:
    """Return a run whose mlp is as narrow as it takes to have the plain decoder's parameters.

    One that has no more than ``_TOLERANCE`` beyond these is left as it is.
    """
    plain = _plain_parameters(base)
    return run if parameters(run) <= plain * (1 + _TOLERANCE) else _fit(run, plain)


def parameters(run: Run) -> int:
    """Return the trainable parameters of a run's model."""
    fields = model_sizes(run)[0] | run.model.variant_fields()
    entry = lookup(run.variant)
    return count_parameters(entry.config(**fields), entry.variant)


def _plain_parameters(run: Run) -> int:
    return parameters(replace(run, variant="plain"))


def _fit(run: Run, target: int) -> Run:
    """Return a run whose mlp is as wide as it takes to have ``target`` parameters."""
    model, ours, width = run.model, parameters(run), run.model.intermediate_size
    wider = replace(run, model=replace(model, intermediate_size=width + 1))
    width -= round((ours - target) / (parameters(wider) - ours))
    if width >= 1:
        fitted = replace(run, model=replace(model, intermediate_size=width))
        if abs(parameters(fitted) / target - 1) <= _TOLERANCE:
            return fitted
    shape = f"{model.num_hidden_layers}x{model.hidden_size}"
    raise ValueError(
        f"{run.variant} has {ours:,} parameters on {run.preset} at {shape}, and no width of the "
        f"mlp gives it {target:,} within {_TOLERANCE:.1%}; leave it out, or take a larger board"
    )
