"""Fixtures: runs of a study that are recorded, or trained, in this process."""

import math

import launchers
import pytest
from launchers import InThisProcess
from recorded import record

from layermem_bench.evals.solving import evaluate
from layermem_bench.study.records import ERRORS
from layermem_bench.train.run import train


@pytest.fixture
def in_this_process(monkeypatch):
    """Have runs be done by a function of run and folder in place of processes of their own."""

    def use(act):
        launcher = InThisProcess()
        launcher.train = lambda run, folder: act(run, folder) or 0
        return launchers.use(launcher, monkeypatch)

    return use


@pytest.fixture
def begun(in_this_process):
    """Have runs be recorded with made-up losses in place of being trained; return their names.

    ``begun.does``: run to what happens: "ends", "diverges", "fails" or "is interrupted".
    """

    class Begun(list):
        does = staticmethod(lambda run: "ends")

    names = Begun()

    def act(run, folder):
        names.append(f"{folder.path.parent.name}/{folder.path.name}")
        did = names.does(run)
        if did == "is interrupted":
            raise KeyboardInterrupt
        if did == "fails":
            folder.path.mkdir(parents=True, exist_ok=True)
            with (folder.path / ERRORS).open("a") as log:
                log.write("-- study: begun at noon\nValueError: the disk is | full\n")
            return 1
        if did == "diverges":
            record(folder.path, run=run, rows=2, diverged=20)
        else:
            away = abs(math.log10(run.optim.lr) + (2 if run.variant == "plain" else 3))
            gain = 0.5 + 0.01 * run.seed if run.variant == "lime" else 0.0
            record(folder.path, run=run, final=20.0 + away - gain)
        return 0

    in_this_process(act)
    return names


@pytest.fixture
def trained_here(in_this_process):
    """Train runs in this process, which imports what they need only once; return their names."""
    names = []

    def act(run, folder):
        names.append(folder.path.name)
        train(run, folder.path, evaluate=evaluate)

    in_this_process(act)
    return names
