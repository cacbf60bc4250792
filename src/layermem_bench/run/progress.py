"""How runs are shown: bars in a terminal, lines in a pipe, and trackers of accelerate."""

import logging
import math
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from layermem_base.files import write_atomically
from layermem_bench.config.run import Run
from layermem_bench.run.folder import RunFolder

# Seconds between two lines in a pipe.
_SECONDS = 15.0


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


class RunsProgress:
    """Shows the rows of metrics of runs that are trained at once; call ``close`` at the end."""

    def __init__(self, count: int = 1, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        columns = TextColumn("{task.description}"), MofNCompleteColumn(), BarColumn()
        text = TextColumn("{task.fields[text]}")
        self.bars = Progress(
            *columns,
            text,
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._bars: dict[str, Any] = {}
        self._rows: dict[str, Mapping[str, Any]] = {}
        self._all_runs = self.bars.add_task("runs", total=count, text="", visible=count > 1)
        self._last_line = -math.inf
        self._until_the_end = ExitStack()
        if self.console.is_terminal and count:
            before = sys.stderr
            self._until_the_end.enter_context(self.bars)
            self._until_the_end.enter_context(logs_above(before))

    def begin(self, name: str, steps: int, step: int = 0) -> None:
        """Add a run that begins, or goes on from a step."""
        self._bars[name] = self.bars.add_task(name, total=steps, completed=step, text="")

    def update(self, name: str, row: Mapping[str, Any]) -> None:
        """Show the newest row of metrics of a run, if it is new: a validation on a line, a step on
        the bar, or in a pipe on a line now and then; empty where there is none."""
        if not row or row == self._rows.get(name):
            return
        self._rows[name], line, now = row, _row_line(row), time.monotonic()
        self.bars.update(self._bars[name], completed=row["step"], text=line)
        is_due = not self.console.is_terminal and now - self._last_line > _SECONDS
        if is_due or "val_loss" in row:
            self.console.print(f"{name}: step {row['step']}  {line}", highlight=False)
        self._last_line = now if is_due else self._last_line

    def end(self, name: str) -> None:
        """Remove a run that has ended, and count it."""
        self.bars.remove_task(self._bars.pop(name))
        self.bars.advance(self._all_runs)

    def close(self) -> None:
        """Stop the bars and restore the terminal."""
        self._until_the_end.close()


def _row_line(row: Mapping[str, float]) -> str:
    if "val_loss" in row:
        solved = f", {row['val_accuracy']:.1%} solved" if "val_accuracy" in row else ""
        return f"validation loss {row['val_loss']:.4f}{solved}"
    speed = f"  {row['tokens_per_second']:,.0f} tokens/s" if "tokens_per_second" in row else ""
    return f"loss {row['loss']:.4f}{speed}"


def check_trackers(run: Run) -> None:
    """Raise where the run names a tracker that is not installed."""
    there = {str(name) for name in get_available_trackers()}
    if absent := [name for name in run.track if name not in there]:
        raise ValueError(f"track={absent[0]} is not installed: pip install layermem[track]")


@contextmanager
def open_trackers(accelerator: Accelerator, run: Run, folder: RunFolder) -> Iterator[None]:
    """Keep the run's trackers open during the block; a resumed run goes on in the same record."""
    if run.track:
        options = {"name": folder.path.name, "resume": "allow"}
        of_wandb = {**options, "id": _kept_id(folder)} if "wandb" in run.track else {}
        trackers = {"wandb": of_wandb, "trackio": options}
        accelerator.init_trackers(folder.project, init_kwargs=trackers)
    try:
        yield
    finally:
        for tracker in accelerator.trackers:
            tracker.finish()


def _kept_id(folder: RunFolder) -> str:
    """Return the id of the run's record at Weights & Biases, which is drawn once."""
    path = folder.path / "wandb.txt"
    if not path.exists():
        write_atomically(path, secrets.token_hex(4) + "\n")
    return path.read_text(encoding="utf-8").strip()
