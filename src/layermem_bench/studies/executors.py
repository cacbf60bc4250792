"""Where the runs of a study are trained: an executor carries out one resumable command a run.

The command goes on with a run that was begun, so a run whose process, machine or executor was lost
goes on wherever its command is started again. What runs record is read from their folders.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import yaml

from layermem_base.files import write_atomically
from layermem_base.number_ranges import above, at_least, number
from layermem_bench.config.run import Run, to_dict
from layermem_bench.run.folder import ERRORS, RunFolder

logger = logging.getLogger(__name__)
_ASKED = "asked.yaml"
# Folder of submitit's files, beside the runs' folders.
_LOGS = ".slurm"
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
    slurm: tuple[str, ...] = ()
    """Further options of sbatch, as KEY=VALUE (partition=gpu account=physics mem=64G)."""


@dataclass(kw_only=True)
class Command:
    """The process that trains a run, or goes on with it; called, it is carried out to its end."""

    arguments: tuple[str, ...]
    folder: Path
    """The run's folder; its file of errors gets what the process writes to standard error."""
    directory: Path
    """Where the study was started: paths in configs may begin there."""
    environment: dict[str, str] = field(default_factory=dict)
    """What is set beside the environment of whoever starts it."""
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False, repr=False)

    def start(self) -> "subprocess.Popen[bytes]":
        """Start the process, in a group of its own: Ctrl-C is for whoever starts it."""
        with (self.folder / ERRORS).open("ab") as log:
            return subprocess.Popen(
                self.arguments,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, **self.environment},
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


def command_of(run: Run, folder: RunFolder, asked: Launching) -> Command:
    """Write a run's config into its folder; return the command that trains it there, with the
    folder as it was given, since runs record it."""
    path = folder.path
    write_atomically(path / _ASKED, yaml.safe_dump(to_dict(run), sort_keys=False))
    module = ["-m", "layermem", "train", "--config", str(path / _ASKED)]
    if (processes := asked.gpus or 1) > 1 and asked.launcher != "local":
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        if tuple(map(int, version("torch").split(".")[:2])) >= (2, 13):
            # Without it they have 30 seconds to save.
            torchrun.append(f"--shutdown-timeout={_TO_SAVE}")
        module = [*torchrun, *module]
    arguments = (sys.executable, *module, "--out", str(path), "--resume")
    return Command(arguments=arguments, folder=path.resolve(), directory=Path.cwd())


class Executor(ABC):
    """Has commands carried out, as many at once as there is ``room``."""

    def __init__(self, asked: Launching, most: int) -> None:
        self.asked, self._most = asked, most
        self._running: dict[str, tuple[Any, Path]] = {}

    @abstractmethod
    def _submit(self, commands: list[Command]) -> list[Any]:
        """Submit commands; return a job for each, with ``poll`` and ``terminate`` as a process."""

    def room(self) -> int:
        """Return how many more runs may be started now."""
        return self._most - len(self._running)

    def start(self, commands: Mapping[str, Command]) -> None:
        """Start commands by the names of their runs, and return at once."""
        jobs = self._submit([*commands.values()]) if commands else []
        for (name, command), job in zip(commands.items(), jobs, strict=True):
            self._running[name] = job, command.folder

    def ended(self) -> dict[str, int]:
        """Return the exit code of each run that has ended since this was last asked."""
        polled = {name: job.poll() for name, (job, _) in self._running.items()}
        codes = {name: code for name, code in polled.items() if code is not None}
        for name in codes:
            del self._running[name]
        return codes

    def stop(self) -> None:
        """Ask the runs that have not ended to save and end, and wait until they have."""
        folders = [folder for _, folder in self._running.values()]
        for job, _ in self._running.values():
            job.terminate()
        end = time.monotonic() + _TO_SAVE
        while (self._running or any(map(is_taken, folders))) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
            self.ended()
        self._running.clear()


