"""The speed of training steps, without the time of validation and checkpointing between them.

It does not know: what a step does, what stands between two steps.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import TrainerCallback


class StepTimer(TrainerCallback):
    """Measure the time of training steps since a given step; other work pauses the timer."""

    def __init__(self) -> None:
        self.restart(0)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.restart(state.global_step)

    def restart(self, step: int) -> None:
        """Measure from now on, ``step`` being the number of steps done so far."""
        self._first_step, self._started = step, time.perf_counter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time of the block.

        Work that was queued on a device before the block must have been waited for.
        """
        paused_at = time.perf_counter()
        yield
        self._started += time.perf_counter() - paused_at

    def steps_per_second(self, step: int) -> float:
        """Return the mean speed up to ``step``, the number of steps done now."""
        return (step - self._first_step) / max(time.perf_counter() - self._started, 1e-9)
