"""Many runs: what has ended is left alone, what was begun goes on, several at once.

It does not know: what the runs are for.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import torch
import yaml

from layermem.config import Run, to_dict
from layermem.experiments.outcomes import LOSS, divergence, measures
from layermem.runs import RunFolder, write_atomically
from layermem.train.progress import SweepProgress
from layermem.train.run_config import check_same_run

# Seconds between two looks at the runs.
_PAUSE = 0.5
# What a run that has not ended has said, and how it ended otherwise.
ERRORS = "error.txt"
# What the system sends where memory runs out; not every system has a name for it.
_KILL = 9
logger = logging.getLogger(__name__)


def complete(
    runs: Mapping[str, Run], out: Path, jobs: int = 1, *, may_diverge: bool = False
) -> dict[str, RunFolder]:
    """Bring every run to its end, each in a process and a folder of ``out`` of its own.

    Returns the folders by name. A folder that holds another run, or has lost what it recorded, is
    an error before the first step. What another process is training is waited for. A run that
    fails leaves its error in ``error.txt`` in its folder; the others go on, and the failures are
    raised together at the end. What failed is tried again the next time; a run that diverged
    would do so again, and is left as it is: an error too, unless it ``may_diverge``.
    """
    folders = {name: RunFolder(out / name) for name in runs}
    for name, folder in folders.items():
        if folder.rows() or folder.final.exists():
            check_same_run(folder, runs[name])
        if folder.final.exists():
            measures(folder, runs[name])
    waiting = [name for name, folder in folders.items() if not _is_over(runs[name], folder)]
    logger.info("%d of %d runs are to be done", len(waiting), len(runs))
    out.mkdir(parents=True, exist_ok=True)
    failed = _work(runs, folders, waiting, jobs)
    if failed:
        what = "; ".join(f"{name} {how}" for name, how in failed.items())
        where = ", ".join(str(folders[name].path / ERRORS) for name in failed)
        raise RuntimeError(
            f"{len(failed)} of {len(runs)} runs failed: {what}; see {where}. The others are kept; "
            "the same command tries what failed again"
        )
    diverged = {name: divergence(folder, runs[name].id) for name, folder in folders.items()}
    said = [f"{name}: {noted['message']}" for name, noted in diverged.items() if noted]
    if said and not may_diverge:
        raise RuntimeError(f"{len(said)} of {len(runs)} runs diverged: {'; '.join(said)}")
    return folders


def _work(
    runs: Mapping[str, Run], folders: Mapping[str, RunFolder], waiting: list[str], jobs: int
) -> dict[str, str]:
    """Run what is waiting, some at once; return what failed, and how."""
    failed: dict[str, str] = {}
    progress, at_work = SweepProgress(len(waiting)), _AtWork(runs, folders, jobs)
    with _stoppable():
        try:
            while waiting or at_work.names():
                while waiting and at_work.has_room():
                    name = waiting.pop(0)
                    progress.begin(name, runs[name].max_steps)
                    at_work.begin(name)
                time.sleep(_PAUSE)
                for name in at_work.names():
                    progress.update(name, folders[name].last_row())
                for name, code in at_work.left().items():
                    progress.end(name)
                    if how := _failure(name, runs[name], folders[name], code):
                        failed[name] = how
        finally:
            progress.close()
            at_work.stop()
    return failed


class _AtWork:
    """Runs under way: here, each in a process of its own, or in the hands of another command."""

    def __init__(
        self, runs: Mapping[str, Run], folders: Mapping[str, RunFolder], jobs: int
    ) -> None:
        self.runs, self.folders, self.jobs = runs, folders, jobs
        self._here: dict[str, tuple[int, subprocess.Popen[bytes]]] = {}
        self._elsewhere: list[str] = []

    def names(self) -> list[str]:
        return [*self._here, *self._elsewhere]

    def has_room(self) -> bool:
        return len(self._here) < self.jobs

    def begin(self, name: str) -> None:
        """Start a run, or wait for who has it."""
        if _is_taken(self.folders[name]):
            logger.info("%s is being trained by another process", name)
            self._elsewhere.append(name)
            return
        slot = min(set(range(self.jobs)) - {slot for slot, _ in self._here.values()})
        process = _start(self.runs[name], self.folders[name], self.jobs, slot)
        self._here[name] = slot, process

    def left(self) -> dict[str, int | None]:
        """Return what is under way no more, with its exit code (None: it ran elsewhere).

        What others gave up is gone on with.
        """
        codes = {name: process.poll() for name, (_, process) in self._here.items()}
        found = {name: code for name, code in codes.items() if code is not None}
        for name in found:
            del self._here[name]
        for name in [name for name in found if not self._is_over(name)]:
            if _is_taken(self.folders[name]):
                # Another command was quicker to begin it.
                del found[name]
                self._elsewhere.append(name)
        over: dict[str, int | None] = dict(found)
        for name in [name for name in self._elsewhere if not _is_taken(self.folders[name])]:
            if self._is_over(name):
                over[name] = None
            elif not self.has_room():
                continue
            else:
                self.begin(name)
            self._elsewhere.remove(name)
        return over

    def stop(self) -> None:
        """Ask the runs here to save and leave; they can be resumed."""
        for _, process in self._here.values():
            process.terminate()
        for name, (_, process) in self._here.items():
            process.wait()
            _note(self.folders[name], "stopped, as this command was; it goes on with it")

    def _is_over(self, name: str) -> bool:
        return _is_over(self.runs[name], self.folders[name])


@contextmanager
def _stoppable() -> Iterator[None]:
    """Have SIGTERM leave by way of ``finally``, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _is_taken(folder: RunFolder) -> bool:
    """Whether another process is training there."""
    if not folder.path.exists():
        return False
    try:
        with folder.locked():
            return False
    except RuntimeError:
        return True


