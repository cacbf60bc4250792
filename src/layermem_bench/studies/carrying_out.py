"""Carries a study out: rates are chosen, missing runs trained, and all that came of it returned.

An arm that diverged at every rate is not trained further. Runs that fail are in no mean.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from layermem_base.files import write_atomically
from layermem_bench.config.result_files import to_json
from layermem_bench.costs.model_sizes import unknown_size
from layermem_bench.studies import planning
from layermem_bench.studies.definition import Board, Study
from layermem_bench.studies.executors import Executor, Launching, executor_of
from layermem_bench.studies.gathering import RESULT, STUDIES, gather, replaced_result
from layermem_bench.studies.launching import train_missing
from layermem_bench.studies.records import RecordedRuns, add_labels
from layermem_bench.studies.result import MeasuredSteps, StudyResult
from layermem_bench.studies.steps import STEPS, measured_steps

logger = logging.getLogger(__name__)


def result_folder(study: Study, out: Path) -> Path:
    """Return where the result of a study is written."""
    return out / STUDIES / study.name


def carry_out(
    study: Study,
    out: Path,
    command: str = "",
    launcher: Executor | None = None,
) -> tuple[StudyResult, str | None]:
    """Train what is missing; return the result, and what failed (None: nothing).

    ``out``: folder of the runs, whose ended ones are found by their ids, and of the result.
    ``launcher``: None: processes here, one at once.
    """
    recorded, folder = RecordedRuns(out), result_folder(study, out)
    check_conditions(study)
    done: dict[str, planning.Done] = {}
    failures: list[str | None] = []
    for stage in planning.stages(study.boards):
        attempts: planning.Plan = {}
        steps: dict[str, MeasuredSteps] = {}
        for board in stage:
            # Before any training, as steps that cannot be compared with are refused.
            if "time" in study.conditions:
                arms = {arm.name: arm.change(board.base) for arm in board.arms}
                here = out / board.name
                steps[board.name] = measured_steps(here / STEPS, board.base, arms, here / "time")
            attempts |= planning.trials(board)
        launch = launcher or executor_of(Launching())
        if failure := train_planned(attempts, recorded, launch):
            # The choice would be without a learning rate by accident.
            raise RuntimeError(failure)
        counting: planning.Plan = {}
        for board in stage:
            done[board.name] = _plan(study, board, recorded, done, steps.get(board.name))
            counting |= done[board.name].counting
        failures.append(train_planned(counting, recorded, launch))
        for name, planned in counting.items():
            of_run = recorded.folder_of(name, planned.run)
            if of_run.final.exists():
                add_labels(of_run, planned.run.labels)
    result = gather(study, done, recorded, replaced_result(folder / RESULT), folder)
    result = replace(result, command=command)
    write_atomically(folder / RESULT, to_json(result))
    return result, "; ".join(filter(None, failures)) or None


def check_conditions(study: Study) -> None:
    """Raise where an arm cannot have what a condition asks for: before any training."""
    for board in study.boards if {*study.conditions} - {"tokens"} else ():
        if name := unknown_size(board.base):
            raise ValueError(
                f"{name} is not on this machine, and equal time and parameters depend on its size: "
                "fetch it first, as transformers.AutoTokenizer.from_pretrained does (a model: "
                "AutoModel), or leave --conditions out"
            )
        for arm in board.arms if "parameters" in study.conditions else ():
            planning.at_equal_parameters(arm.change(board.base), board.base)


def _plan(
    study: Study,
    board: Board,
    recorded: RecordedRuns,
    done: Mapping[str, planning.Done],
    steps: MeasuredSteps | None,
) -> planning.Done:
    """Return the runs that count of a board whose trials are recorded."""
    tried = planning.read_trials(board, recorded)
    choices, lost = planning.choices_of(board, tried)
    before = done[board.starts_from.name] if board.starts_from else None
    lost |= before.lost if before else frozenset()
    if len(lost) == len(board.arms):
        raise RuntimeError(
            f"every arm diverged at every learning rate on {board.name}; try lower ones"
        )
    at_tokens = planning.counting_runs(
        board, study.seeds, choices, recorded.path_of, before.choices if before else None
    )
    by_condition = {
        condition: planning.at_condition(condition, at_tokens, board, steps)
        for condition in study.conditions
    }
    return planning.Done(
        board=board,
        tried=tried,
        choices=choices,
        lost=lost,
        runs=planning.with_conditions(by_condition),
        steps=steps,
    )


def train_planned(plan: planning.Plan, recorded: RecordedRuns, launcher: Executor) -> str | None:
    """Train what is recorded nowhere; return what failed (None: nothing)."""
    runs = {name: planned.run for name, planned in plan.items()}
    own = {n: run for n, run in runs.items() if recorded.path_of(n, run) == recorded.out / n}
    if len(own) < len(runs):
        logger.info("%d of %d runs are recorded by other names", len(runs) - len(own), len(runs))
    try:
        if own:
            train_missing(own, recorded.out, launcher)
    except RuntimeError as error:
        return str(error)
    return None
