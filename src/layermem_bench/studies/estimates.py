"""What a study would train: runs, tokens, FLOPs, and hours if recorded runs say how fast it goes.

Hours are tokens divided by the tokens a second of recorded runs whose steps are the same.
"""

import logging
import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from layermem_bench.config.computing import sequences_at_once
from layermem_bench.config.run import Run
from layermem_bench.costs.closed_forms import RunCost, run_cost
from layermem_bench.costs.model_sizes import unknown_size
from layermem_bench.run.folder import recorded_run
from layermem_bench.studies import planning
from layermem_bench.studies.carrying_out import check_conditions
from layermem_bench.studies.definition import CHOOSING_SEED, Board, Study
from layermem_bench.studies.records import RecordedRuns, check_usable, is_finished, run_folders
from layermem_bench.studies.steps import read_steps, step_facts, tokens_of_a_sequence
from layermem_bench.text.sources import open_source

logger = logging.getLogger(__name__)
Member = tuple[Run, bool]
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
    recorded, done = RecordedRuns(out), dict[str, planning.Done]()
    return [
        _estimate(board.name, _members(study, board, recorded, done), out)
        for board in chain.from_iterable(planning.stages(study.boards))
    ]


def estimate_run(run: Run) -> Estimate:
    """Return what one run would take. What training it would refuse is refused, as far as nothing
    has to be prepared or fetched for it."""
    sequences_at_once(run, int(os.environ.get("WORLD_SIZE", "1")))
    for source in (run.data.source, run.data.validation):
        if source and not run.task.name:
            open_source(source)
    return _estimate(run.preset, [(run, False)], Path("runs"))


def _members(
    study: Study, board: Board, recorded: RecordedRuns, done: dict[str, planning.Done]
) -> list[Member]:
    """Return every run of a board, which is added to those that are ``done``.

    Runs that count are known once learning rates are chosen, and those of equal time once steps are
    measured; before that they are those at equal tokens, of which none is recorded.
    """
    trials = [(run, _is_recorded(n, run, recorded)) for n, run in planning.trials(board).items()]
    known, steps = all(is_done for _, is_done in trials), read_steps(board, recorded.out)
    done[board.name] = of_board = planning.plan_of(
        study, board, recorded, done, steps, is_tried=known
    )
    runs = of_board.trained()
    counting = [(run, known and _is_recorded(n, run, recorded)) for n, run in runs.items()]
    timed = steps.ratios if steps else {board.arms[0].name}
    # Those at equal tokens stand for them, and where these count too, there are so many more.
    untimed = [run for run in runs.values() if run.labels.arm not in timed]
    both = {"tokens", "time"}
    return [*trials, *counting, *((r, False) for r in untimed if both <= {*r.labels.conditions})]


def _is_recorded(name: str, run: Run, recorded: RecordedRuns) -> bool:
    folder = recorded.folder_of(name, run)
    check_usable(folder, run)
    return is_finished(run, folder)


def _estimate(board: str, members: Sequence[Member], out: Path) -> Estimate:
    runs = [run for run, _ in members]
    left = [run for run, done in members if not done]
    for name in filter(None, {unknown_size(run) for run in runs}):
        logger.warning("%s is not on this machine: its sizes are guessed, and so are costs", name)
    # What runs of the same steps cost differs by their numbers alone.
    of_step = {step_facts(run): _cost(replace(run, max_steps=1)) for run in runs}
    costs = [(of_step[step_facts(run)], run.max_steps) for run in runs]
    speeds, hours = _speeds({out, Path("runs")}) if left else {}, None
    with suppress(KeyError):
        by_step = [(step_facts(run), run.max_steps) for run in left]
        hours = sum(n * of_step[step].tokens / speeds[step] for step, n in by_step) / 3600
    trials = sum(run.seed == CHOOSING_SEED for run in runs)
    return Estimate(
        board=board,
        trials=trials,
        counting=len(members) - trials,
        recorded=len(members) - len(left),
        tokens=sum(cost.tokens * steps for cost, steps in costs),
        flops=sum(cost.flops * steps for cost, steps in costs) or None,
        hours=hours,
    )


def _cost(run: Run) -> RunCost:
    """Return what a run costs in closed form; of a model of transformers its tokens alone."""
    if run.host.model is None:
        return run_cost(run)
    return RunCost(0, run.max_steps * run.optim.batch_size * tokens_of_a_sequence(run), 0.0)


def _speeds(folders: set[Path]) -> Mapping[Any, float]:
    """Return the tokens a second of recorded runs by their steps, those of the newest of each."""
    speeds: dict[Any, float] = {}
    runs = [run for folder in folders for run in run_folders(folder)]
    for folder in sorted(runs, key=lambda each: each.config.stat().st_mtime):
        # A run of another version, or a damaged one, says nothing of speed.
        with suppress(ValueError, TypeError, OSError):
            step = step_facts(recorded_run(folder))
            rows = [row for row in folder.rows() if "tokens_per_second" in row]
            if rows:
                speeds[step] = statistics.median(row["tokens_per_second"] for row in rows)
    return speeds
