"""What stops a run: SIGTERM, Ctrl-C, and numbers that are not finite."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from accelerate import Accelerator

from layermem_bench.run.processes import any_process


class NotFiniteError(RuntimeError):
    """The loss, the gradients or the weights are NaN or infinite."""


class _WorkInterrupted(BaseException):
    """Not an ``Exception``, so that no other code catches it."""


class StopOnSignal:
    """On SIGTERM or Ctrl-C the run stops after the step; on a second Ctrl-C, immediately."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._number: int | None = None
        self._interruptible = False

    @property
    def _is_alone(self) -> bool:
        return bool(self._accelerator.num_processes == 1)

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

    def run_unless_stopped(self, work: Callable[[], None]) -> bool:
        """Run ``work``, which a signal interrupts; return whether all processes completed it."""
        completed = False
        try:
            # With several processes, one that left immediately would leave the others waiting for
            # it in a collective operation.
            self._interruptible = self._is_alone
            if not self.is_asked_for():
                work()
                completed = True
        except _WorkInterrupted:
            pass
        finally:
            self._interruptible = False
        return not any_process(not completed, self._accelerator)

    def _handle(self, number: int, _: Any) -> None:
        # A terminal sends Ctrl-C to every process, and the launcher of several sends it once more.
        if self._is_alone and number == self._number == signal.SIGINT:
            raise KeyboardInterrupt
        self._number = self._number or number
        if self._interruptible:
            raise _WorkInterrupted
