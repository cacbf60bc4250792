"""Where the runs of a study are trained: an executor carries out one resumable command a run.

The command goes on with a run that was begun, so a run whose process, machine or executor was lost
goes on wherever its command is started again. What runs record is read from their folders.
"""

import importlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import yaml

from layermem_base.files import write_atomically
from layermem_base.number_ranges import above, at_least, number

if TYPE_CHECKING:
    from layermem_bench.config.run import Run
    from layermem_bench.run.folder import RunFolder

logger = logging.getLogger(__name__)
LOGS = ".slurm"
"""Folder of submitit's files, beside the runs' folders."""
_ASKED = "asked.yaml"
# Runs of one array: Slurm's own limit (MaxArraySize) is 1001 unless its administrator changed it.
_LONGEST_ARRAY = 1000
# Times that a run begins again where its machine died, or its hours were over.
_RETRIES = 3
# Seconds that stopped runs have to save.
_TO_SAVE = 120
_POLL_SECONDS = 0.2
# What a run needs of the environment in which the study was started.
_PASSED_ON = ("LAYERMEM_", "HF_", "OMP_NUM_THREADS", "PYTHONPATH", "TOKENIZERS_PARALLELISM")


@dataclass(frozen=True, kw_only=True)
class Launching:
    """Where runs are trained, and what each of them gets there."""

    launcher: Literal["local", "slurm", "ray"] = "local"
    """Where runs are trained: processes on this machine; one job array of Slurm; tasks of Ray, on
    this machine or, with --address, on a cluster. The last two take the extra `scale`."""
    jobs: int | None = number(None, at_least(1))
    """Runs at once. None given: 1; with slurm and ray as many as the cluster has room for."""
    address: str | None = None
    """HOST:PORT of a Ray cluster, as `ray start --head` prints it; None: Ray runs here."""
    hours: float = number(24.0, above(0))
    """Hours after which Slurm has a run save, and queues it again."""
    gpus: int | None = number(None, at_least(0))
    """GPUs of a run on a cluster; several train it as as many processes. None: with ray 1 where
    there are GPUs, with slurm what the partition gives."""
    cpus: int = number(1, at_least(1))
    """CPU cores of a run on a cluster."""
    memory_gb: float | None = number(None, above(0))
    """Memory of a run on a cluster in GB; None: what the cluster gives."""
    slurm: tuple[str, ...] = ()
    """Further options of sbatch, as KEY=VALUE (partition=gpu account=physics)."""

    def __post_init__(self) -> None:
        if wrong := [option for option in self.slurm if "=" not in option]:
            raise ValueError(f"--slurm must be KEY=VALUE each, got {wrong[0]!r}")


@dataclass(kw_only=True)
class Command:
    """The process that trains a run, or goes on with it; called, it is carried out to its end."""

    arguments: tuple[str, ...]
    folder: Path
    """The run's folder; its file of errors gets what the process writes to standard error."""
    directory: Path
    """Where the study was started: paths in configs may begin there."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What is set beside the environment of whoever starts it."""
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False, repr=False)

    def start(self, **environment: str) -> "subprocess.Popen[bytes]":
        """Start the process, in a group of its own: Ctrl-C is for whoever starts it."""
        from layermem_bench.run.folder import ERRORS

        with (self.folder / ERRORS).open("ab") as log:
            return subprocess.Popen(
                self.arguments,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**environment, **os.environ, **self.environment},
                cwd=self.directory,
                start_new_session=True,
            )

    def __call__(self) -> int:
        """Carry the command out in a worker of a cluster; return its exit code."""
        # A shell has what it starts in the background ignore SIGINT; clusters cancel by it.
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._process = process = self.start()
        try:
            # Not Popen.wait, which Ray could not interrupt.
            while (code := process.poll()) is None:
                time.sleep(_POLL_SECONDS)
            return code
        finally:
            self.stop()

    def stop(self) -> None:
        """Have the run save and end, and wait until it has."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def checkpoint(self) -> Any:
        """Have the run saved, and return how it goes on: submitit calls this before a requeue."""
        from submitit.helpers import DelayedSubmission

        self.stop()
        return DelayedSubmission(self)


def command_of(run: "Run", folder: "RunFolder", asked: Launching) -> Command:
    """Write a run's config into its folder; return the command that trains it there."""
    from layermem_bench.config.run import to_dict

    path = folder.path.resolve()
    write_atomically(path / _ASKED, yaml.safe_dump(to_dict(run), sort_keys=False))
    module = ["-m", "layermem", "train", "--config", str(path / _ASKED)]
    if (processes := asked.gpus or 1) > 1 and asked.launcher != "local":
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        if tuple(map(int, version("torch").split(".")[:2])) >= (2, 13):
            # Without it they have 30 seconds to save.
            torchrun.append(f"--shutdown-timeout={_TO_SAVE}")
        module = [*torchrun, *module]
    return Command(
        arguments=(sys.executable, *module, "--out", str(path), "--resume"),
        folder=path,
        directory=Path.cwd(),
    )


