"""Runs as tasks of Ray, which finds machines for them, on this machine or on a cluster."""

from typing import Any

from layermem_bench.results.run_folder import RunFolder
from layermem_bench.study.launchers.launcher import Launching, Work
from layermem_bench.study.launchers.ray_cluster import check_fits, connect, machines, slots
from layermem_bench.study.launchers.run_process import (
    append_errors,
    remote_run,
    wait_until_free,
)

_RETRIES = 3
# Seconds that stopped runs have to save.
_TO_SAVE = 120


class RayTasks:
    """A task of Ray for each run, as many at once as the cluster has room for, or ``jobs``."""

    def __init__(self, asked: Launching) -> None:
        self._asked = asked
        self._ray = connect(asked.address)
        self._needs = needs(asked, self._ray.cluster_resources().get("GPU", 0) > 0)
        check_fits(self._ray, self._needs, "a run")
        self._tasks: dict[str, tuple[Any, RunFolder]] = {}

    def room(self) -> int:
        most = self._asked.jobs
        if most is None:
            most = sum(slots(machine, self._needs) for machine in machines(self._ray))
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
