"""What a launcher is, and what a user may ask of one; each launcher has a file of its own."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from layermem_base.number_ranges import above, at_least, number

if TYPE_CHECKING:
    from layermem_bench.config.run import Run
    from layermem_bench.results.run_folder import RunFolder

Work: TypeAlias = "Mapping[str, tuple[Run, RunFolder]]"
"""Runs by name, each with its folder."""


class Launcher(Protocol):
    """What many runs need; what they record is read from their folders."""

    def room(self) -> int:
        """Return how many more runs may be launched now."""

    def launch(self, runs: Work) -> None:
        """Have runs trained, each in its folder, which exists; return at once.

        What a run says of a failure goes to the end of ``records.ERRORS`` in its folder.
        """

    def ended(self) -> dict[str, int]:
        """Return the exit code of each run that has ended since this was last asked."""

    def withdraw(self) -> None:
        """Take back launched runs that no machine has begun; they end with exit code 0."""

    def stop(self) -> None:
        """Ask the runs that have not ended to save and end, and wait until they have."""


_OF = "launchers"


def _option(default: Any, *launchers: str, **allowed: Any) -> Any:
    """Return a field that only some launchers have, with the range of its number."""
    return field(default=default, metadata={_OF: launchers, **allowed})


@dataclass(frozen=True, kw_only=True)
class Launching:
    """Where runs are trained, and what each of them gets there."""

    launcher: Literal["local", "slurm", "ray"] = "local"
    """Where runs are trained: processes on this machine; one job array of Slurm; tasks of Ray, on
    this machine or, with --address, on a cluster. The last two take the extra `scale`."""
    jobs: int | None = number(None, at_least(1))
    """Runs at once. None given: 1; with slurm and ray as many as the cluster has room for."""
    address: str | None = _option(None, "ray")
    """HOST:PORT of a Ray cluster, as `ray start --head` prints it; None: Ray runs here."""
    partition: str | None = _option(None, "slurm")
    """Slurm's partition; None: the cluster's default."""
    hours: float | None = _option(None, "slurm", **above(0))
    """Hours after which Slurm has a run save, and queues it again; None: 24."""
    gpus: int | None = _option(None, "slurm", "ray", **at_least(0))
    """GPUs of a run; several train it as as many processes. None: with ray 1 where there are
    GPUs, with slurm what the partition gives."""
    cpus: int | None = _option(None, "slurm", "ray", **at_least(1))
    """CPU cores of a run; None: 1."""
    memory_gb: float | None = _option(None, "slurm", "ray", **above(0))
    """Memory of a run in GB; None: what the cluster gives."""
    retries: int | None = _option(None, "slurm", "ray", **at_least(0))
    """Times that a run begins again, on any machine, after its machine died or was taken away; a
    run that fails by itself is not tried again. None: 3."""
    slurm: tuple[str, ...] = _option((), "slurm")
    """Further options of sbatch, as KEY=VALUE (account=physics constraint=a100)."""


def check_launching(asked: Launching) -> None:
    """Raise where another launcher's options are given, or what the launcher needs is missing."""
    for each in fields(Launching):
        launchers = each.metadata.get(_OF, (asked.launcher,))
        value = getattr(asked, each.name)
        if asked.launcher not in launchers and value != each.default:
            shown = " ".join(value) if isinstance(value, tuple) else value
            raise ValueError(
                f"--{each.name.replace('_', '-')} {shown} is for --launcher "
                f"{' or '.join(launchers)}, and this is {asked.launcher}: leave it out"
            )
    needed = {"slurm": "submitit", "ray": "ray"}.get(asked.launcher)
    if needed and importlib.util.find_spec(needed) is None:
        raise ValueError(
            f"--launcher {asked.launcher} needs {needed}, which is not installed: "
            "pip install 'layermem[scale]'"
        )


def cluster_launcher(asked: Launching) -> Launcher | None:
    """Return the launcher that was asked for, connected to its cluster; None: processes here."""
    check_launching(asked)
    if asked.launcher == "slurm":
        from layermem_bench.study.launchers.slurm_array import SlurmArray

        return SlurmArray(asked)
    if asked.launcher == "ray":
        from layermem_bench.study.launchers.ray_tasks import RayTasks

        return RayTasks(asked)
    return None
