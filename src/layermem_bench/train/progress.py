"""How runs are shown: bars in a terminal, lines in a pipe, and a tracker, Weights & Biases."""

import importlib
import logging
import math
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from transformers import TrainerCallback

from layermem.models.files import write_atomically
from layermem_bench.results.run_folder import RunFolder

logger = logging.getLogger(__name__)
# Seconds between two lines in a pipe, of one run and of many.
_RUN_SECONDS, _RUNS_SECONDS = 15.0, 30.0


class _Display:
    """Bars in a terminal; in a pipe nothing but the time at which the next line is due."""

    def __init__(self, console: Console | None, seconds: float, last_line: float) -> None:
        self.console = console or Console(stderr=True)
        self.bars: Progress | None = None
        self._seconds, self._last_line = seconds, last_line
        self._moved: list[tuple[logging.StreamHandler[Any], Any]] = []

    def start(self, *columns: ProgressColumn) -> None:
        """Show bars, if this is a terminal."""
        if self.console.is_terminal:
            self.bars = Progress(*columns, TimeRemainingColumn(), console=self.console)
            before = sys.stderr
            self.bars.start()
            # Rich has put a stream of its own in place of stderr, which writes above the bars. What
            # loggers hold is the one before.
            handlers = [h for h in _stream_handlers() if h.stream is before]
            self._moved = [(handler, handler.setStream(sys.stderr)) for handler in handlers]

    def stop(self) -> None:
        """Stop the bars and restore the terminal."""
        if self.bars is not None:
            self.bars.stop()
        for handler, stream in self._moved:
            handler.setStream(stream)
        self._moved = []

    def write_line(self, write: Callable[[], None], *, now: bool = False) -> None:
        """Call ``write`` if the last line is long enough ago, or ``now``."""
        if now or time.monotonic() - self._last_line > self._seconds:
            self._last_line = time.monotonic()
            write()


def _stream_handlers() -> list[logging.StreamHandler[Any]]:
    """Return the handlers of all loggers, libraries' too, that write to a stream."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = {h: None for logger in loggers for h in getattr(logger, "handlers", ())}
    return [handler for handler in handlers if isinstance(handler, logging.StreamHandler)]


class RunProgress(TrainerCallback):
    """Show the rows of metrics that the trainer of one run logs."""

    def __init__(self, max_steps: int, console: Console | None = None) -> None:
        self.max_steps = max_steps
        # The first row is written immediately.
        self._display = _Display(console, _RUN_SECONDS, last_line=-math.inf)
        self._bar = TaskID(0)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        description = TextColumn("{task.description}")
        self._display.start(TextColumn("step"), MofNCompleteColumn(), BarColumn(), description)
        if bars := self._display.bars:
            self._bar = bars.add_task("", total=self.max_steps, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if not logs or not state.is_world_process_zero:
            return
        line, validated = _row_line(logs), "val_loss" in logs
        if bars := self._display.bars:
            if validated:
                bars.console.print(line)
            else:
                bars.update(self._bar, completed=state.global_step, description=line)
            return
        line = f"step {state.global_step}/{self.max_steps}  {line}"
        self._display.write_line(lambda: self._display.console.print(line), now=validated)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._display.stop()


class RunsProgress:
    """Show several runs that are trained at once; call ``close`` at the end."""

    def __init__(self, count: int, console: Console | None = None) -> None:
        self._display = _Display(console, _RUNS_SECONDS, last_line=time.monotonic())
        self._rows: dict[str, tuple[int, Mapping[str, Any]]] = {}
        self._bars: dict[str, TaskID] = {}
        if count:
            state = TextColumn("{task.fields[state]}")
            description = TextColumn("{task.description}")
            self._display.start(description, BarColumn(), MofNCompleteColumn(), state)
        if bars := self._display.bars:
            self._all_runs = bars.add_task("runs", total=count, state="")

    def begin(self, name: str, steps: int) -> None:
        """Add a run that begins."""
        self._rows[name] = steps, {}
        if bars := self._display.bars:
            self._bars[name] = bars.add_task(name, total=steps, state="starting")

    def update(self, name: str, row: Mapping[str, Any]) -> None:
        """Show the newest row of metrics of a run; empty where there is none."""
        steps, last_row = self._rows[name]
        self._rows[name] = steps, row or last_row
        if bars := self._display.bars:
            state = _loss_text(row)
            bars.update(self._bars[name], completed=row.get("step", 0), state=state)
        else:
            self._display.write_line(self._log_states)

    def _log_states(self) -> None:
        states = (
            f"{name}: step {row.get('step', 0)}/{steps} {_loss_text(row)}".rstrip()
            for name, (steps, row) in self._rows.items()
        )
        logger.info("%s", "; ".join(states))

    def end(self, name: str) -> None:
        """Remove a run that has ended, and count it."""
        del self._rows[name]
        if bars := self._display.bars:
            bars.remove_task(self._bars.pop(name))
            bars.advance(self._all_runs)

    def close(self) -> None:
        """Stop the bars and restore the terminal."""
        self._display.stop()


def _row_line(row: Mapping[str, float]) -> str:
    if "val_loss" in row:
        texts = [f"validation loss {row['val_loss']:.4f}"]
        if "val_perplexity" in row:
            texts.append(f"perplexity {row['val_perplexity']:.2f}")
        if "val_accuracy" in row:
            texts.append(f"{row['val_accuracy']:.1%} solved")
        if "val_f1" in row:
            texts.append(f"F1 {row['val_f1']:.1%}")
        return f"{', '.join(texts)} after {row['tokens']:,.0f} tokens"
    return (
        f"loss {row['loss']:.4f}  lr {row['lr']:.1e}  gradient {row['grad_norm']:.2f}  "
        f"{row['tokens_per_second']:,.0f} tokens/s"
    )


def _loss_text(row: Mapping[str, Any]) -> str:
    loss = row.get("loss", row.get("val_loss", math.nan))
    return "" if math.isnan(loss) else f"loss {loss:.3f}"


@contextmanager
def open_wandb_run(folder: RunFolder) -> Iterator[None]:
    """Keep the tracked run of a folder open during the block; a run that is open already is kept.

    transformers' callback would start a new run in every process, and keep it open afterwards. The
    id is drawn once and kept in ``wandb.txt`` (a copy of a folder is the same run). Steps after
    the checkpoint are logged again. WANDB_RUN_ID and WANDB_RESUME take precedence.
    """
    # Imported here, since it is an optional dependency that only tracked runs need.
    wandb: Any = importlib.import_module("wandb")
    if wandb.run is not None:
        yield
        return
    project, name = os.getenv("WANDB_PROJECT", "huggingface"), folder.path.name
    wandb.init(project=project, name=name, **_wandb_identity(folder))
    try:
        yield
    finally:
        wandb.finish()


def _wandb_identity(folder: RunFolder) -> dict[str, Any]:
    if "WANDB_RUN_ID" in os.environ:
        return {}
    path = folder.path / "wandb.txt"
    if not path.exists():
        write_atomically(path, secrets.token_hex(4) + "\n")
    return {"id": path.read_text(encoding="utf-8").strip(), "resume": "allow"}
