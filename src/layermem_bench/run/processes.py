"""The processes of one run: their group, how they hold the model, and what stops them.

A model is copied to each process (DDP) or sharded over all (FSDP2). Both are torch's own: FSDP2 as
accelerate sets it up computes norms in bfloat16, and so other numbers than an unsharded run.
"""

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from accelerate import Accelerator
from torch import distributed, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor

from layermem_bench.config.computing import uses_bfloat16
from layermem_bench.config.run import Run

# How long a process waits for the others, which may be preparing text.
_PATIENCE = timedelta(hours=2)


def process_count() -> int:
    """Return how many processes a launcher has started for this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def restart_count() -> int:
    """Return how often torchrun has started the processes of this run again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def join_processes(run: Run, folder: os.PathLike[str]) -> Accelerator:
    """Form the group of processes; return what knows this one's place, device and trackers."""
    count, on_gpus = process_count(), torch.cuda.is_available()
    if run.compute.shard and count == 1:
        raise ValueError(
            "compute.shard needs several processes: torchrun --nproc-per-node N -m layermem train"
        )
    if count > 1 and not distributed.is_initialized():
        store, rank, size = next(rendezvous("env://", timeout=_PATIENCE))
        store.set_timeout(_PATIENCE)
        # Processes that torchrun has started again would find in its store the addresses of those
        # before them (torch 2.13).
        own = PrefixStore(f"layermem/attempt-{restart_count()}", store)
        backend = "nccl" if on_gpus else "gloo"
        distributed.init_process_group(
            backend, store=own, rank=rank, world_size=size, timeout=_PATIENCE
        )
    return Accelerator(cpu=not on_gpus, log_with=list(run.track) or None, project_dir=folder)


def any_process(flag: bool, accelerator: Accelerator) -> bool:
    """Return whether ``flag`` is true in any process; every process must call this."""
    if accelerator.num_processes == 1:
        return flag
    shared = torch.tensor(int(flag), device=accelerator.device)
    distributed.all_reduce(shared)
    return bool(shared)


def shard(model: Any, precision: str) -> None:
    """Divide parameters, gradients and moments over all processes, layer by layer.

    In bfloat16 the weights of linear layers are gathered in bfloat16, as autocast would cast them,
    and all others in float32; gradients are summed in float32.
    """
    policy = MixedPrecisionPolicy()
    if uses_bfloat16(precision):
        # What autocast leaves in float32, but for embeddings, is one small unit, gathered from the
        # first norm to the end of the backward.
        parts = [m for m in model.model.modules() if list(m.parameters(recurse=False))]
        kept = [m for m in parts if not isinstance(m, nn.Linear | nn.Embedding)]
        fully_shard(kept, reshard_after_forward=False)
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model)


def whole(value: Any) -> Any:
    """Return a tensor in full, where it is sharded: on the CPU of the first process, nothing in the
    others; every process must call this."""
    if not isinstance(value, DTensor):
        return value
    full = value.full_tensor()
    return full.cpu() if distributed.get_rank() == 0 else None


def exit_if_distributed() -> None:
    """End a process of a distributed run without the interpreter's shutdown.

    Gloo's threads may still hold Python objects (torch 2.13), which rarely abort the process while
    the interpreter shuts down, or deadlock while the group is destroyed. So nothing is done but to
    call the functions registered for the exit, and to flush the output.
    """
    is_ours = distributed.is_available() and distributed.is_initialized()
    if is_ours and distributed.get_world_size() > 1:
        atexit._run_exitfuncs()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


class NotFiniteError(RuntimeError):
    """The loss, the gradients or the weights are NaN or infinite."""


class StopOnSignal:
    """On SIGTERM or Ctrl-C the run stops after the step; on a second Ctrl-C, immediately."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._number: int | None = None

    def is_asked_for(self) -> bool:
        """Return whether any process has had a signal; every process must call this."""
        return any_process(self._number is not None, self._accelerator)

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Handle the signals during the block, if this is the main thread; a Ctrl-C is then raised
        as ``KeyboardInterrupt`` at its end."""
        if threading.current_thread() is not threading.main_thread():
            # Python sets signal handlers in the main thread alone.
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        # An ignored signal (Ctrl-C in a background job) stays ignored.
        handled = [number for number, handler in before.items() if handler != signal.SIG_IGN]
        for number in handled:
            signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number in handled:
                signal.signal(number, before[number])
        if self._number == signal.SIGINT:
            raise KeyboardInterrupt

    def _handle(self, number: int, _: Any) -> None:
        # A terminal sends Ctrl-C to every process, and the launcher of several sends it once more.
        if self._accelerator.num_processes == 1 and number == self._number == signal.SIGINT:
            raise KeyboardInterrupt
        self._number = self._number or number
