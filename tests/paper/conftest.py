"""Fixtures: runs of a study that are recorded, or trained, in this process."""

import math
from dataclasses import dataclass

import pytest
from recorded import record

from layermem.evals.solving import evaluate
from layermem.study import many_runs
from layermem.train.run import train


@dataclass
class Ended:
    """What stands for a process that has ended."""

    code: int

    def poll(self):
        return self.code

    def terminate(self):
        """Nothing is left to end."""

    def wait(self):
        return self.code


@pytest.fixture
def in_this_process(monkeypatch):
    """Have runs be done by a function of run and folder in place of processes of their own."""

    def use(act):
        def start(run, folder, jobs, slot):
            return Ended(act(run, folder) or 0)

        monkeypatch.setattr(many_runs, "_start_process", start)
        monkeypatch.setattr(many_runs, "_POLL_INTERVAL", 0)

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
            with (folder.path / many_runs.ERRORS).open("a") as log:
                log.write("-- sweep: begun at noon\nValueError: the disk is | full\n")
            return 1
        if did == "diverges":
            record(folder.path, run=run, rows=2, diverged=20)
        else:
            away = abs(math.log10(run.optim.lr) + (2 if run.variant == "plain" else 3))
            gain = 0.5 + 0.01 * run.seed if run.variant == "lime" else 0.0
            record(folder.path, run=run, final=1.0 + away - gain)
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
