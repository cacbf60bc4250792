"""How runs are shown: bars in a terminal, lines in a pipe, and a tracker, Weights & Biases."""

import importlib
import logging
import math
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
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

from layermem_base.files import write_atomically
from layermem_bench.results.run_folder import RunFolder

logger = logging.getLogger(__name__)
# Seconds between two lines in a pipe, of one run and of many.
_RUN_SECONDS, _RUNS_SECONDS = 15.0, 30.0
# Of more runs at once than these, only those are shown that have a step.
_FEW_RUNS = 16


class _Display:
    """Bars in a terminal; in a pipe nothing but the time at which the next line is due."""

    def __init__(
        self, console: Console | None, seconds: float, last_line: float, *columns: ProgressColumn
    ) -> None:
        self.console = console or Console(stderr=True)
        self.is_shown = self.console.is_terminal
        columns = (*columns, TimeRemainingColumn())
        self.bars = Progress(*columns, console=self.console, disable=not self.is_shown)
        self._seconds, self._last_line = seconds, last_line
        self._until_the_end = ExitStack()

    def start(self) -> None:
        """Show bars, if this is a terminal."""
        if self.is_shown:
            before = sys.stderr
            self._until_the_end.enter_context(self.bars)
            self._until_the_end.enter_context(logs_above(before))

    def stop(self) -> None:
        """Stop the bars and restore the terminal."""
        self._until_the_end.close()

    def write_line(self, write: Callable[[], None], *, now: bool = False) -> None:
        """Call ``write`` if the last line is long enough ago, or ``now``."""
        if now or time.monotonic() - self._last_line > self._seconds:
            self._last_line = time.monotonic()
            write()


@contextmanager
def logs_above(before: Any) -> Iterator[None]:
    """Have loggers write above the bars of Rich, which a line of theirs would be wiped with.

    Rich has put a stream of its own in place of stderr, and loggers hold the one ``before``.
    """
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = {h: None for logger in loggers for h in getattr(logger, "handlers", ())}
    streams = [h for h in handlers if isinstance(h, logging.StreamHandler)]
    moved = [h for h in streams if h.stream is before is not sys.stderr]
    for handler in moved:
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        for handler in moved:
            handler.setStream(before)


class RunProgress(TrainerCallback):
    """Show the rows of metrics that the trainer of one run logs."""

    def __init__(self, max_steps: int, console: Console | None = None) -> None:
        self.max_steps = max_steps
        columns = TextColumn("step"), MofNCompleteColumn(), BarColumn()
        description = TextColumn("{task.description}")
        # The first row is written immediately.
        self._display = _Display(console, _RUN_SECONDS, -math.inf, *columns, description)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            bars, done = self._display.bars, state.global_step
            self._display.start()
            self._bar = bars.add_task("", total=self.max_steps, completed=done)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if not logs or not state.is_world_process_zero:
            return
        line, validated, bars = _row_line(logs), "val_loss" in logs, self._display.bars
        if not self._display.is_shown:
            line = f"step {state.global_step}/{self.max_steps}  {line}"
            self._display.write_line(lambda: bars.console.print(line), now=validated)
        elif validated:
            bars.console.print(line)
        else:
            bars.update(self._bar, completed=state.global_step, description=line)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._display.stop()


class RunsProgress:
    """Show several runs that are trained at once; call ``close`` at the end."""

    def __init__(self, count: int, console: Console | None = None) -> None:
        description, state = TextColumn("{task.description}"), TextColumn("{task.fields[state]}")
        columns = description, BarColumn(), MofNCompleteColumn(), state
        self._display = _Display(console, _RUNS_SECONDS, time.monotonic(), *columns)
        self._rows: dict[str, tuple[int, Mapping[str, Any]]] = {}
        self._bars: dict[str, TaskID] = {}
        self._all_runs = self._display.bars.add_task("runs", total=count, state="")
        if count:
            self._display.start()

    def begin(self, name: str, steps: int) -> None:
        """Add a run that begins."""
        self._rows[name] = steps, {}
        # Of the many that a cluster has yet to begin, no bar is shown.
        self._bars[name] = self._display.bars.add_task(
            name, total=steps, state="starting", visible=len(self._rows) <= _FEW_RUNS
        )

    def update(self, name: str, row: Mapping[str, Any]) -> None:
        """Show the newest row of metrics of a run; empty where there is none."""
        steps, last_row = self._rows[name]
        self._rows[name] = steps, row or last_row
        step, state = row.get("step", 0), _loss_text(row)
        shown = True if row else None
        self._display.bars.update(self._bars[name], completed=step, state=state, visible=shown)
        if not self._display.is_shown:
            self._display.write_line(self._log_states)

    def _log_states(self) -> None:
        is_few = len(self._rows) <= _FEW_RUNS
        states = [
            f"{name}: step {row.get('step', 0)}/{steps} {_loss_text(row)}".rstrip()
            for name, (steps, row) in self._rows.items()
            if row or is_few
        ]
        if waiting := len(self._rows) - len(states):
            states.append(f"{waiting} have no step yet")
        logger.info("%s", "; ".join(states))

    def end(self, name: str) -> None:
        """Remove a run that has ended, and count it."""
        del self._rows[name]
        self._display.bars.remove_task(self._bars.pop(name))
        self._display.bars.advance(self._all_runs)

    def close(self) -> None:
        """Stop the bars and restore the terminal."""
        self._display.stop()


def _row_line(row: Mapping[str, float]) -> str:
    if "val_loss" in row:
        shown = {
            "val_loss": "validation loss {:.4f}",
            "val_perplexity": "perplexity {:.2f}",
            "val_accuracy": "{:.1%} solved",
        }
        texts = [text.format(row[name]) for name, text in shown.items() if name in row]
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
    """Keep the tracked run of a folder open during the block, unless one is open already.

    transformers' callback would start a new run in every process, and keep it open afterwards. The
    id is drawn once and kept in ``wandb.txt``, but WANDB_RUN_ID takes precedence.
    """
    # Imported here, since it is an optional dependency that only tracked runs need.
    wandb: Any = importlib.import_module("wandb")
    if wandb.run is not None:
        yield
        return
    identity = {}
    if "WANDB_RUN_ID" not in os.environ:
        path = folder.path / "wandb.txt"
        if not path.exists():
            write_atomically(path, secrets.token_hex(4) + "\n")
        identity = {"id": path.read_text(encoding="utf-8").strip(), "resume": "allow"}
    project, name = os.getenv("WANDB_PROJECT", folder.project), folder.path.name
    wandb.init(project=project, name=name, **identity)
    try:
        yield
    finally:
        wandb.finish()
