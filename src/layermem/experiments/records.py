"""What one run recorded, read from its folder: validations, metrics, divergence, what it solves.

Only a run that reported a number that is not finite has diverged. One that was killed, or failed in
any other way, has not: it says nothing about what it was run for.

It does not know: how runs are trained, what they are compared with.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from layermem.config import Run
from layermem.results.answers import Answers
from layermem.results.files import read_result
from layermem.results.run_record import (
    EVERY_STEP_RIGHT,
    F1,
    LOSS,
    RIGHT_ANSWERS,
    Divergence,
    Metric,
    RunRecord,
    Validation,
)
from layermem.results.solved import Solved
from layermem.runs import RunFolder
from layermem.train.run_config import check_has_config, recorded_run
from layermem.typed_dicts import from_dict

_VALIDATION_FIELDS = [field.name for field in fields(Validation)]


def read_record(name: str, run: Run, folder: RunFolder) -> RunRecord:
    """Return everything a run recorded; what cannot be read is an error that names the folder."""
    with naming_damage(folder):
        rows, about = folder.rows(), recorded_about(folder)
        run_id = about.get("run_id") or run.id
        ended, diverged = folder.final.exists(), read_divergence(folder, run_id)
        validations = _finite_validations(rows)
        # Where the file is not there, pages say so; one that lacks its end is damaged.
        judged = ended and rows and not diverged
        speeds = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row]
        return RunRecord(
            name=name,
            folder=str(folder.path),
            run_id=run.id,
            variant=run.variant,
            seed=run.seed,
            steps=rows[-1]["step"] if rows else 0,
            max_steps=run.max_steps,
            ended=ended,
            diverged=diverged,
            metrics=read_metrics(folder, run) if judged else {},
            validations=validations,
            tokens_per_second=statistics.median(speeds) if speeds else None,
            # Before the final model is there, it may be of an attempt that did not count.
            solved=read_solved(folder, run_id) if ended else None,
            about={name: str(value) for name, value in about.items() if value is not None},
        )


def recorded_about(folder: RunFolder) -> dict[str, Any]:
    """Return what a run recorded beside its options: versions, commit, command, data."""
    check_has_config(folder)
    with naming_damage(folder):
        config = yaml.safe_load(folder.config.read_text(encoding="utf-8"))
        return dict(config.get("about") or {})


def read_divergence(folder: RunFolder, run_id: str) -> Divergence | None:
    """Return the step a run diverged at, and what was seen; None: it has not diverged.

    A run may have ended, or been left, with a validation loss that is not finite: older versions
    did not stop there.
    """
    if recorded := folder.divergence(run_id):
        return Divergence(step=recorded["step"], message=recorded["message"])
    rows = _validation_rows(folder)
    if rows and not math.isfinite(rows[-1]["val_loss"]):
        last = rows[-1]
        return Divergence(step=last["step"], message=f"the validation loss is {last['val_loss']}")
    return None


def read_metrics(folder: RunFolder, run: Run) -> dict[str, Metric]:
    """Return what an ended run is judged by: the validation of its last step, what it solves."""
    rows = _validation_rows(folder)
    if not rows or rows[-1]["step"] != run.max_steps:
        last = f"the last is of step {rows[-1]['step']}" if rows else "there is none at all"
        raise ValueError(
            f"{folder.path} has ended, but {folder.metrics.name} lacks the validation of its last "
            f"step {run.max_steps}: {last}; delete the folder to run it again"
        )
    metrics = {LOSS: Metric(value=float(rows[-1]["val_loss"]), is_share=False)}
    run_id = recorded_about(folder).get("run_id") or run.id
    if solved := read_solved(folder, run_id):
        metrics[RIGHT_ANSWERS] = Metric(value=solved.accuracy, is_share=True)
        if run.records.source is None:
            metrics[EVERY_STEP_RIGHT] = Metric(value=solved.steps, is_share=True)
    if folder.answers.exists():
        metrics[F1] = Metric(value=_read_f1(folder, run_id), is_share=True)
    return metrics


def _read_f1(folder: RunFolder, run_id: str) -> float:
    answers = read_result(Answers, folder.answers)
    if answers.run_id != run_id:
        raise ValueError(f"{folder.answers} is of run {answers.run_id}, its folder of run {run_id}")
    return answers.all.f1


def read_solved(folder: RunFolder, run_id: str) -> Solved | None:
    """Return what the final model of a run on a task solves; None: nothing is recorded."""
    if not folder.result.exists():
        return None
    try:
        solved = Solved.from_json(folder.result.read_text(encoding="utf-8"))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{folder.result} is damaged ({error}); delete the folder to run it again"
        ) from error
    if solved.run_id not in (None, run_id):
        raise ValueError(f"{folder.result} is of run {solved.run_id}, its folder of run {run_id}")
    return solved


def check_comparable(folders: Iterable[RunFolder]) -> None:
    """Raise where runs of one config learnt different data, from other weights or otherwise.

    A config says where data and the weights of a start lay, and may leave the precision to the
    machine. What has not recorded them (older versions did not) is taken to agree.
    """
    found: dict[str, dict[str, Path]] = {}
    for folder in folders:
        about, run = recorded_about(folder), recorded_run(folder)
        start = run.model.pretrained or run.host.model
        said = {
            "on different data": about.get("data"),
            "in other precisions": about.get("precision"),
            # Seeds may start from models of their own.
            f"from different weights of {start}": about.get("weights"),
        }
        for how, value in said.items():
            if value:
                found.setdefault(how, {}).setdefault(str(value), folder.path)
    for how, by_value in found.items():
        if len(by_value) > 1:
            raise ValueError(
                f"{' and '.join(map(str, by_value.values()))} were trained {how} under one config "
                f"({', '.join(by_value)}), so they cannot be compared; train one of them again in "
                "another --out"
            )


@contextmanager
def naming_damage(folder: RunFolder) -> Iterator[None]:
    """Turn what goes wrong in reading a run's folder into an error that names the folder."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{folder.path} holds files that are damaged or of another version "
            f"({type(error).__name__}: {error}); leave it out, or run it again"
        ) from error


