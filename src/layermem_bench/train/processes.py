"""The processes of one distributed run: their mesh; they wait for each other, agree, and exit."""

import atexit
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from transformers import TrainingArguments

from layermem_bench.config.run import Compute

# Keys of counters in the store that the group was formed with.
_FINISHED, _FAILED = "layermem/ended", "layermem/failed"


def mesh_shape(compute: Compute, processes: int) -> tuple[int, int, int]:
    """Return over how many processes a run's model is copied, sharded, and shared by its heads.

    Processes that share heads are next to each other, and those that copy the model farthest apart.
    """
    for name, several in (("shard", compute.shard), ("tensor", compute.tensor > 1)):
        if several and processes == 1:
            raise ValueError(
                f"compute.{name} needs several processes: torchrun --nproc-per-node N -m layermem "
                "train"
            )
    groups, rest = divmod(processes, compute.tensor)
    if rest:
        choices = [n for n in range(1, processes + 1) if processes % n == 0]
        raise ValueError(
            f"compute.tensor={compute.tensor} does not divide the {processes} processes; take one "
            f"of {', '.join(map(str, choices))}"
        )
    if not compute.shard:
        return groups, 1, compute.tensor
    shards, rest = divmod(groups, compute.replicas)
    if rest or shards < 2:
        shared = f" that compute.tensor={compute.tensor} leaves" if compute.tensor > 1 else ""
        raise ValueError(
            f"compute.replicas={compute.replicas} does not divide the {groups} processes{shared} "
            "into copies of two or more, which compute.shard needs; take numbers that do"
        )
    return compute.replicas, shards, compute.tensor


def form_group(processes: int, timeout_seconds: int) -> None:
    """Form the group of processes, where accelerate would form another.

    On CPUs it gives the group no timeout. Processes that torchrun has started again find in its
    store what those before them wrote there (torch 2.13), their addresses among it, and have a part
    of the store of their own here.
    """
    restarts = restart_count()
    on_gpus = torch.cuda.is_available()
    if processes == 1 or distributed.is_initialized() or (on_gpus and not restarts):
        return
    timeout = timedelta(seconds=timeout_seconds)
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    store.set_timeout(timeout)
    distributed.init_process_group(
        "nccl" if on_gpus else "gloo",
        store=PrefixStore(f"layermem/attempt-{restarts}", store),
        rank=rank,
        world_size=size,
        timeout=timeout,
    )


def restart_count() -> int:
    """Return how often torchrun has started the processes of this run again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def is_distributed() -> bool:
    """Return whether this process is in a group of processes."""
    return distributed.is_available() and distributed.is_initialized()


@contextmanager
def wait_for_all() -> Iterator[None]:
    """Wait at the end of the block until all processes have finished it, for as long as it takes.

    A collective operation has a timeout, and preparing text may take hours; so processes are
    counted in the group's store. If the block fails in one, it ends with an error in all of them.
    """
    if not is_distributed():
        yield
        return
    # torch has no public function that returns the store.
    store = distributed.distributed_c10d._get_default_store()
    try:
        yield
    except BaseException:
        store.add(_FAILED, 1)
        raise
    processes = distributed.get_world_size()
    finished = store.add(_FINISHED, 1)
    # The counter is never reset: a second block counts on from the first, and no process begins a
    # block before all have finished the one before it.
    target, pause = -(-finished // processes) * processes, 0.02
    while finished < target:
        if store.add(_FAILED, 0):
            raise RuntimeError(
                "another process of this run failed before the first step; its own output says why"
            )
        time.sleep(pause := min(2 * pause, 1.0))
        finished = store.add(_FINISHED, 0)


def any_process(flag: bool, args: TrainingArguments) -> bool:
    """Return whether ``flag`` is true in any process; every process must call this."""
    if args.world_size == 1:
        return flag
    shared = torch.tensor(int(flag), device=args.device)
    distributed.all_reduce(shared)
    return bool(shared)


def check_processes_agree(values: Mapping[str, Any]) -> None:
    """Raise in every process unless all have the same values; every process must call this."""
    if not is_distributed():
        return
    by_process: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(by_process, dict(values))
    for name, value in by_process[0].items():
        others = [rank for rank, theirs in enumerate(by_process) if theirs[name] != value]
        if others:
            raise ValueError(
                f"processes do not see the same {name}: {value!r} in process 0, "
                f"{by_process[others[0]][name]!r} in process {others[0]}. The run folder must be "
                "one that all machines see, and the data the same on each"
            )


def exit_if_distributed() -> None:
    """End a process of a distributed run without the interpreter's shutdown.

    Gloo's threads may still hold Python objects (torch 2.13), which rarely abort the process while
    the interpreter shuts down, or deadlock while the group is destroyed. So nothing is done but to
    call the functions registered for the exit, and to flush the output.
    """
    if is_distributed() and distributed.get_world_size() > 1:
        atexit._run_exitfuncs()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
