"""Carries a study out: rates are chosen, missing runs trained, and all that came of it returned.

An executor has the runs trained; ended ones are left alone, begun ones resumed. An arm that
diverged at every rate is not trained further. Runs that fail are in no mean.
"""

import logging
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from layermem_base.files import write_atomically
from layermem_bench.config.run import Run
from layermem_bench.config.typed_dicts import read_result, to_json
from layermem_bench.costs.model_sizes import unknown_size
from layermem_bench.run.folder import ERRORS, RunFolder
from layermem_bench.run.progress import RunsProgress
from layermem_bench.studies import planning, records
from layermem_bench.studies.definition import Study
from layermem_bench.studies.executors import (
    Executor,
    Launching,
    command_of,
    executor_of,
    is_taken,
)
from layermem_bench.studies.gathering import RESULT, STUDIES, gather
from layermem_bench.studies.records import RecordedRuns, add_labels, is_finished
from layermem_bench.studies.result import LOSS, Planned, StudyResult
from layermem_bench.studies.steps import measured_steps

PLAN = "plan.json"
"""File of a study's plan, beside its result."""
# Seconds between two looks at the runs; of very many, each takes its time on a shared file system.
_POLL_INTERVAL, _POLL_INTERVAL_PER_RUN = 0.5, 0.02
logger = logging.getLogger(__name__)


def result_folder(study: Study, out: Path) -> Path:
    """Return where the result of a study is written."""
    return out / STUDIES / study.name


def carry_out(
    study: Study, out: Path, command: str = "", launcher: Executor | None = None
) -> tuple[StudyResult, str | None]:
    """Train what is missing; return the result, and what failed (None: nothing).

    ``out``: folder of the runs, whose ended ones are found by their ids, and of the result.
    ``launcher``: None: processes here, one at once.
    """
    recorded, folder = RecordedRuns(out), result_folder(study, out)
    launch = launcher or executor_of(Launching())
    check_conditions(study)
    done: dict[str, planning.Done] = {}
    failures: list[str] = []
    is_read, untested, plan = False, "", folder / PLAN
    for stage in planning.stages(study.boards):
        # Before any training, as steps that cannot be compared with are refused.
        timed = stage if "time" in study.conditions else ()
        steps = {board.name: measured_steps(board, out) for board in timed}
        attempts = {n: run for board in stage for n, run in planning.trials(board).items()}
        # Where one fails, the choice would be without a learning rate by accident.
        train_missing(_unrecorded(attempts, recorded), out, launch)
        counting: planning.Plan = {}
        for board in stage:
            done[board.name] = of_board = planning.plan_of(
                study, board, recorded, done, steps.get(board.name)
            )
            if len(of_board.lost) == len(board.arms):
                raise RuntimeError(
                    f"every arm diverged at every learning rate on {board.name}; try lower ones"
                )
            counting |= of_board.trained()
        is_read |= any(map(recorded.has_ended, counting.values()))
        planned = _planned(plan, study, is_read=is_read)
        write_atomically(plan, to_json(planned))
        untested = planned.untested
        try:
            train_missing(_unrecorded(counting, recorded), out, launch)
        except RuntimeError as error:
            failures.append(str(error))
        for name, run in counting.items():
            of_run = recorded.folder_of(name, run)
            if of_run.final.exists():
                add_labels(of_run, run.labels)
    result = gather(study, done, recorded, folder)
    result = replace(result, command=command, untested=untested)
    write_atomically(folder / RESULT, to_json(result))
    return result, "; ".join(failures) or None


def _planned(path: Path, study: Study, *, is_read: bool) -> Planned:
    """Return the plan of a study. One that changed after some of its runs had ended tests nothing:
    to go on until a difference is found finds one that is not there.

    ``path``: the file of the plan before; ``is_read``: whether runs of this plan had ended.
    """
    arms = tuple(f"{board.name}/{arm.name}" for board in study.boards for arm in board.arms)
    now = Planned(seeds=study.seeds, arms=arms, questions=study.questions)
    if not path.exists():
        return now
    before = read_result(Planned, path)
    changed = {
        "seeds": {*before.seeds} != {*now.seeds},
        "questions": {*before.questions} != {*now.questions},
        # With others, which nobody has read, it is another comparison.
        "arms": {*now.arms} < {*before.arms},
    }
    if is_read and any(changed.values()):
        what = " and ".join(name for name, is_other in changed.items() if is_other)
        return replace(now, untested=f"its {what} were changed after runs had ended")
    return replace(now, untested=before.untested if is_read else "")


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