def _validation_rows(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the rows that validations wrote, which must be in the order of their steps."""
    rows = folder.rows()
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError(
            f"{folder.metrics} has a row that is no object; delete {folder.path} to run it again"
        )
    rows = [row for row in rows if "val_loss" in row]
    for row in rows:
        step, loss = row.get("step"), row["val_loss"]
        if not isinstance(step, int) or not isinstance(loss, int | float):
            raise ValueError(
                f"{folder.metrics}: a validation must have a number as its step and as its "
                f"val_loss, got {step} and {loss}; delete {folder.path} to run it again"
            )
    for before, row in zip(rows, rows[1:], strict=False):
        if row["step"] < before["step"]:
            raise ValueError(
                f"{folder.metrics}: step {row['step']} comes after step {before['step']}, so the "
                "rows are of more than one run"
            )
    return rows


def _finite_validations(rows: list[dict[str, Any]]) -> tuple[Validation, ...]:
    """Return the validations whose numbers are all finite.

    JSON has no word for what is not finite; that a run came to it is said by its divergence.
    """
    counted = [row for row in rows if row.get("flops") and row.get("tokens")]
    flops_per_token = counted[-1]["flops"] / counted[-1]["tokens"] if counted else None
    validations = [_validation(row, flops_per_token) for row in rows if "val_loss" in row]
    return tuple(
        from_dict(Validation, values, "")
        for values in validations
        if all(map(math.isfinite, values.values()))
    )


def _validation(row: Mapping[str, float], flops_per_token: float | None) -> dict[str, float]:
    values = {name: row[name] for name in _VALIDATION_FIELDS if name in row}
    return values | ({"flops": row["tokens"] * flops_per_token} if flops_per_token else {})
