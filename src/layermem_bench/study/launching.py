"""Trains many runs: a launcher has them trained; ended ones are left alone, begun ones resumed."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from layermem_bench.config.run import Run
from layermem_bench.results.run_folder import ERRORS, RunFolder
from layermem_bench.results.study import LOSS
from layermem_bench.study import records
from layermem_bench.study.launchers.launcher import Launcher, Work
from layermem_bench.study.launchers.run_process import is_taken
from layermem_bench.train.progress import RunsProgress

# Seconds between two looks at the runs; of very many, each takes its time on a shared file system.
_POLL_INTERVAL, _POLL_INTERVAL_PER_RUN = 0.5, 0.02
# SIGKILL, which the system sends where memory runs out; not every system has the name.
_SIGKILL = 9
logger = logging.getLogger(__name__)


def train_missing(runs: Mapping[str, Run], out: Path, launcher: Launcher) -> dict[str, RunFolder]:
    """Train every run that has not ended, each in its own folder of ``out``; return the folders.

    What cannot be carried out is an error before the first step. A run that another process
    is training is waited for. A run that fails leaves its error in ``error.txt`` in its folder; the
    others go on, and the failures are raised together at the end. A failed run is tried again the
    next time; one that diverged would do so again, and is left as it is.
    """
    work = {name: (run, RunFolder(out / name)) for name, run in runs.items()}
    for run, folder in work.values():
        records.check_usable(folder, run)
    missing = [name for name, (run, folder) in work.items() if not _is_finished(run, folder)]
    if missing:
        logger.info("%d of %d runs are to be done", len(missing), len(runs))
    else:
        logger.info("nothing is left to train: all runs are recorded")
    out.mkdir(parents=True, exist_ok=True)
    by_reason = _train_all(work, missing, launcher)
    if by_reason:
        count = sum(map(len, by_reason.values()))
        what = "; ".join(f"{', '.join(names)} {reason}" for reason, names in by_reason.items())
        where = ", ".join(str(out / names[0] / ERRORS) for names in by_reason.values())
        left = f"; {len(missing)} were not begun, as they would fail alike" if missing else ""
        raise RuntimeError(
            f"{count} of {len(runs)} runs failed: {what}; see {where}{left}. The others are kept; "
            "the same command tries what failed again"
        )
    return {name: folder for name, (_, folder) in work.items()}


def _train_all(work: Work, waiting: list[str], launcher: Launcher) -> dict[str, list[str]]:
    """Train the waiting runs, as many at once as there is room for; return which failed of what.

    After two failures of one kind no other run is begun, and those not begun stay in ``waiting``.
    """
    failed: dict[str, list[str]] = {}
    progress, active = RunsProgress(len(waiting)), _ActiveRuns(work, launcher)
    with _sigterm_raises():
        try:
            while (waiting and not _fail_alike(failed)) or active.names():
                while waiting and launcher.room() > 0 and not _fail_alike(failed):
                    names = waiting[: launcher.room()]
                    del waiting[: len(names)]
                    for name in names:
                        progress.begin(name, work[name][0].max_steps)
                    active.begin(names)
                for name in active.names():
                    progress.update(name, work[name][1].last_row())
                finished = active.collect_finished()
                if not finished:
                    many = _POLL_INTERVAL_PER_RUN * len(active.names())
                    time.sleep(max(_POLL_INTERVAL, many))
                for name, code in finished.items():
                    progress.end(name)
                    if reason := _report_end(name, *work[name], code):
                        failed.setdefault(reason, []).append(name)
                if finished and _fail_alike(failed):
                    launcher.withdraw()
        finally:
            progress.close()
            active.stop()
    return failed


def _fail_alike(failed: Mapping[str, Sequence[str]]) -> bool:
    """Whether two runs failed for one reason that their own words tell, not by a signal."""
    return any(len(names) > 1 for reason, names in failed.items() if records.OWN_WORDS in reason)


class _ActiveRuns:
    """Runs being trained: by this command's launcher, or by another command."""

    def __init__(self, work: Work, launcher: Launcher) -> None:
        self.work, self.launcher = work, launcher
        self._launched: list[str] = []
        self._of_others: list[str] = []

    def names(self) -> list[str]:
        return [*self._launched, *self._of_others]

    def begin(self, names: Sequence[str]) -> None:
        """Launch runs, but for those that another command is training: these are waited for."""
        free = []
        for name in names:
            if is_taken(self.work[name][1]):
                logger.info("%s is being trained by another process", name)
                self._of_others.append(name)
                continue
            # What an earlier attempt wrote is kept until the run has ended.
            _append_note(self.work[name][1], f"begun at {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC")
            free.append(name)
        self.launcher.launch({name: self.work[name] for name in free})
        self._launched += free

    def collect_finished(self) -> dict[str, int | None]:
        """Return runs no longer trained, with their exit codes (None: another command's).

        A run that another command left unfinished is launched here.
        """
        finished: dict[str, int | None] = {}
        for name, code in self.launcher.ended().items():
            self._launched.remove(name)
            if _is_finished(*self.work[name]) or not is_taken(self.work[name][1]):
                finished[name] = code
            else:
                # Another command was quicker to start it.
                self._of_others.append(name)
        for name in [name for name in self._of_others if not is_taken(self.work[name][1])]:
            if _is_finished(*self.work[name]):
                finished[name] = None
            elif self.launcher.room() < 1:
                continue
            else:
                self.begin([name])
            self._of_others.remove(name)
        return finished

    def stop(self) -> None:
        """Ask the runs of this command to save and end; they can be resumed."""
        self.launcher.stop()
        for name in self._launched:
            _append_note(self.work[name][1], "stopped, as this command was; it goes on with it")


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


def _is_finished(run: Run, folder: RunFolder) -> bool:
    """Return whether nothing is to be done: the run has ended, or would diverge again."""
    return folder.final.exists() or folder.divergence(run.id) is not None


def _report_end(name: str, run: Run, folder: RunFolder, code: int | None) -> str | None:
    """Log how a run ended; return how it failed, None if it did not."""
    try:
        if divergence := records.read_divergence(folder, run.id):
            logger.warning("%s diverged, %s", name, divergence)
            return None
        if folder.final.exists():
            loss = records.read_metrics(folder, run)[LOSS]
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


def _describe_exit(code: int | None) -> str:
    """Say how a process ended whose run is unfinished."""
    if not code:
        return "stopped before its last step: it was asked to"
    if code > 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    hint = "; was there too little memory?" if -code == _SIGKILL else ""
    return f"was killed by signal {-code} ({name}{hint})"


def _append_note(folder: RunFolder, text: str) -> None:
    """Add a line to what a run's processes have written."""
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        with (folder.path / ERRORS).open("a", encoding="utf-8") as log:
            log.write(f"{records.NOTE}{text}\n")
    except OSError as error:
        # A full disk must not keep the other runs from their end.
        logger.warning("%s: %s (and %s cannot be written: %s)", folder.path, text, ERRORS, error)
