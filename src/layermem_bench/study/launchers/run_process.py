"""The process that trains a run: its command, and how a worker of a cluster carries it out."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import yaml

from layermem_base.files import write_atomically
from layermem_bench.config.run import Run, to_dict
from layermem_bench.results.run_folder import ERRORS, RunFolder
from layermem_bench.study.launchers.launcher import Launching

Outcome: TypeAlias = tuple[int, str]
"""A run's exit code, and what a worker says of a run that it could not start."""
_ASKED = "asked.yaml"
_POLL_SECONDS = 0.2
# What a run needs of the environment in which the study was started; a worker of a cluster has
# another one.
_PASSED_ON = ("LAYERMEM_", "HF_", "OMP_NUM_THREADS", "PYTHONPATH", "TOKENIZERS_PARALLELISM")


def command_of(run: Run, folder: RunFolder) -> list[str]:
    """Write a run's config into its folder; return the command that trains it there, or goes on."""
    config = folder.path / _ASKED
    write_atomically(config, yaml.safe_dump(to_dict(run), sort_keys=False))
    train = [sys.executable, "-m", "layermem", "train"]
    return [*train, "--config", str(config), "--out", str(folder.path), "--resume"]


def start(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], **options: object
) -> "subprocess.Popen[bytes]":
    """Start a run's process; what it writes to standard error goes to the end of ERRORS."""
    with (folder / ERRORS).open("ab") as log:
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=log, env=environment, **options
        )  # type: ignore[call-overload]


def append_errors(folder: Path, said: str) -> None:
    """Add what a launcher has to say of a run to what the run's processes wrote."""
    if said:
        with (folder / ERRORS).open("a", encoding="utf-8") as log:
            log.write(f"{said}\n")


def is_taken(folder: RunFolder) -> bool:
    """Return whether another process is training in the folder."""
    if not folder.path.exists():
        return False
    try:
        with folder.locked():
            return False
    except RuntimeError:
        return True


def wait_until_free(folders: Sequence[RunFolder], seconds: float) -> None:
    """Wait until no process trains in any of the folders, but no longer than ``seconds``."""
    end = time.monotonic() + seconds
    while any(map(is_taken, folders)) and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)


@dataclass(kw_only=True)
class RemoteRun:
    """A run as a worker of a cluster gets it: called there, it trains the run.

    The training is a process of its own, as with local processes. It ends with its worker: where
    this one is killed, the process saves and ends, and the lock of the folder is free again.
    """

    command: tuple[str, ...]
    """The command that trains the run, or goes on."""
    folder: Path
    """The run's folder, which all machines see."""
    directory: Path
    """Where the study was started: paths in configs may begin there."""
    environment: dict[str, str]
    """What differs from the worker's own environment."""
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False, repr=False)

    def __call__(self) -> Outcome:
        """Train the run; return its exit code."""
        if not (self.folder / _ASKED).exists() or not self.directory.is_dir():
            return 1, (
                f"{socket.gethostname()} does not see {self.folder} and {self.directory}: runs on "
                "a cluster need an --out, and a folder in which the command is started, that all "
                "machines share"
            )
        # A shell has what it starts in the background ignore SIGINT, and so all that this starts;
        # clusters cancel by it.
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        # An attempt whose worker was killed may still be saving.
        wait_until_free([RunFolder(self.folder)], seconds=60)
        environment = {**os.environ, **self.environment}
        process = self._process = start(
            self.command, self.folder, environment, stdin=subprocess.PIPE, cwd=self.directory
        )
        try:
            # Not Popen.wait, which Ray could not interrupt.
            while (code := process.poll()) is None:
                time.sleep(_POLL_SECONDS)
            return code, ""
        finally:
            self.stop()

    def stop(self) -> None:
        """Ask the run to save and end, and wait until it has."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self._process = None


def remote_run(run: Run, folder: RunFolder, asked: Launching) -> RemoteRun:
    """Return a run as a worker of a cluster gets it."""
    absolute = RunFolder(folder.path.resolve())
    python, *module_and_options = command_of(run, absolute)
    tethered = [python, "-m", "layermem_bench.study.launchers.tethered"]
    processes = asked.gpus or 1
    if processes > 1:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        module_and_options = [*torchrun, *module_and_options]
    passed = {name: text for name, text in os.environ.items() if name.startswith(_PASSED_ON)}
    return RemoteRun(
        command=(*tethered, *module_and_options[1:]),
        folder=absolute.path,
        directory=Path.cwd(),
        environment={"OMP_NUM_THREADS": str(asked.cpus or 1), **passed},
    )
