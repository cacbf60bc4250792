"""A run that is asked to stop: signals, and all its processes at the same step.

It does not know: checkpoints, what is trained.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import TrainerCallback, TrainingArguments


class _Stopped(BaseException):
    """Asked to stop; not an Exception, so that nothing on the way catches it."""


class Stop(TrainerCallback):
    """On SIGTERM or Ctrl-C: finish the step, save, stop; on another Ctrl-C stop at once.

    ``saves_last``: the last step is saved too, since what comes after it may fail.
    """

    def __init__(self, *, saves_last: bool, processes: int) -> None:
        self.asked: int | None = None
        self._saves_last, self._at_once = saves_last, False
        # The launcher of several passes on what the terminal has sent them already.
        self._twice = processes == 1

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if anywhere(self.asked is not None, args):
            control.should_save = control.should_training_stop = True
        elif self._saves_last and state.global_step >= state.max_steps:
            control.should_save = True
        return control

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals for as long as the block lasts; only a main thread can.

        A Ctrl-C that was waited with is raised when the block ends.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        # What is ignored (a job in the background ignores Ctrl-C) stays so.
        taken = [number for number, handler in before.items() if handler != signal.SIG_IGN]
        for number in taken:
            signal.signal(number, self._ask)
        try:
            yield
        finally:
            for number in taken:
                signal.signal(number, before[number])
        if self.asked == signal.SIGINT:
            raise KeyboardInterrupt

    def unless_asked(self, work: Callable[[], None], args: TrainingArguments) -> bool:
        """Do what one process can leave at any moment; return whether it was done to its end."""
        done = False
        try:
            # A process that left at once would leave the others waiting for it in a collective.
            self._at_once = args.world_size == 1
            if not anywhere(self.asked is not None, args):
                work()
                done = True
        except _Stopped:
            pass
        finally:
            self._at_once = False
        return not anywhere(not done, args)

    def _ask(self, number: int, _: Any) -> None:
        if self._twice and number == self.asked == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = self.asked or number
        if self._at_once:
            raise _Stopped


def anywhere(flag: bool, args: TrainingArguments) -> bool:
    """Return whether the flag is up in any process; all must ask."""
    if args.world_size == 1:
        return flag
    shared = torch.tensor(int(flag), device=args.device)
    torch.distributed.all_reduce(shared)
    return bool(shared)
