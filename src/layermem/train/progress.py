"""What a user sees of a run: one live line in a terminal, plain lines in a pipe.

It does not know: what is trained.
"""

import math
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

# Seconds between two lines in a pipe.
_PATIENCE = 15.0


class Progress(TrainerCallback):
    """Show the rows that the trainer logs."""

    def __init__(self, max_steps: int, console: Console | None = None) -> None:
        self.max_steps = max_steps
        self.console = console or Console(stderr=True)
        self._bar: Bar | None = None
        self._task: Any = None
        self._last_line = -math.inf
        self._shown = ""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if state.is_world_process_zero and self.console.is_terminal:
            self._bar = Bar(
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=self.max_steps, completed=state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        if not logs or not state.is_world_process_zero:
            return
        line = _line(logs)
        if self._bar is not None:
            if "val_loss" in logs:
                self._bar.console.print(line)
            else:
                self._bar.update(self._task, completed=state.global_step, description=line)
        elif "val_loss" in logs or time.monotonic() - self._last_line > _PATIENCE:
            self._last_line = time.monotonic()
            self.console.print(f"step {state.global_step}/{self.max_steps}  {line}")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _line(row: dict[str, float]) -> str:
    if "val_loss" in row:
        solved = f", {row['val_accuracy']:.1%} solved" if "val_accuracy" in row else ""
        return (
            f"validation loss {row['val_loss']:.4f}, perplexity {row['val_perplexity']:.2f}"
            f"{solved} after {row['tokens']:,.0f} tokens"
        )
    return (
        f"loss {row['loss']:.4f}  lr {row['lr']:.1e}  gradient {row['grad_norm']:.2f}  "
        f"{row['tokens_per_second']:,.0f} tokens/s"
    )
