"""Where runs are trained: a launcher has them trained, says which have ended, and stops them.

Launcher          what many runs need of one
LocalProcesses    processes of this machine, several at once
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Protocol

import torch
import yaml

from layermem.models.files import write_atomically
from layermem_bench.config.run import Run, to_dict
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.study.records import ERRORS


class Launcher(Protocol):
    """Has runs trained; what they record is read from their folders."""

    def room(self) -> int:
        """Return how many more runs may be launched now."""

    def launch(self, runs: Mapping[str, tuple[Run, RunFolder]]) -> None:
        """Have runs trained, by name, each in its folder, which exists; return at once.

        What a run says of a failure goes to the end of ``ERRORS`` in its folder.
        """

    def ended(self) -> dict[str, int]:
        """Return the exit code of each run that has ended since this was last asked."""

    def stop(self) -> None:
        """Ask the runs that have not ended to save and end, and wait until they have."""


def command_of(run: Run, folder: RunFolder) -> list[str]:
    """Write a run's config into its folder; return the command that trains it there, or goes on."""
    config = folder.path / "asked.yaml"
    write_atomically(config, yaml.safe_dump(to_dict(run), sort_keys=False))
    train = [sys.executable, "-m", "layermem", "train"]
    return [*train, "--config", str(config), "--out", str(folder.path), "--resume"]


class LocalProcesses:
    """A process for each run, ``jobs`` at once, which share the cores and take turns on GPUs."""

    def __init__(self, jobs: int = 1) -> None:
        self.jobs = jobs
        self._processes: dict[str, tuple[int, subprocess.Popen[bytes]]] = {}

    def room(self) -> int:
        """Return how many more processes there may be."""
        return self.jobs - len(self._processes)

    def launch(self, runs: Mapping[str, tuple[Run, RunFolder]]) -> None:
        """Start a process for each run."""
        for name, (run, folder) in runs.items():
            slot = min(set(range(self.jobs)) - {slot for slot, _ in self._processes.values()})
            self._processes[name] = slot, self._start(command_of(run, folder), folder, slot)

    def _start(self, command: list[str], folder: RunFolder, slot: int) -> subprocess.Popen[bytes]:
        threads = str(max(1, (os.cpu_count() or 1) // self.jobs))
        with (folder.path / ERRORS).open("ab") as log:
            return subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={"OMP_NUM_THREADS": threads, **os.environ, **gpu_environment(slot)},
                # Ctrl-C is for this process, which then asks its runs to stop.
                start_new_session=True,
            )

    def ended(self) -> dict[str, int]:
        """Return the exit codes of processes that have ended."""
        polled = {name: process.poll() for name, (_, process) in self._processes.items()}
        codes = {name: code for name, code in polled.items() if code is not None}
        for name in codes:
            del self._processes[name]
        return codes

    def stop(self) -> None:
        """Have the processes terminate."""
        for _, process in self._processes.values():
            process.terminate()
        for _, process in self._processes.values():
            process.wait()
        self._processes.clear()


def gpu_environment(slot: int) -> dict[str, str]:
    """Return the environment variable that gives a process one of several GPUs, in turn."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    return {"CUDA_VISIBLE_DEVICES": devices[slot % len(devices)]} if len(devices) > 1 else {}
