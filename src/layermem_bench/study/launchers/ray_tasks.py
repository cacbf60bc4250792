"""Runs as tasks of Ray, which finds machines for them, on this machine or on a cluster."""

import importlib
import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from layermem_bench.results.run_folder import RunFolder
from layermem_bench.study.launchers.launcher import Launching, Work
from layermem_bench.study.launchers.run_process import (
    append_errors,
    remote_run,
    wait_until_free,
)

logger = logging.getLogger(__name__)
_RETRIES = 3
# Seconds for a connection, and for the cluster's answer: Ray itself waits for minutes.
_TO_CONNECT, _TO_ANSWER = 5.0, 40.0
_AUTH_MODE = "RAY_AUTH_MODE"
# Seconds that stopped runs have to save.
_TO_SAVE = 120


class RayTasks:
    """A task of Ray for each run, as many at once as the cluster has room for, or ``jobs``."""

    def __init__(self, asked: Launching) -> None:
        self._asked = asked
        self._ray = connect(asked.address)
        self._needs = needs(asked, self._ray.cluster_resources().get("GPU", 0) > 0)
        self._check_fits()
        self._tasks: dict[str, tuple[Any, RunFolder]] = {}

    def _check_fits(self) -> None:
        """Raise where no machine has what a run needs: Ray would wait for such a machine."""
        machines = self._machines()
        if not any(slots(machine, self._needs) for machine in machines):
            has = "; ".join(_in_words(machine) for machine in machines)
            raise ValueError(
                f"no machine of Ray has what a run needs, {_in_words(self._needs)}; there are "
                f"{has}: ask for less, or start another machine first"
            )

    def _machines(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def room(self) -> int:
        most = self._asked.jobs
        if most is None:
            most = sum(slots(machine, self._needs) for machine in self._machines())
        return max(0, most - len(self._tasks))

    def launch(self, runs: Work) -> None:
        retries = _RETRIES if self._asked.retries is None else self._asked.retries
        options = {
            "num_cpus": self._needs["CPU"],
            "num_gpus": self._needs.get("GPU", 0),
            "memory": self._needs.get("memory"),
            # Of a worker or machine that died; a training that fails is an exit code.
            "max_retries": retries,
            "retry_exceptions": False,
        }
        for name, (run, folder) in runs.items():
            task = self._ray.remote(_train).options(**options, name=name)
            self._tasks[name] = task.remote(remote_run(run, folder, self._asked)), folder

    def ended(self) -> dict[str, int]:
        waiting = {task: name for name, (task, _) in self._tasks.items()}
        done, _ = (
            self._ray.wait([*waiting], num_returns=len(waiting), timeout=0) if waiting else ([], [])
        )
        codes = {}
        for task in done:
            name = waiting[task]
            _, folder = self._tasks.pop(name)
            try:
                codes[name], said = self._ray.get(task)
            except self._ray.exceptions.TaskCancelledError:
                codes[name], said = 0, ""
            except self._ray.exceptions.RayError as error:
                codes[name], said = 1, f"{type(error).__name__}: {' '.join(str(error).split())}"
            append_errors(folder.path, said)
        return codes

    def withdraw(self) -> None:
        """Do nothing: runs are launched where there is room for them."""

    def stop(self) -> None:
        for task, _ in self._tasks.values():
            self._ray.cancel(task)
        wait_until_free([folder for _, folder in self._tasks.values()], _TO_SAVE)
        self._tasks.clear()


def _train(run: Any) -> Any:
    """Train a run in a worker of Ray."""
    return run()


def needs(asked: Launching, has_gpus: bool) -> dict[str, float]:
    """Return what Ray is to keep free for a run, by Ray's names."""
    gpus = asked.gpus if asked.gpus is not None else int(has_gpus)
    needed = {
        "CPU": float(asked.cpus or 1),
        "GPU": float(gpus),
        "memory": 1e9 * (asked.memory_gb or 0),
    }
    return {name: amount for name, amount in needed.items() if amount}


def slots(machine: Mapping[str, float], needed: Mapping[str, float]) -> int:
    """Return how many runs a machine can train at once."""
    return min(int(machine.get(name, 0) // amount) for name, amount in needed.items())


def _in_words(amounts: Mapping[str, float]) -> str:
    words = {"CPU": "{:g} CPUs", "GPU": "{:g} GPUs"}
    of = [text.format(amounts[name]) for name, text in words.items() if amounts.get(name)]
    if amounts.get("memory"):
        of.append(f"{amounts['memory'] / 1e9:.3g} GB")
    return ", ".join(of) or "nothing"


def connect(address: str | None) -> Any:
    """Connect to a cluster, or start Ray on this machine, unless that has been done; return Ray."""
    # The study sends nothing anywhere unless its user wants that.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        # Read as Ray is imported: its processes then listen to this machine alone.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    else:
        check_address(address)
    ray: Any = importlib.import_module("ray")
    if not ray.is_initialized():
        ray.init(
            address=address or "local",
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
    return ray


def check_address(address: str) -> None:
    """Raise unless the head of a Ray cluster answers at HOST:PORT, within a minute."""
    named = re.fullmatch(r"\[?([^\[\]/]+?)\]?:(\d+)", address)
    if named is None or not 0 < int(named[2]) < 2**16:
        raise ValueError(
            f"--address must be HOST:PORT, as `ray start --head` prints it, got {address!r}"
        )
    start = "start a cluster with `ray start --head`, or leave --address out: Ray then runs here"
    try:
        socket.create_connection((named[1], int(named[2])), timeout=_TO_CONNECT).close()
    except OSError as error:
        raise ValueError(f"nobody listens at --address {address} ({error}); {start}") from error
    said = _status(address)
    if said is not None and "AuthenticationError" in said and _AUTH_MODE not in os.environ:
        # `ray start` has its cluster ask for a token where there is one; clients are told.
        os.environ[_AUTH_MODE] = "token"
        said = _status(address)
    if said is not None:
        raise ValueError(f"--address {address} cannot be used ({said}); {start}")


def _status(address: str) -> str | None:
    """Return why a cluster cannot be used, in Ray's own last line; None: it can."""
    status = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        asked = subprocess.run(status, capture_output=True, timeout=_TO_ANSWER, check=False)
    except subprocess.TimeoutExpired:
        return f"it did not answer as Ray within {_TO_ANSWER:.0f} seconds"
    if not asked.returncode:
        return None
    lines = asked.stderr.decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no reason")
