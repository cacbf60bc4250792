"""Runs as processes on this machine, which share its cores and take turns on its GPUs."""

import os
import subprocess

import torch

from layermem_bench.results.run_folder import RunFolder
from layermem_bench.study.launchers.launcher import Work
from layermem_bench.study.launchers.run_process import command_of, start


class LocalProcesses:
    """A process for each run, ``jobs`` at once, which share the cores and take turns on GPUs."""

    def __init__(self, jobs: int = 1) -> None:
        self.jobs = jobs
        self._processes: dict[str, tuple[int, subprocess.Popen[bytes]]] = {}

    def room(self) -> int:
        return self.jobs - len(self._processes)

    def launch(self, runs: Work) -> None:
        for name, (run, folder) in runs.items():
            slot = min(set(range(self.jobs)) - {slot for slot, _ in self._processes.values()})
            self._processes[name] = slot, self._start(command_of(run, folder), folder, slot)

    def _start(self, command: list[str], folder: RunFolder, slot: int) -> subprocess.Popen[bytes]:
        threads = str(max(1, (os.cpu_count() or 1) // self.jobs))
        environment = {"OMP_NUM_THREADS": threads, **os.environ, **gpu_environment(slot)}
        # Ctrl-C is for this process, which then asks its runs to stop.
        return start(command, folder.path, environment, start_new_session=True)

    def ended(self) -> dict[str, int]:
        polled = {name: process.poll() for name, (_, process) in self._processes.items()}
        codes = {name: code for name, code in polled.items() if code is not None}
        for name in codes:
            del self._processes[name]
        return codes

    def withdraw(self) -> None:
        """Do nothing: every launched run has begun."""

    def stop(self) -> None:
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
