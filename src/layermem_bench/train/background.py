"""Checkpoints that are written while training goes on: one at a time, each whole or absent.

The training loop waits while weights and moments are copied to the CPU's memory and some kilobytes
are written. A thread then writes the rest, flushes it and moves the folder to its place. The
threads of a sharded run talk to each other in a gloo group of their own.
"""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME

from layermem_bench.train.processes import any_process
from layermem_bench.train.stopping import warn_if_saving_is_slow

logger = logging.getLogger(__name__)


class BackgroundCheckpoints:
    """Saves the checkpoints of a trainer; every process calls every method at the same steps."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def save(self) -> None:
        """Begin a checkpoint, and wait for its end if training stops here.

        While the one before is not written in all processes, none is begun but the last, and that
        of the step where the run could be extended.
        """
        trainer, is_last = self._trainer, self._trainer.control.should_training_stop
        busy = self._pending is not None and not self._pending.done()
        needed = is_last or trainer.state.global_step == trainer.stable
        if not needed and any_process(busy, trainer.args):
            logger.warning(
                "no checkpoint at step %d: the one before it is still being written; raise "
                "save_every, or write to a faster disk",
                trainer.state.global_step,
            )
            return
        self.wait()
        self._begin()
        if is_last:
            self.wait()
            trainer.accelerator.wait_for_everyone()

    def _begin(self) -> None:
        trainer, folder = self._trainer, self._trainer.folder
        is_first, kept = trainer.args.should_save, trainer.steps_kept()
        checkpoint = folder.staging / f"checkpoint-{trainer.state.global_step}"
        with ExitStack() as begun:
            if is_first:
                begun.enter_context(folder.stage_checkpoint())
                checkpoint.mkdir()
            trainer.accelerator.wait_for_everyone()
            trainer._save_rng_state(str(checkpoint))
            if is_first:
                torch.save(trainer.lr_scheduler.state_dict(), checkpoint / SCHEDULER_NAME)
            write_rows = trainer.save_origin_and_unlogged_loss(checkpoint)
            write = trainer.begin_writing(checkpoint)
            moved = begun.pop_all()

        def work() -> None:
            started = time.perf_counter()
            # At the end of the block the checkpoint is complete and moved.
            with moved:
                write()
                write_rows()
            if is_first:
                folder.delete_old_checkpoints(trainer.run.keep, kept)
            warn_if_saving_is_slow(time.perf_counter() - started)

        self._pending = self._thread.submit(work)

    def wait(self) -> None:
        """Wait until this process has nothing left to write; raise what stopped it."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def raise_if_failed(self) -> None:
        """Raise what stopped the writing, without waiting for it."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def close(self) -> None:
        """Wait for what is pending; an error is logged, since training has ended with another."""
        try:
            self.wait()
        except Exception as error:
            logger.error("%s", error)
        finally:
            self._thread.shutdown()


def copy_to_cpu(state: Any) -> Any:
    """Return nested dicts and lists with their tensors copied; one that is in them twice is copied
    once."""
    copies: dict[tuple[Any, ...], Tensor] = {}

    def copied(value: Any) -> Any:
        if isinstance(value, Tensor):
            key = (value.data_ptr(), value.shape, value.stride(), value.dtype)
            if key not in copies:
                copies[key] = value.detach().to("cpu", copy=True)
            return copies[key]
        if isinstance(value, Mapping):
            return {name: copied(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(copied(each) for each in value)
        return value

    return copied(state)


def begin_replicated(
    checkpoint: Path,
    model: Any,
    optimizer: Any,
    save_model: Callable[[str, dict[str, Tensor]], None],
) -> Callable[[], None]:
    """Copy weights and moments that this process holds whole; return what writes them."""
    weights, moments = copy_to_cpu(model.state_dict()), copy_to_cpu(optimizer.state_dict())

    def write() -> None:
        save_model(str(checkpoint), weights)
        torch.save(moments, checkpoint / OPTIMIZER_NAME)

    return write
