"""A preparation by the executors of datatrove: on this machine, on Slurm, or on Ray.

A task of datatrove makes every Nth piece of a plan, by the functions that also prepare a text
without datatrove. Its own ``DocumentTokenizer`` makes no such files: it has no splits, shuffles
within a task, and an added end token goes through the post-processor, which special tokens share.
Datatrove runs the tasks, marks those that are complete, and keeps a log for each.
"""

import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

from layermem_bench.data.local_workers import available_cores
from layermem_bench.data.piece_writing import make_pieces, share_of
from layermem_bench.data.preparations import Plan, Work
from layermem_bench.data.preparing import read_folder
from layermem_bench.data.ray_cluster import check_address, check_fits, connect
from layermem_bench.data.staging import SUBMITTED, claim_folder
from layermem_bench.data.tokenizers import load_tokenizer

NAMES = ("local", "slurm", "ray")


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How the tasks of a preparation run."""

    executor: Literal["local", "slurm", "ray"]
    tasks: int
    workers: int | None = None
    """Tasks that run at once; None: on this machine as many as it has cores, else all."""
    partition: str | None = None
    time: str = "24:00:00"
    qos: str | None = None
    memory: int = 4
    """GB for each task, on Slurm and Ray."""
    address: str | None = None
    """HOST:PORT of a Ray cluster's head; None: Ray runs on this machine."""

    def __post_init__(self) -> None:
        if self.executor == "slurm" and self.partition is None:
            raise ValueError("--executor slurm needs --partition, the name of a Slurm partition")
        if self.executor != "ray" and self.address is not None:
            raise ValueError(
                f"--address is Ray's, and --executor is {self.executor}: give --executor ray, or "
                "leave it out"
            )

    def check(self) -> None:
        """Raise, before any work, where the executor cannot be used."""
        needed = ["datatrove", *(["ray"] if self.executor == "ray" else [])]
        for name in needed:
            if importlib.util.find_spec(name) is None:
                raise ValueError(
                    f'--executor {self.executor} needs {name}: pip install "layermem[scale]"'
                )
        if self.address is not None:
            check_address(self.address)
        if self.executor == "slurm" and shutil.which("sbatch") is None:
            raise ValueError("--executor slurm needs the command sbatch, which is not on PATH")

    def make(self, work: Work, plan: Plan, tokenizer: Any) -> bool:
        """Run the tasks whose pieces are missing; return whether they have ended."""
        if self.executor == "slurm" and work.owner:
            raise ValueError(
                f"{work.final.parent} is on a file system without locks, by which tasks of Slurm "
                "keep out of each other's way: choose another --data.cache"
            )
        if self.executor == "slurm" and shlex.quote(str(work.logs)) != str(work.logs):
            raise ValueError(
                f"{work.logs.parent} has spaces or signs of the shell, and datatrove puts it into "
                "the script of a job as it is: choose another --data.cache"
            )
        missing = work.missing(plan)
        if not missing:
            # The last task was stopped before it could end the preparation.
            return True
        step = PieceStep(str(work.final), self.executor == "slurm", work.owner)
        # Of another number of tasks, which have other pieces.
        logs = work.logs / f"{self.tasks}-tasks"
        for rank in range(self.tasks):
            if not {*missing}.isdisjoint(share_of(len(plan.pieces), rank, self.tasks)):
                # Datatrove's mark that the task is complete.
                (logs / "completions" / f"{rank:05d}").unlink(missing_ok=True)
        if self.executor == "slurm":
            (work.folder / SUBMITTED).touch()
            self._slurm(step, logs).run()
            return False
        if self.executor == "ray":
            self._run_on_ray(step, logs)
            # Datatrove's executor raises no error of a task; the piece that one ended at has it.
            missing = work.missing(plan)
            make_pieces(work, plan, tokenizer, missing[:1], lambda tokens: None)
            if missing[1:]:
                raise RuntimeError(
                    f"tasks of Ray ended without {len(missing)} of {len(plan.pieces)} pieces; "
                    f"{logs / 'logs'} says why; start again to go on from there"
                )
        else:
            self._local(step, logs).run()
        return True

    def _local(self, step: "PieceStep", logs: Path) -> Any:
        from datatrove.executor import LocalPipelineExecutor

        workers = min(self.tasks, self.workers or available_cores())
        return LocalPipelineExecutor(
            pipeline=[step], tasks=self.tasks, workers=workers, logging_dir=str(logs)
        )

    def _slurm(self, step: "PieceStep", logs: Path) -> Any:
        from datatrove.executor import SlurmPipelineExecutor

        # The commands of this Python, where a task begins in another environment.
        folder = shlex.quote(str(Path(sys.executable).parent))
        return SlurmPipelineExecutor(
            pipeline=[step],
            tasks=self.tasks,
            workers=self.workers or -1,
            time=self.time,
            partition=str(self.partition),
            qos=self.qos or "",
            mem_per_cpu_gb=self.memory,
            job_name="layermem-prepare",
            env_command=f"export PATH={folder}:$PATH",
            logging_dir=str(logs),
        )

    def _run_on_ray(self, step: "PieceStep", logs: Path) -> None:
        from datatrove.executor import RayPipelineExecutor

        check_fits(connect(self.address), {"CPU": 1, "memory": self.memory * 2**30}, "a task")
        RayPipelineExecutor(
            pipeline=[step],
            tasks=self.tasks,
            workers=self.workers or -1,
            mem_per_cpu_gb=self.memory,
            logging_dir=str(logs),
        ).run()


@final
@dataclass(frozen=True)
class PieceStep:
    """The step of a pipeline of datatrove that makes every Nth piece of a plan."""

    final: str
    """The folder that the preparation ends as."""
    publishes: bool
    """Whether the task after which no piece is missing ends the preparation."""
    owner: str = ""
    """Where there are no locks, the process that makes the preparation alone."""

    def __call__(self, data: Iterable[Any] | None, rank: int = 0, world_size: int = 1) -> None:
        """Make the pieces of a task."""
        from datatrove.utils.logging import logger

        # One task has one core; another thread for each would be in the way of other tasks.
        os.environ["RAYON_NUM_THREADS"] = "1"
        work = Work(Path(self.final), self.owner)
        plan = work.plan()
        if plan is None:
            if work.published():
                return
            raise ValueError(f"{work.folder} holds no plan: run layermem prepare again")
        tokenizer = load_tokenizer(plan.tokenizer_name)
        indices = share_of(len(plan.pieces), rank, world_size)
        make_pieces(work, plan, tokenizer, indices, lambda tokens: None)
        logger.info(f"{plan.source}: pieces {[*indices]} of {len(plan.pieces)} are done")
        if self.publishes and not work.missing(plan):
            with claim_folder(work.final, work.published) as must_publish:
                if must_publish:
                    work.publish(plan)
                    read_folder(work.final, tokenizer)
