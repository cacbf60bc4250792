"""What stops a run: SIGTERM, Ctrl-C, and numbers that are not finite, in all processes at once."""

import itertools
import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback, TrainingArguments

from layermem_bench.train.processes import any_process

logger = logging.getLogger(__name__)
# The logged numbers that must be finite, under transformers' names, and how an error calls them.
_CHECKED_LOGS = {
    "loss": "the loss",
    "grad_norm": "the gradient",
    "eval_loss": "the validation loss",
}
# Seconds between torchrun's SIGTERM and its SIGKILL, unless --shutdown-timeout says otherwise.
_SHUTDOWN_SECONDS = 30.0


def warn_if_saving_is_slow(seconds: float) -> None:
    """Warn if torchrun would kill the processes during a save as long as this one."""
    if "TORCHELASTIC_RUN_ID" in os.environ and seconds > _SHUTDOWN_SECONDS / 2:
        logger.warning(
            "saving took %.0f seconds; torchrun kills its processes %.0f seconds after SIGTERM "
            "unless --shutdown-timeout gives them more",
            seconds,
            _SHUTDOWN_SECONDS,
        )


class _WorkInterrupted(BaseException):
    """Not an ``Exception``, so that no other code catches it."""


class StopOnSignal(TrainerCallback):
    """On SIGTERM or Ctrl-C finish the step, save and stop; on a second Ctrl-C stop immediately.

    The last step is always saved as well, since the work after it may fail; so is ``save_at``.
    """

    def __init__(self, *, processes: int, save_at: int | None = None) -> None:
        self._save_at = save_at
        self.signal_number: int | None = None
        self._interruptible = False
        # A terminal sends Ctrl-C to every process, and the launcher of several processes sends it
        # to them once more: there a second signal does not mean a second Ctrl-C.
        self._second_interrupts = processes == 1

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if any_process(self.signal_number is not None, args):
            control.should_save = control.should_training_stop = True
        elif state.global_step >= state.max_steps or state.global_step == self._save_at:
            control.should_save = True
        return control

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
            signal.signal(number, self._handle_signal)
        try:
            yield
        finally:
            for number in handled:
                signal.signal(number, before[number])
        if self.signal_number == signal.SIGINT:
            raise KeyboardInterrupt

    def run_unless_stopped(self, work: Callable[[], None], args: TrainingArguments) -> bool:
        """Run ``work``, which a signal interrupts; return whether all processes completed it."""
        completed = False
        try:
            # With several processes, one that left immediately would leave the others waiting for
            # it in a collective operation.
            self._interruptible = args.world_size == 1
            if not any_process(self.signal_number is not None, args):
                work()
                completed = True
        except _WorkInterrupted:
            pass
        finally:
            self._interruptible = False
        return not any_process(not completed, args)

    def _handle_signal(self, number: int, _: Any) -> None:
        if self._second_interrupts and number == self.signal_number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_number = self.signal_number or number
        if self._interruptible:
            raise _WorkInterrupted


class NotFiniteError(RuntimeError):
    """The loss, the gradients or the weights are NaN or infinite."""


class FiniteCheck:
    """Stop all processes of a trainer once one of them sees a number that is not finite."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._losses_finite: Tensor | None = None

    def add_loss(self, loss: Tensor) -> None:
        """Note whether a micro-batch's loss is finite, without waiting for the device."""
        finite = loss.detach().isfinite()
        earlier = self._losses_finite
        self._losses_finite = finite if earlier is None else earlier & finite

    def check_losses(self, logs: Mapping[str, float]) -> None:
        """Raise, in all processes, if a noted loss or a logged number is not finite."""
        logged = [name for name in _CHECKED_LOGS if not math.isfinite(logs.get(name, 0.0))]
        loss_failed = self._losses_finite is not None and not bool(self._losses_finite)
        what = _CHECKED_LOGS[logged[0]] if logged else "the loss"
        self._raise_if(bool(logged) or loss_failed, f"{what} is not finite at")

    @torch.no_grad()
    def check_weights(self) -> None:
        """Raise, in all processes, if a weight or a moment of the optimizer is not finite."""
        states = self._trainer.unwrapped_optimizer().state.values()
        moments = (value for state in states for value in state.values())
        tensors = itertools.chain(self._trainer.model.parameters(), moments)
        # Of a sharded tensor each process looks at its part.
        local = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
        flags = [t.isfinite().all() for t in local if t.is_floating_point()]
        finite = bool(torch.stack([flag.to(flags[0].device) for flag in flags]).all())
        self._raise_if(not finite, "weights or moments of the optimizer are not finite after")

    def _raise_if(self, failed: bool, what: str) -> None:
        if not any_process(failed, self._trainer.args):
            return
        saved = self._trainer.folder.complete_checkpoints()
        good = f"the last good checkpoint is {saved[-1]}" if saved else "there is no checkpoint"
        raise NotFiniteError(
            f"{what} step {self._trainer.state.global_step}; {good}. Lower optim.lr (or "
            "optim.router_lr), or clip more"
        )
