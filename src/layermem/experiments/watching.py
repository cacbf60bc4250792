"""What a user sees of many runs at once: a bar for each in a terminal, plain lines in a pipe.

It does not know: processes, folders, what the runs are for.
"""

import logging
import math
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

logger = logging.getLogger(__name__)
# Seconds between two lines in a pipe.
_PATIENCE = 30.0


class Watch:
    """Shows runs as they go; ``close`` it at the end."""

    def __init__(self, count: int, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._rows: dict[str, tuple[int, Mapping[str, Any]]] = {}
        self._bars: dict[str, Any] = {}
        self._progress: Progress | None = None
        self._last_line = time.monotonic()
        if self.console.is_terminal and count:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[state]}"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self._progress.start()
            self._whole = self._progress.add_task("runs", total=count, state="")

    def begin(self, name: str, steps: int) -> None:
        """A run has begun."""
        self._rows[name] = steps, {}
        if self._progress is not None:
            self._bars[name] = self._progress.add_task(name, total=steps, state="starting")

    def update(self, name: str, row: Mapping[str, Any]) -> None:
        """A run has written a row."""
        steps, _ = self._rows[name]
        self._rows[name] = steps, row or self._rows[name][1]
        if self._progress is not None:
            self._progress.update(self._bars[name], completed=row.get("step", 0), state=_say(row))
        elif time.monotonic() - self._last_line > _PATIENCE:
            self._last_line = time.monotonic()
            states = (
                f"{each}: step {row.get('step', 0)}/{steps} {_say(row)}".rstrip()
                for each, (steps, row) in self._rows.items()
            )
            logger.info("%s", "; ".join(states))

    def end(self, name: str) -> None:
        """A run has ended."""
        del self._rows[name]
        if self._progress is not None:
            self._progress.remove_task(self._bars.pop(name))
            self._progress.advance(self._whole)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._progress is not None:
            self._progress.stop()


def _say(row: Mapping[str, Any]) -> str:
    loss = row.get("loss", row.get("val_loss", math.nan))
    return "" if math.isnan(loss) else f"loss {loss:.3f}"
