"""Executors of tests: runs are trained in this process, or recorded with made-up numbers.

A process of its own costs seconds of imports; few tests need one.
"""

import traceback

from recorded import record

from layermem_bench.evals.solving import evaluate
from layermem_bench.run.folder import RunFolder, load_run
from layermem_bench.run.training import train
from layermem_bench.studies import executors
from layermem_bench.studies.records import ERRORS


class Ended:
    """A job with its exit code."""

    def __init__(self, code):
        self.poll = lambda: code
        self.terminate = lambda: None


class InThisProcess(executors.Executor):
    """Trains one run after the other, here; ``begun`` are the names of those started."""

    def __init__(self):
        super().__init__(executors.Launching(), 1)
        self.begun = []

    def start(self, commands):
        self.begun += commands
        super().start(commands)

    def _submit(self, commands):
        return [
            Ended(self.train(load_run(each.folder / "asked.yaml"), RunFolder(each.folder)))
            for each in commands
        ]

    def train(self, run, folder):
        """Train a run as its own process would; return the exit code."""
        try:
            train(run, folder.path, resume=True, evaluate=evaluate)
        except Exception as error:
            with (folder.path / ERRORS).open("a") as log:
                log.write(f"{traceback.format_exception_only(error)[-1]}")
            return 1
        return 0


class MadeUp(InThisProcess):
    """Records runs instead of training them.

    ``does``: from a run to "ends", "diverges", or what it says as it fails. ``loss``: from a run to
    its last validation loss; ``right``: to the share that it solves. ``runs`` are those
    launched.
    """

    def __init__(self, loss=lambda run: 0.5, does=lambda run: "ends", right=lambda run: None):
        super().__init__()
        self.loss, self.does, self.right, self.runs = loss, does, right, []

    def train(self, run, folder):
        self.runs.append(run)
        did = self.does(run)
        folder.metrics.unlink(missing_ok=True)
        if did == "ends":
            record(folder.path, run=run, final=self.loss(run), right=self.right(run), rows=1)
            return 0
        if did == "diverges":
            record(folder.path, run=run, rows=1, diverged=5)
        else:
            with (folder.path / ERRORS).open("a") as log:
                log.write(f"{did}\n")
        return 1


def use(executor, monkeypatch):
    """Have commands train runs by ``executor``; return it."""
    monkeypatch.setattr(executors, "LocalProcesses", lambda asked: executor)
    return executor
