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
from layermem_bench.results.run_folder import RunFolder

logger = logging.getLogger(__name__)
# Seconds between two lines in a pipe.
_SECONDS = 15.0


class _Display:
    """Bars with a text each in a terminal; in a pipe, the time at which the next line is due."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.is_shown = self.console.is_terminal
        columns = TextColumn("{task.description}"), MofNCompleteColumn(), BarColumn()
        text = TextColumn("{task.fields[text]}")
        self.bars = Progress(
            *columns, text, TimeRemainingColumn(), console=self.console, disable=not self.is_shown
        )
        self._last_line = -math.inf
        self._until_the_end = ExitStack()

    def start(self) -> None:
        if self.is_shown:
            before = sys.stderr
            self._until_the_end.enter_context(self.bars)
            self._until_the_end.enter_context(logs_above(before))

    def close(self) -> None:
        """Stop the bars and restore the terminal."""
        self._until_the_end.close()

    def is_line_due(self) -> bool:
        """Return whether the last line in a pipe is long enough ago; if so, it is now."""
        is_due = not self.is_shown and time.monotonic() - self._last_line > _SECONDS
        if is_due:
            self._last_line = time.monotonic()
        return is_due


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


class RunProgress:
    """Shows the rows of metrics of one run, in the process that calls ``show``."""

    def __init__(self, max_steps: int, step: int, console: Console | None = None) -> None:
        self._display, self._max_steps, self._step = _Display(console), max_steps, step

    def __enter__(self) -> "RunProgress":
        return self

    def __exit__(self, *_: object) -> None:
        self._display.close()

    def show(self, row: Mapping[str, float]) -> None:
        """Show a row: a validation's always, a step's on the bar or where a line is due."""
        display, line, validated = self._display, _row_line(row), "val_loss" in row
        if not display.bars.tasks:
            display.start()
            display.bars.add_task("step", total=self._max_steps, completed=self._step, text="")
        if validated or display.is_line_due():
            display.console.print(f"step {row['step']}/{self._max_steps}  {line}")
        if not validated:
            display.bars.update(display.bars.task_ids[0], completed=row["step"], text=line)


class RunsProgress(_Display):
    """Shows several runs that are trained at once; call ``close`` at the end."""

    def __init__(self, count: int, console: Console | None = None) -> None:
        super().__init__(console)
        self._rows: dict[str, tuple[int, Mapping[str, Any]]] = {}
        self._all_runs = self.bars.add_task("runs", total=count, text="")
        if count:
            self.start()

    def begin(self, name: str, steps: int) -> None:
        """Add a run that begins."""
        self._rows[name] = steps, {}

    def update(self, name: str, row: Mapping[str, Any]) -> None:
        """Show the newest row of metrics of a run; empty where there is none."""
        steps, last_row = self._rows[name]
        self._rows[name] = steps, row or last_row
        # Of many runs that a cluster has yet to begin, nothing is shown.
        begun = {name: (steps, row) for name, (steps, row) in self._rows.items() if row}
        states = [
            f"{n}: step {r['step']}/{s} {_loss_text(r)}".rstrip() for n, (s, r) in begun.items()
        ]
        self.bars.update(self._all_runs, text="; ".join(states))
        if states and self.is_line_due():
            logger.info("%s", "; ".join(states))

    def end(self, name: str) -> None:
        """Remove a run that has ended, and count it."""
        del self._rows[name]
        self.bars.advance(self._all_runs)


def _row_line(row: Mapping[str, float]) -> str:
    if "val_loss" in row:
        solved = f", {row['val_accuracy']:.1%} solved" if "val_accuracy" in row else ""
        loss = f"validation loss {row['val_loss']:.4f}, perplexity {row['val_perplexity']:.2f}"
        return f"{loss}{solved} after {row['tokens']:,.0f} tokens"
    return (
        f"loss {row['loss']:.4f}  lr {row['lr']:.1e}  gradient {row['grad_norm']:.2f}  "
        f"{row['tokens_per_second']:,.0f} tokens/s"
    )


def _loss_text(row: Mapping[str, Any]) -> str:
    loss = row.get("loss", row.get("val_loss", math.nan))
    return "" if math.isnan(loss) else f"loss {loss:.3f}"


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
