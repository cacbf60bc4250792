"""The rows of metrics.jsonl: what they record, and how they are shown.

Bars in a terminal, lines in a pipe, trackers of accelerate.
"""

import math
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from layermem.models.lime_router import LimeRouter
from layermem.models.routers import router_metrics
from layermem_base.files import write_atomically
from layermem_bench.config.computing import peak_flops_of
from layermem_bench.config.counting import count_forward_flops
from layermem_bench.config.run import Run
from layermem_bench.run.folder import RunFolder
from layermem_bench.run.optimizer import DECAYED, PLAIN, is_ours

# How the groups of LIMe's routers are named, beside which a pair has others.
_ROUTER = LimeRouter.__name__
# Seconds between two lines in a pipe.
_SECONDS = 15.0


def variant_metrics(model: Any) -> dict[str, float]:
    """Return what a variant computes from its own parameters, or what attached routers are like."""
    compute = model.variant.metrics if is_ours(model) else router_metrics
    return dict(compute(model))


def training_row(loss: float, grad_norm: float, rates: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of training; ``rates``: the learning rate of each parameter group."""
    overridden = [rate for name, rate in rates.items() if name not in (DECAYED, PLAIN)]
    # Where nothing else is trained, the rate is that of what the variant has added.
    rate = rates[DECAYED] if DECAYED in rates else overridden[0]
    of_routers = (rate for name, rate in rates.items() if name.startswith(_ROUTER))
    router_lr = next(of_routers, overridden[0] if overridden else rate)
    return {"loss": loss, "lr": rate, "grad_norm": grad_norm, "router_lr": router_lr}


class Speed:
    """Measures the speed of training steps since a given step; other work pauses it."""

    def __init__(self, model: Any, batch: int, length: float, accelerator: Accelerator) -> None:
        """``length``: the mean tokens of a sequence."""
        self.tokens, device = batch * length, accelerator.device
        # FLOPs that all devices of the run can compute in a second, by the data sheet.
        on_gpu = device.type == "cuda"
        peak = peak_flops_of(torch.cuda.get_device_name(device)) if on_gpu else None
        self._peak = peak and peak * accelerator.num_processes
        # A backward has the FLOPs of two forwards. Of models of transformers none are counted.
        self._flops = 0
        if is_ours(model):
            self._flops = 3 * count_forward_flops(model.config, model.variant, round(length))
        self.restart(0)

    def restart(self, step: int) -> None:
        """Measure from now on, ``step`` being the number of steps done so far."""
        self._first_step, self._started = step, time.perf_counter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time of the block, before which the device must have been waited for."""
        paused_at = time.perf_counter()
        yield
        self._started += time.perf_counter() - paused_at

    def row(self, step: int) -> dict[str, float]:
        """Return the FLOPs of all steps up to ``step``, which is done now, and the mean speed."""
        seconds = max(time.perf_counter() - self._started, 1e-9)
        tokens_per_second = (step - self._first_step) / seconds * self.tokens
        row = {"tokens_per_second": tokens_per_second}
        if self._flops:
            row["flops"] = round(step * self.tokens * self._flops)
        if self._flops and self._peak:
            row["model_flops_use"] = tokens_per_second * self._flops / self._peak
        return row


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
        if self.console.is_terminal and count:
            self.bars.start()

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
        self.bars.stop()


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


def open_trackers(accelerator: Accelerator, run: Run, folder: RunFolder) -> None:
    """Open the run's trackers; a resumed run goes on in the same record."""
    if run.track:
        options = {"name": folder.path.name, "resume": "allow"}
        of_wandb = {**options, "id": _kept_id(folder)} if "wandb" in run.track else {}
        trackers = {"wandb": of_wandb, "trackio": options}
        accelerator.init_trackers(folder.project, init_kwargs=trackers)


def _kept_id(folder: RunFolder) -> str:
    """Return the id of the run's record at Weights & Biases, which is drawn once."""
    path = folder.path / "wandb.txt"
    if not path.exists():
        write_atomically(path, secrets.token_hex(4) + "\n")
    return path.read_text(encoding="utf-8").strip()
