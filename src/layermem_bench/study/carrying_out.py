"""Carries a study out: rates are chosen, missing runs trained, and all that came of it returned.

An arm that diverged at every rate is not trained further, and has no values. Runs that fail or
diverge later are named in the result, and in no mean.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from layermem.models.files import write_atomically
from layermem_bench.results.files import to_json
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.results.study import MeasuredMemory, MeasuredSteps, StudyResult
from layermem_bench.study.definition import Board, Study
from layermem_bench.study.gathering import gather, replaced_result
from layermem_bench.study.launching import Launcher, LocalProcesses
from layermem_bench.study.many_runs import train_missing
from layermem_bench.study.planning import (
    Done,
    Plan,
    at_condition,
    at_equal_parameters,
    choices_of,
    counting_runs,
    read_trials,
    stages,
    trials,
)
from layermem_bench.study.records import RecordedRuns, naming_damage
from layermem_bench.study.steps import MEMORY, STEPS, measured_memory, measured_steps
from layermem_bench.train.run_config import recorded_run

logger = logging.getLogger(__name__)
RESULT = "study.json"
"""File of a result in its folder."""
# In bytes, of a folder's name on common file systems.
_LONGEST_NAME = 255
Measured = tuple[MeasuredSteps | None, MeasuredMemory | None]
"""What a step of each arm of a board takes; nothing where it was not asked for."""


def result_folder(study: Study, out: Path) -> Path:
    """Return where the result of a study is written."""
    if (length := len(os.fsencode(study.name))) > _LONGEST_NAME:
        raise ValueError(
            f"a folder's name has at most {_LONGEST_NAME} bytes, and that of the result would have "
            f"{length} ({study.name}): name fewer boards"
        )
    return out / "studies" / study.name


def carry_out(
    study: Study,
    out: Path,
    runs: Sequence[Path] = (),
    jobs: int = 1,
    command: str = "",
    *,
    launcher: Launcher | None = None,
) -> tuple[StudyResult, str | None]:
    """Train what is missing; return the result, and what failed (None: nothing).

    ``out``: folder of new runs and of the result; ``runs``: further folders whose runs are used
    where they are the same. ``launcher``: where they are trained; None: in processes here, ``jobs``
    at once.
    """
    launcher = launcher or LocalProcesses(jobs)
    recorded, file = RecordedRuns(out, runs), result_folder(study, out) / RESULT
    check_conditions(study)
    done: dict[str, Done] = {}
    failures: list[str] = []
    for stage in stages(study.boards):
        attempts: Plan = {}
        measured: dict[str, Measured] = {}
        for board in stage:
            if board.prepare is not None:
                board.prepare()
            # Before any training, as steps that cannot be compared with are refused.
            measured[board.name] = _measure(study, board, out)
            attempts |= trials(board)
        if failure := train_planned(attempts, recorded, launcher):
            # The choice would be without a learning rate by accident.
            raise RuntimeError(failure)
        counting: Plan = {}
        for board in stage:
            done[board.name] = _plan(study, board, recorded, done, measured[board.name])
            counting |= done[board.name].counting
        if failure := train_planned(counting, recorded, launcher):
            failures.append(failure)
    result = gather(study, done, recorded, replaced_result(file), file.parent)
    result = replace(result, command=command)
    write_atomically(file, to_json(result))
    return result, "; ".join(failures) or None


def check_conditions(study: Study) -> None:
    """Raise where an arm cannot have what a condition asks for: before any training."""
    wrong = []
    for board in study.boards if "parameters" in study.conditions else ():
        for arm in board.arms:
            try:
                at_equal_parameters(arm.change(board.base), board.base)
            except ValueError as error:
                wrong.append(str(error))
    if wrong:
        raise ValueError("; ".join(wrong))


def _measure(study: Study, board: Board, out: Path) -> Measured:
    if "time" not in study.conditions:
        return None, None
    arms = {arm.name: arm.change(board.base) for arm in board.arms}
    folder = out / board.name
    steps = measured_steps(folder / STEPS, board.base, arms, folder / "time")
    return steps, measured_memory(folder / MEMORY, board.base, arms)


def _plan(
    study: Study,
    board: Board,
    recorded: RecordedRuns,
    done: Mapping[str, Done],
    measured: Measured,
) -> Done:
    """Return the runs that count of a board whose trials are recorded."""
    steps, memory = measured
    tried = read_trials(board, recorded)
    choices, lost = choices_of(tried)
    before = done[board.starts_from.name] if board.starts_from else None
    lost |= before.lost if before else frozenset()
    if len(lost) == len(board.arms):
        raise RuntimeError(
            f"every arm diverged at every learning rate on {board.name}; try lower ones"
        )
    at_tokens = counting_runs(
        board, study.seeds, choices, recorded.path_of, before.choices if before else None
    )
    return Done(
        board=board,
        tried=tried,
        choices=choices,
        lost=lost,
        by_condition={
            condition: at_condition(condition, at_tokens, board, steps)
            for condition in study.conditions
        },
        steps=steps,
        memory=memory,
    )


def train_planned(plan: Plan, recorded: RecordedRuns, launcher: Launcher) -> str | None:
    """Train what is recorded nowhere; return what failed (None: nothing)."""
    if not plan:
        return None
    own = {
        name: planned.run
        for name, planned in plan.items()
        if recorded.path_of(name, planned.run) == recorded.out / name
    }
    for name in own:
        folder = RunFolder(recorded.out / name)
        if folder.config.exists():
            with naming_damage(folder):
                recorded_run(folder)
    if elsewhere := len(plan) - len(own):
        logger.info("%d of %d runs are recorded elsewhere", elsewhere, len(plan))
    try:
        train_missing(own, recorded.out, launcher)
    except RuntimeError as error:
        return str(error)
    return None
