"""Trains many runs, several at once: ended runs are left alone, begun ones are resumed."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from layermem.models.files import create_folder
from layermem_bench.config.run import Run
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.results.study import LOSS
from layermem_bench.study.launching import Launcher
from layermem_bench.study.records import (
    ERRORS,
    NOTE,
    OWN_WORDS,
    check_usable,
    read_divergence,
    read_failure,
    read_metrics,
    recorded_about,
)
from layermem_bench.train.progress import RunsProgress
from layermem_bench.train.sequences import weights_digest

# Seconds between two looks at the runs.
_POLL_INTERVAL = 0.5
# SIGKILL, which the system sends where memory runs out; not every system has the name.
_SIGKILL = 9
logger = logging.getLogger(__name__)


def train_missing(runs: Mapping[str, Run], out: Path, launcher: Launcher) -> dict[str, RunFolder]:
    """Train every run that has not ended, each in its own folder of ``out``.

    Returns the folders by name. A folder that holds another run, or has lost what it recorded, is
    an error before the first step, and so is a saved model to start from whose weights are not
    those that the ended runs began with. A run that another process is training is waited for. A
    run that fails leaves its error in ``error.txt`` in its folder; the others go on, and the
    failures are raised together at the end. A failed run is tried again the next time; one that
    diverged would do so again, and is left as it is.
    """
    folders = {name: RunFolder(out / name) for name in runs}
    for name, folder in folders.items():
        check_usable(folder, runs[name])
    missing = [name for name, folder in folders.items() if not _is_finished(runs[name], folder)]
    _check_starts(runs, folders, missing)
    if missing:
        logger.info("%d of %d runs are to be done", len(missing), len(runs))
    else:
        logger.info("nothing is left to train: all runs are recorded")
    create_folder(out)
    failed = _train_all(runs, folders, missing, launcher)
    if failed:
        by_reason: dict[str, list[str]] = {}
        for name, reason in failed.items():
            by_reason.setdefault(reason, []).append(name)
        what = "; ".join(f"{', '.join(names)} {reason}" for reason, names in by_reason.items())
        where = ", ".join(str(folders[names[0]].path / ERRORS) for names in by_reason.values())
        left = f"; {len(missing)} were not begun, as they would fail alike" if missing else ""
        raise RuntimeError(
            f"{len(failed)} of {len(runs)} runs failed: {what}; see {where}{left}. The others are "
            "kept; the same command tries what failed again"
        )
    return folders


def _check_starts(
    runs: Mapping[str, Run], folders: Mapping[str, RunFolder], missing: Sequence[str]
) -> None:
    """Raise if missing runs would start from other weights than ended ones did, by one name.

    They could not be compared once they were trained.
    """
    starts = {runs[name].model.pretrained or runs[name].host.model for name in missing} - {None}
    for start in starts:
        now = weights_digest(start)
        for name, folder in folders.items():
            if start not in (runs[name].model.pretrained, runs[name].host.model):
                continue
            then = recorded_about(folder).get("weights") if folder.final.exists() else None
            if now and then and now != then:
                raise ValueError(
                    f"{folder.path} began with other weights of {start} ({then}) than lie there "
                    f"now ({now}), so that runs trained now could not be compared with it; put "
                    "those weights back, or train all runs again in another --out"
                )


def _train_all(
    runs: Mapping[str, Run],
    folders: Mapping[str, RunFolder],
    waiting: list[str],
    launcher: Launcher,
) -> dict[str, str]:
    """Train the waiting runs, as many at once as there is room for; return which failed, and how.

    After two failures of one kind no other run is begun, and those not begun stay in ``waiting``.
    """
    failed: dict[str, str] = {}
    progress, active = RunsProgress(len(waiting)), _ActiveRuns(runs, folders, launcher)
    with _sigterm_raises():
        try:
            while (waiting and not _fail_alike(failed)) or active.names():
                while waiting and launcher.room() > 0 and not _fail_alike(failed):
                    names = waiting[: launcher.room()]
                    del waiting[: len(names)]
                    for name in names:
                        progress.begin(name, runs[name].max_steps)
                    active.begin(names)
                for name in active.names():
                    progress.update(name, folders[name].last_row())
                finished = active.collect_finished()
                if not finished:
                    time.sleep(_POLL_INTERVAL)
                for name, code in finished.items():
                    progress.end(name)
                    if reason := _report_end(name, runs[name], folders[name], code):
                        failed[name] = reason
        finally:
            progress.close()
            active.stop()
    return failed


def _fail_alike(failed: Mapping[str, str]) -> bool:
    """Whether two runs failed for one reason that their own words tell, not by a signal."""
    reasons = [reason for reason in failed.values() if OWN_WORDS in reason]
    return len(set(reasons)) < len(reasons)


class _ActiveRuns:
    """Runs being trained: by this command's launcher, or by another command."""

    def __init__(
        self, runs: Mapping[str, Run], folders: Mapping[str, RunFolder], launcher: Launcher
    ) -> None:
        self.runs, self.folders, self.launcher = runs, folders, launcher
        self._launched: list[str] = []
        self._of_others: list[str] = []

    def names(self) -> list[str]:
        return [*self._launched, *self._of_others]

    def begin(self, names: Sequence[str]) -> None:
        """Launch runs, but for those that another command is training: these are waited for."""
        free = []
        for name in names:
            if _is_taken(self.folders[name]):
                logger.info("%s is being trained by another process", name)
                self._of_others.append(name)
                continue
            # What an earlier attempt wrote is kept until the run has ended.
            _append_note(self.folders[name], f"begun at {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC")
            free.append(name)
        self.launcher.launch({name: (self.runs[name], self.folders[name]) for name in free})
        self._launched += free

    def collect_finished(self) -> dict[str, int | None]:
        """Return runs no longer trained, with their exit codes (None: another command's).

        A run that another command left unfinished is launched here.
        """
        ended = self.launcher.ended()
        for name in ended:
            self._launched.remove(name)
        for name in [name for name in ended if not self._is_finished(name)]:
            if _is_taken(self.folders[name]):
                # Another command was quicker to start it.
                del ended[name]
                self._of_others.append(name)
        finished: dict[str, int | None] = dict(ended)
        for name in [name for name in self._of_others if not _is_taken(self.folders[name])]:
            if self._is_finished(name):
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
            _append_note(self.folders[name], "stopped, as this command was; it goes on with it")

    def _is_finished(self, name: str) -> bool:
        return _is_finished(self.runs[name], self.folders[name])


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


