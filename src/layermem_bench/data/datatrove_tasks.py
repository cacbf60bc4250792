"""The shards of a preparation by tasks of datatrove, which runs, marks and logs them.

Its own ``DocumentTokenizer`` makes no such files: it has no splits, shuffles within a task, and an
added end token goes through the post-processor, which special tokens share.
"""

import importlib.util
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

from layermem_bench.data.shards import Shards


@final
@dataclass(frozen=True)
class ShardStep:
    """The one step of a pipeline of datatrove: a task writes its shard."""

    shards: Shards

    def __call__(self, data: Iterable[Any] | None, rank: int = 0, world_size: int = 1) -> None:
        # One task has one core; another thread for each would be in the way of other tasks.
        os.environ["RAYON_NUM_THREADS"] = "1"
        self.shards.write(rank)


def write_by_tasks(shards: Shards, workers: int) -> None:
    """Write the shards that are missing, so many at once; an error of a task is raised."""
    if importlib.util.find_spec("datatrove") is None:
        raise ValueError('--tasks needs datatrove: pip install "layermem[scale]"')
    from datatrove.executor import LocalPipelineExecutor

    LocalPipelineExecutor(
        pipeline=[ShardStep(shards)],
        tasks=shards.tasks,
        workers=min(shards.tasks, workers),
        logging_dir=str(shards.folder / "logs"),
    ).run()
