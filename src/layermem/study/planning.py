"""The runs of a study by name: those that choose learning rates, and those that count.

BOARD/rates/ARM-lrRATE-wdDECAY-s1000    every arm with every rate and decay
BOARD/ARM-lrRATE-wdDECAY-sSEED          every arm with what it chose and every seed
BOARD/CONDITION/ARM-...                 those of them that a condition makes other runs
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from layermem.config import Run
from layermem.results.study import MeasuredMemory, MeasuredSteps, TriedRates
from layermem.study.conditions import at_equal_parameters, at_equal_time
from layermem.study.definition import CHOOSING_SEED, Arm, Board

_NOT_IN_FOLDER_NAMES = re.compile(r"[^\w.=-]")


@dataclass(frozen=True)
class Tried:
    """What an arm tries: a learning rate, and a weight decay where these are tried too."""

    rate: float
    decay: float | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a study."""

    board: str
    """Name of its board."""
    arm: str
    """Its arm."""
    run: Run
    """The run, with its seed."""
    trial: Tried | None = None
    """What it tries; None: it counts."""


Plan = dict[str, PlannedRun]
"""Runs by name."""
Choices = Mapping[str, Tried]
"""What each arm chose; one that is not named takes the board's."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a step of each arm of a board takes; nothing where it was not asked for."""

    steps: MeasuredSteps | None = None
    memory: MeasuredMemory | None = None


@dataclass(frozen=True, kw_only=True)
class Done:
    """A board whose rates are chosen: its runs under each condition."""

    board: Board
    """The board."""
    tried: tuple[TriedRates, ...] = ()
    """What its arms tried."""
    choices: Choices
    """What they chose."""
    lost: frozenset[str]
    """Arms that diverged at every learning rate."""
    by_condition: Mapping[str, Plan]
    """The runs of all arms, of which lost ones are not trained."""
    measured: Measured
    """What their steps take."""

    @property
    def counting(self) -> Plan:
        """Return the runs that count and are trained, by name."""
        return {
            name: planned
            for plan in self.by_condition.values()
            for name, planned in plan.items()
            if planned.arm not in self.lost
        }


def stages(boards: Iterable[Board]) -> list[list[Board]]:
    """Return the boards in the order of training: those that others start from come first."""
    boards = list(boards)
    first = {board.starts_from.name: board.starts_from for board in boards if board.starts_from}
    return [list(stage) for stage in (first.values(), boards) if stage]


def trials(board: Board) -> Plan:
    """Return the runs that choose a board's learning rates; none where none are tried."""
    plan: Plan = {}
    for arm in board.arms:
        for rate in board.rates_of(arm):
            for decay in board.decays or (None,):
                tried = Tried(rate, decay)
                run = _run(board, arm, tried, CHOOSING_SEED)
                _add(plan, f"{board.name}/rates", tried, replace(run, trial=tried))
    return plan


def counting_runs(
    board: Board,
    seeds: Sequence[int],
    choices: Choices,
    path_of: Callable[[str, Run], Path],
    choices_before: Choices | None = None,
) -> Plan:
    """Return the runs that count at equal tokens.

    ``path_of``: where a named run lies or would lie, for a board that starts from another, whose
    arms made the ``choices_before``.
    """
    starts: dict[tuple[str, int], Path] = {}
    if board.starts_from:
        before = counting_runs(board.starts_from, seeds, choices_before or {}, path_of)
        starts = {
            (planned.arm, planned.run.seed): path_of(name, planned.run) / "final"
            for name, planned in before.items()
        }
    plan: Plan = {}
    for seed in seeds:
        for arm in board.arms:
            tried = choices.get(arm.name)
            planned = _run(board, arm, tried, seed)
            if start := starts.get((arm.name, seed)):
                model = replace(planned.run.model, pretrained=str(start))
                planned = replace(planned, run=replace(planned.run, model=model))
            _add(plan, board.name, tried, planned)
    return plan


def at_condition(
    condition: str, at_tokens: Plan, board: Board, steps: MeasuredSteps | None
) -> Plan:
    """Return the runs of a condition; those that it does not change are those at equal tokens."""

    def changed(planned: PlannedRun) -> Run:
        if condition == "time" and steps is not None:
            return at_equal_time(planned.run, steps.ratios[planned.arm])
        if condition == "parameters":
            return at_equal_parameters(planned.run, board.base)
        return planned.run

    return dict(
        _under(condition, name, planned, changed(planned)) for name, planned in at_tokens.items()
    )


def _under(condition: str, name: str, before: PlannedRun, run: Run) -> tuple[str, PlannedRun]:
    if run == before.run:
        return name, before
    board, _, rest = name.rpartition("/")
    return f"{board}/{condition}/{rest}", replace(before, run=run)


def _run(board: Board, arm: Arm, tried: Tried | None, seed: int) -> PlannedRun:
    run = replace(arm.change(board.base), seed=seed)
    if tried is not None:
        if tried.decay is not None:
            run = replace(run, optim=replace(run.optim, weight_decay=tried.decay))
        run = arm.with_rate(run, tried.rate)
    return PlannedRun(board=board.name, arm=arm.name, run=run)


def _add(plan: Plan, folder: str, tried: Tried | None, planned: PlannedRun) -> None:
    """Add a run under its name; raise where another has it: one would stand for the other."""
    rate = "" if tried is None else f"-lr{tried.rate:g}"
    rate += "" if tried is None or tried.decay is None else f"-wd{tried.decay:g}"
    arm = _NOT_IN_FOLDER_NAMES.sub("-", planned.arm)
    name = f"{folder}/{arm}{rate}-s{planned.run.seed}"
    if name in plan:
        raise ValueError(
            f"{plan[name].arm} and {planned.arm} would have one folder, {name}; let arms differ in "
            "more than punctuation"
        )
    plan[name] = planned
