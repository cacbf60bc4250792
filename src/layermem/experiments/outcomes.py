"""What became of a run: it ended, with what it is judged by, or it diverged, or neither.

Only a run that reported a number that is not finite has diverged. One that was killed, or failed in
any other way, has not: it says nothing about what it was run for.

It does not know: how runs are done, what they are compared with.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

import yaml

from layermem.config import Run
from layermem.runs import RunFolder


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One number of a run that has ended."""

    name: str
    """What it is called in a table."""
    is_share: bool
    """Whether it is written in percent."""


LOSS = Measure(name="validation loss", is_share=False)
ACCURACY = Measure(name="right answers", is_share=True)
STEPS = Measure(name="every step right", is_share=True)


def recorded_id(folder: RunFolder) -> str | None:
    """Return the id a run was carried out under, by the version that did it; None: not recorded."""
    config = yaml.safe_load(folder.config.read_text(encoding="utf-8"))
    found: str | None = (config.get("about") or {}).get("run_id")
    return found


def divergence(folder: RunFolder, run_id: str) -> dict[str, Any] | None:
    """Return the step a run diverged at, and what was seen; None: it has not diverged.

    A run may have ended, or been left, with a validation loss that is not finite: older versions
    did not stop there.
    """
    if noted := folder.divergence(run_id):
        return {"step": noted["step"], "message": noted["message"]}
    rows = _validations(folder)
    if rows and not math.isfinite(rows[-1]["val_loss"]):
        row = rows[-1]
        return {"step": row["step"], "message": f"the validation loss is {row['val_loss']}"}
    return None


def measures(folder: RunFolder, run: Run) -> dict[Measure, float]:
    """Return what an ended run is judged by: its last step's validation, the problems it solves."""
    rows = _validations(folder)
    if not rows or rows[-1]["step"] != run.max_steps:
        last = f"the last is of step {rows[-1]['step']}" if rows else "there is none at all"
        raise ValueError(
            f"{folder.path} has ended, but {folder.metrics.name} lacks the validation of its last "
            f"step {run.max_steps}: {last}; delete the folder to run it again"
        )
    found = {LOSS: float(rows[-1]["val_loss"])}
    if result := read_result(folder, recorded_id(folder) or run.id):
        found |= {ACCURACY: result["accuracy"], STEPS: result["steps"]}
    return found


def read_result(folder: RunFolder, run_id: str) -> dict[str, Any] | None:
    """Return what a task's model solves; None: nothing is recorded. It must be this run's."""
    if not folder.result.exists():
        return None
    try:
        result: dict[str, Any] = json.loads(folder.result.read_text(encoding="utf-8"))
        of = result.get("run_id", run_id)
        wrong = [name for name in ("accuracy", "steps") if not 0 <= result[name] <= 1]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{folder.result} is damaged ({type(error).__name__}: {error}); delete the folder to "
            "run it again"
        ) from error
    if of != run_id:
        raise ValueError(f"{folder.result} is of run {of}, its folder of run {run_id}")
    if wrong:
        raise ValueError(f"{folder.result}: {wrong[0]} must be from 0 to 1, is {result[wrong[0]]}")
    return result


def _validations(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the rows that validations wrote, which must be in the order of their steps."""
    rows = [row for row in folder.rows() if "val_loss" in row]
    for before, row in zip(rows, rows[1:], strict=False):
        if row["step"] < before["step"]:
            raise ValueError(
                f"{folder.metrics}: step {row['step']} comes after step {before['step']}, so the "
                "rows are of more than one run"
            )
    return rows
