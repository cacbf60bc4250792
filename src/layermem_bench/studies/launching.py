"""Trains many runs: an executor has them trained; ended ones are left alone, begun ones resumed."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from layermem_bench.config.run import Run
from layermem_bench.run.folder import ERRORS, RunFolder
from layermem_bench.run.progress import RunsProgress
from layermem_bench.studies import records
from layermem_bench.studies.executors import Command, Executor, command_of, is_taken
from layermem_bench.studies.records import is_finished
from layermem_bench.studies.result import LOSS

# Seconds between two looks at the runs; of very many, each takes its time on a shared file system.
_POLL_INTERVAL, _POLL_INTERVAL_PER_RUN = 0.5, 0.02
logger = logging.getLogger(__name__)
Work: TypeAlias = Mapping[str, tuple[Run, RunFolder]]
"""Runs by name, each with its folder."""


def train_missing(runs: Mapping[str, Run], out: Path, launcher: Executor) -> dict[str, RunFolder]:
    """Train every run that has not ended, each in its own folder of ``out``; return the folders.

    A folder that holds another run is an error before the first step. A run that another process
    is training is waited for. A run that fails leaves its error in ``error.txt`` in its folder; the
    others go on, and the failures are raised together at the end. A failed run is tried again the
    next time; one that diverged would do so again, and is left as it is.
    """
    work = {name: (run, RunFolder(out / name)) for name, run in runs.items()}
    for run, folder in work.values():
        records.check_usable(folder, run)
    missing = [name for name in work if not is_finished(*work[name])]
    if missing:
        logger.info("%d of %d runs are to be done", len(missing), len(runs))
    else:
        logger.info("nothing is left to train: all runs are recorded")
    out.mkdir(parents=True, exist_ok=True)
    failed = _train_all(work, missing, launcher)
    if failed:
        what = "; ".join(f"{name} {reason}" for name, reason in failed.items())
        left = f"; {len(missing)} were not begun, as the first two failed" if missing else ""
        raise RuntimeError(
            f"{len(failed)} of {len(runs)} runs failed: {what}; see "
            f"{out / next(iter(failed)) / ERRORS}{left}. The others are kept; the same command "
            "tries what failed again"
        )
    return {name: folder for name, (_, folder) in work.items()}


def _train_all(work: Work, waiting: list[str], executor: Executor) -> dict[str, str]:
    """Train the waiting runs, as many at once as there is room for; return which failed, and how.

    Where the first two runs fail, no other is begun: those stay in ``waiting``.
    """
    failed: dict[str, str] = {}
    active: list[str] = []
    count, progress = 0, RunsProgress(len(waiting))
    with _sigterm_raises():
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
                executor.start({name: _begin(*work[name], executor) for name in begun})
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
            for name in active:
                _append_note(work[name][1], "stopped, as this command was; it goes on with it")
    return failed


def _begin(run: Run, folder: RunFolder, executor: Executor) -> Command:
    """Note that a run begins; return its command."""
    _append_note(folder, f"begun at {datetime.now(UTC):%F %T} UTC")
    return command_of(run, folder, executor.asked)


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that ``finally`` blocks run, as at Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _report_end(name: str, run: Run, folder: RunFolder, code: int) -> str | None:
    """Log how a run ended; return how it failed, None if it did not."""
    try:
        if divergence := records.read_divergence(folder, run.id):
            logger.warning("%s diverged, %s", name, divergence)
            return None
        if folder.final.exists():
            loss = records.read_record(name, run, folder).metrics[LOSS]
            (folder.path / ERRORS).unlink(missing_ok=True)
            logger.info("%s: validation loss %.4f", name, loss)
            return None
        reason = _describe_exit(code)
    except (ValueError, KeyError, TypeError) as error:
        reason = f"left what cannot be read ({error})"
    _append_note(folder, reason)
    reason = records.read_failure(folder) or reason
    logger.error("%s %s", name, reason)
    return reason


def _describe_exit(code: int) -> str:
    """Say how a process ended whose run is unfinished."""
    if not code:
        return "stopped before its last step: it was asked to"
    if code > 0:
        return f"ended with exit code {code}"
    hint = "; was there too little memory?" if code == -9 else ""
    return f"was killed by signal {-code}{hint}"


def _append_note(folder: RunFolder, text: str) -> None:
    """Add a line to what a run's processes have written."""
    # A full disk must not keep the other runs from their end.
    with suppress(OSError):
        folder.path.mkdir(parents=True, exist_ok=True)
        with (folder.path / ERRORS).open("a", encoding="utf-8") as log:
            log.write(f"{records.NOTE}{text}\n")
