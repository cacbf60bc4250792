"""Trainer callbacks that record learning rates and run a function when training begins.

It does not know: checkpoints, metrics, what is trained.
"""

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback


class LearningRateRecorder(TrainerCallback):
    """Record the learning rate of each parameter group that the last optimizer step used."""

    def __init__(self) -> None:
        self.learning_rates: list[float] = []

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Called after the optimizer's step and before the schedule sets the next learning rates.
        groups = kwargs["optimizer"].param_groups
        self.learning_rates = [float(group["lr"]) for group in groups]


class CallWhenTrainingBegins(TrainerCallback):
    """Call a function once a checkpoint is loaded and before the first step."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._function()
