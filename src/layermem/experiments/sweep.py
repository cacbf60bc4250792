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
from collections.abc import Mapping
from pathlib import Path

import yaml

from layermem.config import Run, to_dict
from layermem.experiments.watching import Watch
from layermem.runs import RunFolder, write_whole

# Seconds between two looks at the runs.
_PAUSE = 0.5
logger = logging.getLogger(__name__)


def complete(runs: Mapping[str, Run], out: Path, jobs: int = 1) -> dict[str, RunFolder]:
    """Bring every run to its end, each in a process and a folder of ``out`` of its own.

    Returns the folders by name. A run that fails leaves its error in ``error.txt`` in its folder;
    the others go on, and the failures are raised together at the end.
    """
    folders = {name: RunFolder(out / name) for name in runs}
    waiting = [name for name, folder in folders.items() if not folder.final.exists()]
    logger.info("%d of %d runs are to be done", len(waiting), len(runs))
    out.mkdir(parents=True, exist_ok=True)
    busy: dict[str, subprocess.Popen[bytes]] = {}
    failed: list[str] = []
    # A sweep that is asked to stop must stop its runs.
    watch = Watch(len(waiting))
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)) if in_main else None
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                name = waiting.pop(0)
                busy[name] = _start(runs[name], folders[name], jobs)
                watch.begin(name, runs[name].max_steps)
            time.sleep(_PAUSE)
            for name, process in list(busy.items()):
                watch.update(name, folders[name].last())
                if process.poll() is not None:
                    del busy[name]
                    watch.end(name)
                    if not _ended(name, folders[name]):
                        failed.append(name)
    finally:
        watch.close()
        # Asked to stop, they save and can be resumed.
        for process in busy.values():
            process.terminate()
        for process in busy.values():
            process.wait()
        if in_main:
            signal.signal(signal.SIGTERM, before)
    if failed:
        where = ", ".join(str(folders[name].path / "error.txt") for name in failed)
        raise RuntimeError(f"{len(failed)} runs failed; see {where}")
    return folders


def _start(run: Run, folder: RunFolder, jobs: int) -> subprocess.Popen[bytes]:
    folder.path.mkdir(parents=True, exist_ok=True)
    config = folder.path / "asked.yaml"
    write_whole(config, yaml.safe_dump(to_dict(run), sort_keys=False))
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    with (folder.path / "error.txt").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "layermem", "train", "--config", str(config)]
            + ["--out", str(folder.path), "--resume"],
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={"OMP_NUM_THREADS": threads, **os.environ},
        )


def _ended(name: str, folder: RunFolder) -> bool:
    rows = [row for row in folder.rows() if "val_loss" in row]
    if folder.final.exists() and rows:
        (folder.path / "error.txt").unlink(missing_ok=True)
        logger.info("%s: validation loss %.4f", name, rows[-1]["val_loss"])
        return True
    logger.error("%s failed", name)
    return False
