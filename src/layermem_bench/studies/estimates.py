"""What a study would train: runs, tokens, FLOPs, and hours if recorded runs say how fast it goes.

Hours are tokens divided by the tokens a second of recorded runs of the same shape.
"""

import logging
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import Any

from layermem.models.registry import lookup
from layermem_bench.config.computing import sequences_at_once
from layermem_bench.config.run import Run
from layermem_bench.costs.closed_forms import RunCost, run_cost
from layermem_bench.costs.model_sizes import model_sizes, unknown_size
from layermem_bench.run.folder import RunFolder, recorded_run
from layermem_bench.studies import planning
from layermem_bench.studies.carrying_out import check_conditions
from layermem_bench.studies.definition import CHOOSING_SEED, Study
from layermem_bench.studies.records import RecordedRuns, check_usable, read_record
from layermem_bench.studies.result import RunRecord
from layermem_bench.studies.steps import read_steps, step_facts, tokens_of_a_sequence
from layermem_bench.text.sources import open_source

logger = logging.getLogger(__name__)
# Where runs lie in a folder of runs: each by itself, or in its board's folder.
_PLACES = ("*/config.yaml", "*/*/config.yaml")
Planned = dict[str, tuple[Run, RunRecord | None]]
"""Name to planned run, and where it stands; None: it is not known yet which run it is."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the runs of one board would take: those that choose learning rates (trials), and those
    that count."""

    board: str
    trials: int
    counting: int
    recorded: int
    """Those of all that need not be run."""
    failed: int
    """Those whose last attempt failed."""
    parameters: int | None
    """Trainable parameters of the largest model; None: of models of transformers."""
    tokens: float
    flops: float | None
    """In closed form; None: of models of transformers."""
    hours: float | None
    """Hours of the runs that are still to come; None: no recorded runs say how fast they are."""


def is_recorded(state: RunRecord | None) -> bool:
    """Return whether a run need not be trained."""
    return state is not None and state.state in ("ended", "diverged")


def planned_states(study: Study, recorded: RecordedRuns) -> Planned:
    """Return every planned run and where it stands; what carrying out would refuse is refused.

    Runs that count are known once learning rates are chosen, and those of equal time once steps are
    measured; before that they are those at equal tokens, of which none is recorded.
    """
    planned: Planned = {}
    choices: dict[str, planning.Choices] = {}
    for board in chain.from_iterable(planning.stages(study.boards)):
        trials = planning.trials(board)
        tried = {name: (each, _state(name, each, recorded)) for name, each in trials.items()}
        planned |= tried
        choices[board.name], lost = {}, frozenset[str]()
        if all(is_recorded(state) for _, state in tried.values()):
            _, choices[board.name], lost = planning.choose(board, recorded)
        known = not trials or bool(choices[board.name])
        before = choices[board.starts_from.name] if board.starts_from else None
        runs = planning.counting_runs(
            board, study.seeds, choices[board.name], recorded.path_of, before
        )
        measured = read_steps(board, recorded.out)
        timed = measured.ratios if measured else {board.arms[0].name}
        runs = {name: each for name, each in runs.items() if each.labels.arm not in lost}
        for condition, (name, run) in product(study.conditions, runs.items()):
            if condition == "time" and run.labels.arm not in timed:
                planned[f"{name} ({condition})"] = run, None
                continue
            at_condition = planning.at_conditions([condition], {name: run}, board, measured)
            # A run that a condition does not change is one with that at equal tokens.
            for key, each in at_condition.items():
                planned[key] = each, _state(key, each, recorded) if known else None
    return planned


def _state(name: str, run: Run, recorded: RecordedRuns) -> RunRecord:
    """Return where a run stands."""
    folder = recorded.folder_of(name, run)
    check_usable(folder, run)
    return read_record(name, run, folder)


def estimate(study: Study, out: Path) -> list[Estimate]:
    """Return what each board would take; what carrying the study out would refuse is refused."""
    check_conditions(study)
    planned = planned_states(study, RecordedRuns(out)).values()
    return [
        _estimate(
            board.name, [each for each in planned if each[0].labels.board == board.name], [out]
        )
        for board in chain.from_iterable(planning.stages(study.boards))
    ]


def estimate_run(run: Run, folders: Sequence[Path] = (Path("runs"),)) -> Estimate:
    """Return what one run would take. What training it would refuse is refused, as far as nothing
    has to be prepared or fetched for it."""
    sequences_at_once(run, int(os.environ.get("WORLD_SIZE", "1")))
    for source in (run.data.source, run.data.validation):
        if source and not run.task.name:
            open_source(source)
    return _estimate(run.preset, [(run, None)], folders)


def _estimate(
    board: str,
    members: Sequence[tuple[Run, RunRecord | None]],
    folders: Sequence[Path],
) -> Estimate:
    runs = [run for run, _ in members]
    missing = [run for run, state in members if not is_recorded(state)]
    for name in filter(None, {unknown_size(run) for run in runs}):
        logger.warning("%s is not on this machine: its sizes are guessed, and so are costs", name)
    # What runs of one shape cost differs by their numbers of steps alone.
    of_step = {step_facts(run): _cost(replace(run, max_steps=1)) for run in runs}
    speeds = _speeds({step_facts(run) for run in missing}, {*folders, Path("runs")})
    hours = None
    if all(step_facts(run) in speeds for run in missing):
        shapes = [(step_facts(run), run.max_steps) for run in missing]
        seconds = [steps * of_step[shape].tokens / speeds[shape] for shape, steps in shapes]
        hours = sum(seconds) / 3600
    of_ours = all(run.host.model is None for run in runs)
    trials = sum(run.seed == CHOOSING_SEED for run in runs)
    return Estimate(
        board=board,
        trials=trials,
        counting=len(members) - trials,
        recorded=len(members) - len(missing),
        failed=sum(state is not None and state.state == "failed" for _, state in members),
        parameters=max(each.parameters for each in of_step.values()) if of_ours else None,
        tokens=sum(of_step[step_facts(run)].tokens * run.max_steps for run in runs),
        flops=sum(of_step[step_facts(run)].flops * run.max_steps for run in runs)
        if of_ours
        else None,
        hours=hours,
    )


def _cost(run: Run) -> RunCost:
    """Return what a run costs in closed form; of a model of transformers its tokens alone."""
    if run.host.model is not None:
        sequences = run.max_steps * run.optim.batch_size
        return RunCost(parameters=0, tokens=sequences * tokens_of_a_sequence(run), flops=0.0)
    fields, _ = model_sizes(run)
    entry = lookup(run.variant)
    return run_cost(run, entry.config(**fields | run.model.variant_fields()), entry.variant)


def _speeds(shapes: set[Any], folders: Iterable[Path]) -> Mapping[Any, float]:
    """Return the tokens a second of recorded runs of these shapes, those of the newest of each."""
    speeds: dict[Any, float] = {}
    files = [file for folder in folders for place in _PLACES for file in folder.glob(place)]
    for file in sorted(files, key=lambda file: file.stat().st_mtime) if shapes else ():
        folder = RunFolder(file.parent)
        try:
            shape = step_facts(recorded_run(folder))
            rows = folder.rows() if shape in shapes else []
        except (ValueError, TypeError, OSError):
            # A run of another version, or a damaged one, says nothing of speed.
            continue
        if of_run := [row["tokens_per_second"] for row in rows if "tokens_per_second" in row]:
            speeds[shape] = statistics.median(of_run)
    return speeds