def _unrecorded(plan: planning.Plan, recorded: RecordedRuns) -> planning.Plan:
    """Return the runs that are recorded nowhere, or under their own names."""
    return {n: run for n, run in plan.items() if recorded.path_of(n, run) == recorded.out / n}


def train_missing(runs: Mapping[str, Run], out: Path, executor: Executor) -> None:
    """Train every run that has not ended, each in its own folder of ``out``.

    A folder that holds another run is an error before the first step. A run that another process
    is training is waited for. A run that fails leaves its error in ``error.txt`` in its folder; the
    others go on, and the failures are raised together at the end. A failed run is tried again the
    next time; one that diverged would do so again, and is left as it is.
    """
    work = {name: (run, RunFolder(out / name)) for name, run in runs.items()}
    for run, folder in work.values():
        records.check_usable(folder, run)
    missing = [name for name in work if not is_finished(*work[name])]
    logger.info("%d of %d runs are to be done", len(missing), len(runs))
    failed = _train_all(work, missing, executor)
    if failed:
        what = "; ".join(f"{name} {reason}" for name, reason in failed.items())
        left = f"; {len(missing)} were not begun, as the first two failed" if missing else ""
        raise RuntimeError(
            f"{len(failed)} of {len(runs)} runs failed: {what}; see "
            f"{out / next(iter(failed)) / ERRORS}{left}. The others are kept; the same command "
            "tries what failed again"
        )


def _train_all(
    work: Mapping[str, tuple[Run, RunFolder]], waiting: list[str], executor: Executor
) -> dict[str, str]:
    """Train the waiting runs, as many at once as there is room for; return which failed, and how.

    Where the first two runs fail, no other is begun: those stay in ``waiting``.
    """
    failed: dict[str, str] = {}
    active: list[str] = []
    count, progress = 0, RunsProgress(len(waiting))
    # So that what follows ``finally`` runs, as at Ctrl-C.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        while active or (waiting and (count or len(failed) < 2)):
            untaken = (name for name in waiting if not is_taken(work[name][1].path))
            free = list(islice(untaken, executor.room()))
            for name in free:
                waiting.remove(name)
                active.append(name)
                progress.begin(name, work[name][0].max_steps)
            # What another command was training may have ended meanwhile.
            codes = {name: 0 for name in free if is_finished(*work[name])}
            begun = [name for name in free if name not in codes]
            for name in begun:
                _append_note(work[name][1], f"begun at {datetime.now(UTC):%F %T} UTC")
            executor.start({name: command_of(*work[name], executor.asked) for name in begun})
            codes |= executor.ended()
            for name, code in codes.items():
                active.remove(name)
                progress.end(name)
                run, folder = work[name]
                if not is_finished(run, folder) and is_taken(folder.path):
                    # Another command was quicker, or its worker died and its process lives.
                    waiting.append(name)
                elif reason := _report_end(name, run, folder, code):
                    failed[name] = reason
                else:
                    count += 1
            for name in active:
                progress.update(name, work[name][1].last_row())
            if not codes and (active or waiting):
                time.sleep(max(_POLL_INTERVAL, _POLL_INTERVAL_PER_RUN * len(active)))
    finally:
        progress.close()
        executor.stop()
        signal.signal(signal.SIGTERM, before)
    return failed


def _report_end(name: str, run: Run, folder: RunFolder, code: int) -> str | None:
    """Log how a run ended; return how it failed, None if it did not."""
    record = records.read_record(name, run, folder)
    if record.state == "diverged":
        logger.warning("%s diverged, %s", name, record.note)
        return None
    if record.state == "ended":
        (folder.path / ERRORS).unlink(missing_ok=True)
        logger.info("%s: validation loss %.4f", name, record.metrics[LOSS])
        return None
    if code < 0:
        hint = "; was there too little memory?" if code == -signal.SIGKILL else ""
        how = f"was killed by signal {-code}{hint}"
    else:
        how = f"ended with exit code {code}" if code else "stopped before its last step"
    _append_note(folder, how)
    reason = records.read_record(name, run, folder).note or how
    logger.error("%s %s", name, reason)
    return reason


def _append_note(folder: RunFolder, text: str) -> None:
    """Add a line to what a run's processes have written."""
    folder.path.mkdir(parents=True, exist_ok=True)
    with (folder.path / ERRORS).open("a", encoding="utf-8") as log:
        log.write(f"{records.NOTE}{text}\n")
