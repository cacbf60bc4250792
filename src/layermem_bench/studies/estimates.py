"""What a study would train: runs, tokens, FLOPs, and hours if recorded runs say how fast it goes.

Hours are tokens divided by the tokens a second of recorded runs of the same shape.
"""

import logging
import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import Any

from layermem_bench.config.computing import sequences_at_once
from layermem_bench.config.run import Run
from layermem_bench.costs.closed_forms import RunCost, run_cost
from layermem_bench.costs.model_sizes import unknown_size
from layermem_bench.run.folder import recorded_run
from layermem_bench.studies import planning
from layermem_bench.studies.carrying_out import check_conditions
from layermem_bench.studies.definition import Board, Study
from layermem_bench.studies.records import RecordedRuns, check_usable, is_finished, run_folders
from layermem_bench.studies.steps import STEPS, read_steps, tokens_of_a_sequence
from layermem_bench.text.sources import open_source

logger = logging.getLogger(__name__)
Member = tuple[planning.PlannedRun, bool]
"""A planned run, and whether it is recorded and need not be trained."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the runs of one board would take: those that choose learning rates (trials), and those
    that count."""

    board: str
    trials: int
    counting: int
    recorded: int
    """Those of all that need not be run."""
    tokens: float
    flops: float | None
    """In closed form; None: of models of transformers."""
    hours: float | None
    """Hours of the runs that are still to come; None: no recorded runs say how fast they are."""


def estimate(study: Study, out: Path) -> list[Estimate]:
    """Return what each board would take; what carrying the study out would refuse is refused."""
    check_conditions(study)
    recorded, choices = RecordedRuns(out), dict[str, planning.Choices]()
    return [
        _estimate(board.name, planned_runs(study, board, recorded, choices), out)
        for board in chain.from_iterable(planning.stages(study.boards))
    ]


def estimate_run(run: Run) -> Estimate:
    """Return what one run would take. What training it would refuse is refused, as far as nothing
    has to be prepared or fetched for it."""
    sequences_at_once(run, int(os.environ.get("WORLD_SIZE", "1")))
    for source in (run.data.source, run.data.validation):
        if source and not run.task.name:
            open_source(source)
    return _estimate(run.preset, [(planning.PlannedRun(run=run), False)], Path("runs"))


def planned_runs(
    study: Study, board: Board, recorded: RecordedRuns, choices: dict[str, planning.Choices]
) -> list[Member]:
    """Return every run of a board; what its arms choose is added to ``choices`` of other boards.

    Runs that count are known once learning rates are chosen, and those of equal time once steps are
    measured; before that they are those at equal tokens, of which none is recorded.
    """
    trials = planning.trials(board)
    tried = [(each, _is_recorded(name, each.run, recorded)) for name, each in trials.items()]
    known, lost = all(done for _, done in tried), frozenset[str]()
    if known:
        choices[board.name], lost = planning.choices_of(
            board, planning.read_trials(board, recorded)
        )
    before = choices.get(board.starts_from.name) if board.starts_from else None
    at_tokens = planning.counting_runs(
        board, study.seeds, choices.get(board.name, {}), recorded.path_of, before
    )
    file = recorded.out / board.name / STEPS
    arms = {arm.name: arm.change(board.base) for arm in board.arms}
    runs = recorded.out / board.name / "time"
    steps = read_steps(file, board.base, arms, runs) if file.exists() else None
    timed = steps.ratios if steps else {board.arms[0].name}
    counting: dict[str, Member] = {}
    for condition, (name, planned) in product(study.conditions, at_tokens.items()):
        if planned.arm in lost:
            continue
        if condition == "time" and planned.arm not in timed:
            counting[f"{name} (time)"] = planned, False
            continue
        # A run that a condition does not change is one with that at equal tokens.
        for key, each in planning.at_condition(condition, {name: planned}, board, steps).items():
            counting[key] = each, known and _is_recorded(key, each.run, recorded)
    return [*tried, *counting.values()]


def _is_recorded(name: str, run: Run, recorded: RecordedRuns) -> bool:
    folder = recorded.folder_of(name, run)
    check_usable(folder, run)
    return is_finished(run, folder)


def _estimate(board: str, members: Sequence[Member], out: Path) -> Estimate:
    runs = [planned.run for planned, _ in members]
    left = [planned.run for planned, done in members if not done]
    for name in filter(None, {unknown_size(run) for run in runs}):
        logger.warning("%s is not on this machine: its sizes are guessed, and so are costs", name)
    # What runs of one shape cost differs by their numbers of steps alone.
    of_step = {_shape(run): _cost(replace(run, max_steps=1)) for run in runs}
    speeds, hours = _speeds({out, Path("runs")}) if left else {}, None
    if all(_shape(run) in speeds for run in left):
        shapes = [(_shape(run), run.max_steps) for run in left]
        hours = sum(steps * of_step[shape].tokens / speeds[shape] for shape, steps in shapes) / 3600
    trials = sum(planned.trial is not None for planned, _ in members)
    flops = sum(of_step[_shape(run)].flops * run.max_steps for run in runs)
    return Estimate(
        board=board,
        trials=trials,
        counting=len(members) - trials,
        recorded=len(members) - len(left),
        tokens=sum(of_step[_shape(run)].tokens * run.max_steps for run in runs),
        flops=flops or None,
        hours=hours,
    )


def _shape(run: Run) -> tuple[Any, ...]:
    """Return what decides how long a step of a run takes."""
    length = (run.task.name, run.task.options) if run.task.name else run.data.block_size
    return run.variant, run.model, run.host, run.compute, run.optim.batch_size, length


def _cost(run: Run) -> RunCost:
    """Return what a run costs in closed form; of a model of transformers its tokens alone."""
    if run.host.model is not None:
        sequences = run.max_steps * run.optim.batch_size
        return RunCost(0, sequences * tokens_of_a_sequence(run), 0.0)
    return run_cost(run)


def _speeds(folders: set[Path]) -> Mapping[tuple[Any, ...], float]:
    """Return the tokens a second of recorded runs by shape, those of the newest of each."""
    speeds: dict[tuple[Any, ...], float] = {}
    runs = [run for folder in folders for run in run_folders(folder)]
    for folder in sorted(runs, key=lambda each: each.config.stat().st_mtime):
        # A run of another version, or a damaged one, says nothing of speed.
        with suppress(ValueError, TypeError, OSError):
            shape = _shape(recorded_run(folder))
            speed = [
                row["tokens_per_second"] for row in folder.rows() if "tokens_per_second" in row
            ]
            if speed:
                speeds[shape] = statistics.median(speed)
    return speeds