def _is_taken(folder: RunFolder) -> bool:
    """Return whether another process is training in the folder."""
    if not folder.path.exists():
        return False
    try:
        with folder.locked():
            return False
    except RuntimeError:
        return True


def _is_finished(run: Run, folder: RunFolder) -> bool:
    """Return whether nothing is to be done: the run has ended, or would diverge again."""
    return folder.final.exists() or folder.divergence(run.id) is not None


def _report_end(name: str, run: Run, folder: RunFolder, code: int | None) -> str | None:
    """Log how a run ended; return how it failed, None if it did not."""
    try:
        divergence = read_divergence(folder, run.id)
        has_metrics = folder.final.exists() and not divergence
        loss = read_metrics(folder, run)[LOSS] if has_metrics else None
    except (ValueError, KeyError, TypeError) as error:
        reason = f"left what cannot be read ({error})"
    else:
        if divergence:
            logger.warning("%s diverged, %s", name, divergence)
            return None
        if loss is not None:
            (folder.path / ERRORS).unlink(missing_ok=True)
            logger.info("%s: validation loss %.4f", name, loss)
            return None
        reason = _describe_exit(code)
    _append_note(folder, reason)
    reason = read_failure(folder) or reason
    logger.error("%s %s", name, reason)
    return reason


def _describe_exit(code: int | None) -> str:
    """Say how a process ended whose run is unfinished."""
    if code is None or code == 0:
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
            log.write(f"{NOTE}{text}\n")
    except OSError as error:
        # A full disk must not keep the other runs from their end.
        logger.warning("%s: %s (and %s cannot be written: %s)", folder.path, text, ERRORS, error)
