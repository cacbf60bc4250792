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
from pathlib import Path

import torch
import yaml

from layermem.config import Run, to_dict
from layermem.experiments.watching import Watch
from layermem.runs import RunFolder, write_whole
from layermem.train.run import check_same

# Seconds between two looks at the runs.
_PAUSE = 0.5
_ERRORS = "error.txt"
logger = logging.getLogger(__name__)


def complete(
    runs: Mapping[str, Run], out: Path, jobs: int = 1, *, tolerant: bool = False
) -> dict[str, RunFolder]:
    """Bring every run to its end, each in a process and a folder of ``out`` of its own.

    Returns the folders by name. A folder that holds another run is an error before the first step.
    What another process is training is waited for. A run that fails leaves its error in
    ``error.txt`` in its folder; the others go on, and the failures are raised together at the end,
    or left out of what is returned (``tolerant``).
    """
    folders = {name: RunFolder(out / name) for name in runs}
    for name, folder in folders.items():
        if folder.rows():
            check_same(folder, runs[name])
    waiting = [name for name, folder in folders.items() if not folder.final.exists()]
    logger.info("%d of %d runs are to be done", len(waiting), len(runs))
    out.mkdir(parents=True, exist_ok=True)
    failed = _work(runs, folders, waiting, jobs)
    if failed and not tolerant:
        where = ", ".join(str(folders[name].path / _ERRORS) for name in failed)
        raise RuntimeError(f"{len(failed)} of {len(runs)} runs failed; see {where}")
    return {name: folder for name, folder in folders.items() if name not in failed}


def _work(
    runs: Mapping[str, Run], folders: Mapping[str, RunFolder], waiting: list[str], jobs: int
) -> list[str]:
    """Run what is waiting, some at once; return what failed."""
    failed = []
    watch, at_work = Watch(len(waiting)), _AtWork(runs, folders, jobs)
    with _stoppable():
        try:
            while waiting or at_work.names():
                while waiting and at_work.has_room():
                    name = waiting.pop(0)
                    watch.begin(name, runs[name].max_steps)
                    at_work.begin(name)
                time.sleep(_PAUSE)
                for name in at_work.names():
                    watch.update(name, folders[name].last())
                for name in at_work.left():
                    watch.end(name)
                    if not _ended(name, folders[name]):
                        failed.append(name)
        finally:
            watch.close()
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

    def left(self) -> list[str]:
        """Return what is under way no more; go on with what others gave up."""
        found = [name for name, (_, process) in self._here.items() if process.poll() is not None]
        for name in found:
            del self._here[name]
        for name in [name for name in self._elsewhere if not _is_taken(self.folders[name])]:
            if self.folders[name].final.exists():
                found.append(name)
            elif not self.has_room():
                continue
            else:
                self.begin(name)
            self._elsewhere.remove(name)
        return found

    def stop(self) -> None:
        """Ask the runs here to save and leave; they can be resumed."""
        for _, process in self._here.values():
            process.terminate()
        for _, process in self._here.values():
            process.wait()


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
    folder.path.mkdir(parents=True, exist_ok=True)
    config = folder.path / "asked.yaml"
    write_whole(config, yaml.safe_dump(to_dict(run), sort_keys=False))
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    with (folder.path / _ERRORS).open("wb") as log:
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


def _ended(name: str, folder: RunFolder) -> bool:
    rows = [row for row in folder.rows() if "val_loss" in row]
    if folder.final.exists() and rows:
        (folder.path / _ERRORS).unlink(missing_ok=True)
        logger.info("%s: validation loss %.4f", name, rows[-1]["val_loss"])
        return True
    logger.error("%s failed", name)
    return False
