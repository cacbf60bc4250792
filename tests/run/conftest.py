"""Runs that several tests of training look at, trained once: by one process and by two."""

import fcntl
import json
import os
from pathlib import Path

import pytest
from forked import launch_script
from small_run import UNEVEN, a_run, curve, layout_run

from layermem_bench.run.training import train


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """The folder with the text of the run; runs on the same text are made with it."""
    return tmp_path_factory.mktemp("training")


@pytest.fixture(scope="session")
def run(place):
    """Eight steps, with a checkpoint every other step, all of them kept."""
    return a_run(place, keep=9)


@pytest.fixture(scope="session")
def whole(run, place):
    """The folder of that run, which no test changes."""
    return train(run, place / "whole")


@pytest.fixture(scope="session")
def two_processes(tmp_path_factory):
    """The folder of what one and two processes did, for all workers of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "processes"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "probes.json").exists():
            (folder / "alone.json").write_text(json.dumps(train_alone(folder)), encoding="utf-8")
            launch_script(Path(__file__).parent / "processes.py", folder, 2)
    return folder


def train_alone(folder):
    """Train what two processes are compared with; return the curves in each precision."""
    curves = {}
    for precision in ("float32", "bfloat16"):
        run = a_run(folder, **UNEVEN, compute={"precision": precision, "micro_batch": 1})
        curves[precision] = curve(train(run, folder / precision))
    train(layout_run(folder), folder / "layouts" / "one")
    return curves
