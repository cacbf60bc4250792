"""Stopping a run on SIGTERM or Ctrl-C: all its processes stop after the same step, and save."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers import TrainerCallback, TrainingArguments

from layermem.train.processes import any_process

logger = logging.getLogger(__name__)
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
    """Raised by the signal handler; not an ``Exception``, so that no other code catches it."""


class StopOnSignal(TrainerCallback):
    """On SIGTERM or Ctrl-C finish the step, save and stop; on a second Ctrl-C stop immediately.

    The last step is saved as well, whatever the run asks for: the work after it (solving test
    problems, the results of records, writing the final model) may fail.
    """

    def __init__(self, *, processes: int) -> None:
        self.signal_number: int | None = None
        self._interruptible = False
        # A terminal sends Ctrl-C to every process, and the launcher of several processes sends it
        # to them once more: there a second signal does not mean a second Ctrl-C.
        self._second_interrupts = processes == 1

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if any_process(self.signal_number is not None, args):
            control.should_save = control.should_training_stop = True
        elif state.global_step >= state.max_steps:
            control.should_save = True
        return control

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Handle the signals during the block, if this is the main thread.

        A Ctrl-C received during the block is raised as ``KeyboardInterrupt`` at its end.
        """
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
