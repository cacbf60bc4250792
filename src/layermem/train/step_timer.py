"""How fast training steps are, whatever stands between them.

It does not know: what a step is.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import TrainerCallback


class Clock(TrainerCallback):
    """The time of training steps since a step, without what the clock is stopped for."""

    def __init__(self) -> None:
        self.start(0)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.start(state.global_step)

    def start(self, step: int) -> None:
        self._began_at, self._began = step, time.perf_counter()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Leave out the block; what the device still has to do must be waited for before."""
        before = time.perf_counter()
        yield
        self._began += time.perf_counter() - before

    def steps_per_second(self, step: int) -> float:
        return (step - self._began_at) / max(time.perf_counter() - self._began, 1e-9)
