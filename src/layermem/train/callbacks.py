"""Callbacks of the trainer that only look: the rates a step used, the moment training begins.

It does not know: checkpoints, metrics, what is trained.
"""

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback


class UsedRates(TrainerCallback):
    """The rate of each parameter group that the last optimiser step used."""

    def __init__(self) -> None:
        self.used: list[float] = []

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # After the optimiser's step, and before the schedule's.
        self.used = [float(group["lr"]) for group in kwargs["optimizer"].param_groups]


class AtBegin(TrainerCallback):
    """Does something once everything is loaded, before the first step."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._work()