class LocalProcesses(Executor):
    """Processes of this machine, which share its cores and take turns on its GPUs."""

    def __init__(self, asked: Launching | None = None) -> None:
        asked = asked or Launching()
        super().__init__(asked, asked.jobs or 1)
        self._slots: list[subprocess.Popen[bytes] | None] = [None] * self._most

    def _submit(self, commands: list[Command]) -> list[Any]:
        import torch

        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = visible.split(",") if visible else [*map(str, range(torch.cuda.device_count()))]
        threads, processes = str(max(1, (os.cpu_count() or 1) // self._most)), []
        for command in commands:
            slot = [each is None or each.poll() is not None for each in self._slots].index(True)
            command.environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}
            if len(gpus) > 1:
                command.environment["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
            self._slots[slot] = process = command.start()
            processes.append(process)
        return processes


@dataclass
class _Job:
    """A job of submitit or a future of Ray, which is asked and stopped as a process is."""

    future: Any
    terminate: Callable[[], object]

    def poll(self) -> int | None:
        try:
            return self.future.result() if self.future.done() else None
        except Exception as error:
            logger.error("%s: %s", type(error).__name__, error)
            return 1


class SlurmArray(Executor):
    """Jobs of Slurm through submitit: runs started together are one array.

    ``cluster``: "local" carries submitit's jobs out as processes of this machine.
    """

    def __init__(self, asked: Launching, cluster: Literal["slurm", "local"] = "slurm") -> None:
        import submitit

        super().__init__(asked, _LONGEST_ARRAY)
        self._executor = partial(
            submitit.AutoExecutor, cluster=cluster, slurm_max_num_timeout=_RETRIES
        )

    def room(self) -> int:
        # One array at a time: another would run as many at once beside it.
        return 0 if self._running else self._most

    def _submit(self, commands: list[Command]) -> list[Any]:
        asked, logs = self.asked, commands[0].folder.parent / _LOGS
        executor = self._executor(logs)
        executor.update_parameters(
            timeout_min=round(60 * asked.hours),
            cpus_per_task=asked.cpus,
            slurm_array_parallelism=asked.jobs or _LONGEST_ARRAY,
            slurm_additional_parameters=dict(each.partition("=")[::2] for each in asked.slurm),
            **({} if asked.gpus is None else {"gpus_per_node": asked.gpus}),
        )
        jobs = executor.submit_array(commands)
        logger.info("%d runs are Slurm's job %s; logs: %s", len(jobs), jobs[0].job_id, logs)
        # Slurm sends SIGTERM to all of a job's processes.
        return [_Job(job, partial(job.cancel, check=False)) for job in jobs]


class RayTasks(Executor):
    """A task of Ray for each run, as many at once as the cluster has room for, or ``jobs``."""

    def __init__(self, asked: Launching) -> None:
        # A study sends nothing anywhere unless its user wants that.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if asked.address is None:
            # Read as Ray is imported: its processes then listen to this machine alone.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        import ray

        self._ray = ray
        if not ray.is_initialized():
            ray.init(
                address=asked.address or "local",
                include_dashboard=None if asked.address else False,
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
        cluster = ray.cluster_resources()
        gpus = asked.gpus if asked.gpus is not None else int(cluster.get("GPU", 0) > 0)
        needed = {"CPU": asked.cpus, "GPU": gpus}
        room = min(int(cluster.get(name, 0) // each) for name, each in needed.items() if each)
        if room < 1:
            raise ValueError(f"Ray has no room for a run: it needs {needed}, there is {cluster}")
        super().__init__(asked, min(room, asked.jobs or room))
        self._train = ray.remote(Command.__call__).options(
            num_cpus=asked.cpus, num_gpus=gpus, max_retries=_RETRIES
        )

    def _submit(self, commands: list[Command]) -> list[Any]:
        passed = {name: text for name, text in os.environ.items() if name.startswith(_PASSED_ON)}
        for command in commands:
            command.environment = {"OMP_NUM_THREADS": str(self.asked.cpus), **passed}
        tasks = map(self._train.remote, commands)
        return [_Job(task.future(), partial(self._ray.cancel, task)) for task in tasks]


def is_taken(folder: Path) -> bool:
    """Return whether a process is training in a run's folder."""
    if not folder.exists():
        return False
    try:
        with RunFolder(folder).locked():
            return False
    except RuntimeError:
        return True


def executor_of(asked: Launching) -> Executor:
    """Return the executor that was asked for, connected to its cluster."""
    engines: Mapping[str, Any] = {"slurm": SlurmArray, "ray": RayTasks, "local": LocalProcesses}
    try:
        return engines[asked.launcher](asked)
    except ImportError as error:
        raise ValueError(f"--launcher: {error}; pip install 'layermem[scale]'") from error