def _start(run: Run, folder: RunFolder, jobs: int, slot: int) -> subprocess.Popen[bytes]:
    config = folder.path / "asked.yaml"
    write_atomically(config, yaml.safe_dump(to_dict(run), sort_keys=False))
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    # What an attempt before left is kept until the run has ended.
    _note(folder, f"begun at {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC")
    with (folder.path / ERRORS).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "layermem", "train", "--config", str(config)]
            + ["--out", str(folder.path), "--resume"],
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={"OMP_NUM_THREADS": threads, **os.environ, **_device(slot)},
            # Ctrl-C is for this process, which then asks its runs to stop.
            start_new_session=True,
        )


def _device(slot: int) -> dict[str, str]:
    """Return what gives a run one of several GPUs: they take turns."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    return {"CUDA_VISIBLE_DEVICES": devices[slot % len(devices)]} if len(devices) > 1 else {}


def _is_over(run: Run, folder: RunFolder) -> bool:
    """Whether there is nothing to be done: it has ended, or would diverge again."""
    return folder.final.exists() or folder.divergence(run.id) is not None


def _failure(name: str, run: Run, folder: RunFolder, code: int | None) -> str | None:
    """Say what became of a run; return how it failed, None if it did not."""
    try:
        noted = divergence(folder, run.id)
        loss = measures(folder, run)[LOSS] if folder.final.exists() and not noted else None
    except (ValueError, KeyError, TypeError) as error:
        how = f"left what cannot be read ({error})"
    else:
        if noted:
            logger.warning("%s diverged at step %d: %s", name, noted["step"], noted["message"])
            return None
        if loss is not None:
            (folder.path / ERRORS).unlink(missing_ok=True)
            logger.info("%s: validation loss %.4f", name, loss)
            return None
        how = _how_it_ended(code)
    _note(folder, how)
    logger.error("%s %s", name, how)
    return how


def _how_it_ended(code: int | None) -> str:
    """Say how a process ended that did not bring its run to the end."""
    if code is None or code == 0:
        return "stopped before its last step: it was asked to"
    if code > 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    perhaps = "; was there too little memory?" if -code == _KILL else ""
    return f"was killed by signal {-code} ({name}{perhaps})"


def _note(folder: RunFolder, text: str) -> None:
    """Add a line of ours to what a run's processes have written."""
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        with (folder.path / ERRORS).open("a", encoding="utf-8") as log:
            log.write(f"-- sweep: {text}\n")
    except OSError as error:
        # A full disk must not keep the other runs from their end.
        logger.warning("%s: %s (and %s cannot be written: %s)", folder.path, text, ERRORS, error)