class Executor(Protocol):
    """What carries out the commands of many runs."""

    asked: Launching

    def room(self) -> int:
        """Return how many more runs may be started now."""

    def start(self, commands: Mapping[str, Command]) -> None:
        """Start commands by the names of their runs, and return at once."""

    def ended(self) -> dict[str, int]:
        """Return the exit code of each run that has ended since this was last asked."""

    def stop(self) -> None:
        """Ask the runs that have not ended to save and end, and wait until they have."""


class LocalProcesses:
    """Processes of this machine, ``jobs`` at once, which share its cores and take turns on GPUs."""

    def __init__(self, asked: Launching | None = None) -> None:
        self.asked = asked or Launching()
        self._jobs = self.asked.jobs or 1
        self._processes: dict[str, tuple[int, subprocess.Popen[bytes]]] = {}

    def room(self) -> int:
        return self._jobs - len(self._processes)

    def start(self, commands: Mapping[str, Command]) -> None:
        threads = str(max(1, (os.cpu_count() or 1) // self._jobs))
        for name, command in commands.items():
            slot = min(set(range(self._jobs)) - {slot for slot, _ in self._processes.values()})
            command.environment = gpu_environment(slot)
            self._processes[name] = slot, command.start(OMP_NUM_THREADS=threads)

    def ended(self) -> dict[str, int]:
        polled = {name: process.poll() for name, (_, process) in self._processes.items()}
        codes = {name: code for name, code in polled.items() if code is not None}
        for name in codes:
            del self._processes[name]
        return codes

    def stop(self) -> None:
        for _, process in self._processes.values():
            process.terminate()
        for _, process in self._processes.values():
            process.wait()
        self._processes.clear()


def gpu_environment(slot: int) -> dict[str, str]:
    """Return the environment variable that gives a process one of several GPUs, in turn."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    return {"CUDA_VISIBLE_DEVICES": devices[slot % len(devices)]} if len(devices) > 1 else {}


class SlurmArray:
    """Runs started together are one job array, through submitit; one array at a time.

    ``cluster``: "local" carries submitit's jobs out as processes of this machine.
    """

    def __init__(self, asked: Launching, cluster: Literal["slurm", "local"] = "slurm") -> None:
        self.asked, self._cluster = asked, cluster
        self._submitit = _import("submitit")
        further = dict(option.split("=", 1) for option in asked.slurm)
        parameters = {
            "timeout_min": round(60 * asked.hours),
            "cpus_per_task": asked.cpus,
            "gpus_per_node": asked.gpus,
            "mem_gb": asked.memory_gb,
            "slurm_array_parallelism": asked.jobs or _LONGEST_ARRAY,
            "slurm_additional_parameters": further,
        }
        self._parameters = {name: value for name, value in parameters.items() if value is not None}
        self._jobs: dict[str, Any] = {}

    def room(self) -> int:
        return 0 if self._jobs else _LONGEST_ARRAY

    def start(self, commands: Mapping[str, Command]) -> None:
        if not commands:
            return
        logs = next(iter(commands.values())).folder.parent / LOGS
        executor = self._submitit.AutoExecutor(
            logs, cluster=self._cluster, slurm_max_num_timeout=_RETRIES
        )
        executor.update_parameters(**self._parameters)
        jobs = executor.submit_array([*commands.values()])
        self._jobs |= dict(zip(commands, jobs, strict=True))
        logger.info("%d runs are Slurm's job %s; logs: %s", len(jobs), jobs[0].job_id, logs)

    def ended(self) -> dict[str, int]:
        codes = {}
        for name in [name for name, job in self._jobs.items() if job.done()]:
            job = self._jobs.pop(name)
            try:
                codes[name] = job.result()
            except self._submitit.core.utils.UncompletedJobError as error:
                logger.error("%s: Slurm's job %s: %s", name, job.job_id, error)
                codes[name] = 1
        return codes

    def stop(self) -> None:
        for job in self._jobs.values():
            # Slurm sends SIGTERM to all of a job's processes: the run saves and ends.
            job.cancel(check=False)
        end = time.monotonic() + _TO_SAVE
        while any(not job.done() for job in self._jobs.values()) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        self._jobs.clear()


class RayTasks:
    """A task of Ray for each run, as many at once as the cluster has room for, or ``jobs``."""

    def __init__(self, asked: Launching) -> None:
        self.asked = asked
        # A study sends nothing anywhere unless its user wants that.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if asked.address is None:
            # Read as Ray is imported: its processes then listen to this machine alone.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        ray = self._ray = _import("ray")
        if not ray.is_initialized():
            ray.init(
                address=asked.address or "local",
                include_dashboard=None if asked.address else False,
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
        cluster = ray.cluster_resources()
        gpus = asked.gpus if asked.gpus is not None else int(cluster.get("GPU", 0) > 0)
        memory = 1e9 * (asked.memory_gb or 0)
        needed = {"CPU": asked.cpus, "GPU": gpus, "memory": memory}
        room = min(int(cluster.get(name, 0) // each) for name, each in needed.items() if each)
        if room < 1:
            raise ValueError(f"Ray has no room for a run: it needs {needed}, there is {cluster}")
        self._most = min(room, asked.jobs or room)
        self._train = ray.remote(_carry_out).options(
            num_cpus=asked.cpus, num_gpus=gpus, memory=memory or None, max_retries=_RETRIES
        )
        self._tasks: dict[str, tuple[Any, Path]] = {}

    def room(self) -> int:
        return self._most - len(self._tasks)

    def start(self, commands: Mapping[str, Command]) -> None:
        passed = {name: text for name, text in os.environ.items() if name.startswith(_PASSED_ON)}
        for name, command in commands.items():
            command.environment = {"OMP_NUM_THREADS": str(self.asked.cpus), **passed}
            self._tasks[name] = self._train.remote(command), command.folder

    def ended(self) -> dict[str, int]:
        codes = {}
        for name, (task, _) in [*self._tasks.items()]:
            if not self._ray.wait([task], timeout=0)[0]:
                continue
            del self._tasks[name]
            try:
                codes[name] = self._ray.get(task)
            except self._ray.exceptions.RayError as error:
                logger.error("%s: %s: %s", name, type(error).__name__, error)
                codes[name] = 1
        return codes

    def stop(self) -> None:
        for task, _ in self._tasks.values():
            self._ray.cancel(task)
        end = time.monotonic() + _TO_SAVE
        folders = [folder for _, folder in self._tasks.values()]
        while any(map(is_taken, folders)) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        self._tasks.clear()


def _carry_out(command: Command) -> int:
    """Carry a command out in a worker of Ray."""
    return command()


def is_taken(folder: Path) -> bool:
    """Return whether a process is training in a run's folder."""
    from layermem_bench.run.folder import RunFolder

    if not folder.exists():
        return False
    try:
        with RunFolder(folder).locked():
            return False
    except RuntimeError:
        return True


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f"--launcher needs {name}, which is not installed: pip install 'layermem[scale]'"
        ) from error


def executor_of(asked: Launching) -> Executor:
    """Return the executor that was asked for, connected to its cluster."""
    executors: Mapping[str, Any] = {"slurm": SlurmArray, "ray": RayTasks, "local": LocalProcesses}
    return executors[asked.launcher](asked)
