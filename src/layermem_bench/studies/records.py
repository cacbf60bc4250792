"""What runs recorded, read from their folders, and where those of a plan are recorded.

Only a run that reported a number that is not finite has diverged. One that was killed, or failed in
any other way, has not: it says nothing about what it was run for.
"""

import logging
import math
import statistics
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml

from layermem_base.files import write_atomically
from layermem_bench.config.parts import Labels
from layermem_bench.config.run import Run, run_from_dict, to_dict
from layermem_bench.config.typed_dicts import from_dict
from layermem_bench.run.folder import (
    ERRORS,
    RunFolder,
    Solved,
    check_has_config,
    fields_digest,
    read_config,
    recorded_run,
)
from layermem_bench.run.run_config import check_same_run
from layermem_bench.studies.result import (
    BY_LEVEL,
    EVERY_STEP_RIGHT,
    LOSS,
    RIGHT_ANSWERS,
    RunRecord,
    State,
    Validation,
)

NOTE = "-- study: "
"""What begins a line of ERRORS that the run did not write itself."""
OWN_WORDS = ": "
"""Between how a run ended and the last line that it wrote itself."""
_VALIDATION_FIELDS = [field.name for field in fields(Validation)]
logger = logging.getLogger(__name__)


def add_labels(folder: RunFolder, labels: Labels) -> None:
    """Add to an ended run's config what a study counts it as: further conditions of its board, or
    all labels of a run that has none. A run of another board keeps its labels."""
    config, about = read_config(folder.config)
    known = run_from_dict(config).labels
    conditions = tuple(dict.fromkeys((*known.conditions, *labels.conditions)))
    if known.board not in ("", labels.board) or (known.board and known.arm != labels.arm):
        return
    if (now := replace(labels, conditions=conditions)) != known:
        config["labels"] = to_dict(now)
        about["digest"] = fields_digest(config)
        content = yaml.safe_dump({**config, "about": about}, sort_keys=False)
        write_atomically(folder.config, content)


def read_record(name: str, run: Run, folder: RunFolder) -> RunRecord:
    """Return everything a run recorded; what cannot be read is an error that names the folder."""
    with naming_damage(folder):
        rows, about = folder.rows(), recorded_about(folder)
        record = standing(name, run, folder)
        has_ended = record.state == "ended"
        speeds = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row]
        return replace(
            record,
            steps=rows[-1]["step"] if rows else 0,
            # Where the file of rows is gone, pages say so; one that lacks its end is damaged.
            metrics=read_metrics(folder, run) if has_ended and rows else {},
            validations=_finite_validations(rows),
            tokens_per_second=statistics.median(speeds) if speeds else None,
            # Before the final model is there, it may be of an attempt that did not count.
            solved=_read_solved(folder) if has_ended else None,
            about={name: str(value) for name, value in about.items() if value is not None},
        )


def standing(name: str, run: Run, folder: RunFolder) -> RunRecord:
    """Return where a run stands, with its labels, and of one that did not end what was seen."""
    state: State = "begun" if folder.metrics.exists() else "not begun"
    note = ""
    if (divergence := read_divergence(folder, run.id)) is not None:
        state, note = "diverged", divergence
    elif folder.final.exists():
        state = "ended"
    elif failure := read_failure(folder):
        state, note = "failed", failure
    return RunRecord(
        name=name,
        run_id=run.id,
        folder=str(folder.path),
        state=state,
        note=note,
        board=run.labels.board,
        conditions=run.labels.conditions,
        arm=run.labels.arm,
        seed=run.seed,
        max_steps=run.max_steps,
    )


def is_finished(run: Run, folder: RunFolder) -> bool:
    """Return whether nothing is to be done: the run has ended, or would diverge again."""
    return folder.final.exists() or folder.divergence(run.id) is not None


def check_usable(folder: RunFolder, run: Run) -> None:
    """Raise where a run's folder holds another run, or has lost what an ended one recorded."""
    if folder.rows() or folder.final.exists():
        check_same_run(folder, run)
    if folder.final.exists():
        read_metrics(folder, run)


def recorded_about(folder: RunFolder) -> dict[str, Any]:
    """Return what a run recorded beside its options: versions, commit, command, data."""
    check_has_config(folder)
    return read_config(folder.config)[1]


def read_divergence(folder: RunFolder, run_id: str) -> str | None:
    """Return at which step a run diverged, and what was seen; None: it has not diverged.

    A run may have been left with a last validation loss that is not finite.
    """
    if recorded := folder.divergence(run_id):
        return f"step {recorded['step']:,}: {recorded['message']}"
    rows = _validations(folder)
    if rows and not math.isfinite(rows[-1]["val_loss"]):
        return f"step {rows[-1]['step']:,}: the validation loss is {rows[-1]['val_loss']}"
    return None


def _validations(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the rows that validations wrote."""
    with naming_damage(folder):
        return [row for row in folder.rows() if row.get("val_loss") is not None]


def read_metrics(folder: RunFolder, run: Run) -> dict[str, float]:
    """Return what an ended run is judged by: the validation of its last step, what it solves."""
    validated = _validations(folder)
    if not validated or validated[-1]["step"] != run.max_steps:
        raise ValueError(
            f"{folder.path} has ended, but {folder.metrics.name} lacks the validation of its last "
            f"step {run.max_steps}; delete the folder to run it again"
        )
    metrics = {LOSS: float(validated[-1]["val_loss"])}
    if solved := _read_solved(folder):
        metrics[RIGHT_ANSWERS] = solved.accuracy
        metrics[EVERY_STEP_RIGHT] = solved.steps
        for name, levels in solved.by.items():
            for level, shares in levels.items() if len(levels) > 1 else ():
                metrics[f"{RIGHT_ANSWERS}{BY_LEVEL}{name}: {level}"] = shares.accuracy
    return metrics


def _read_solved(folder: RunFolder) -> Solved | None:
    """Return what the final model of a run on a task solves; None: nothing is recorded."""
    if not folder.result.exists():
        return None
    with naming_damage(folder):
        return Solved.from_json(folder.result.read_text(encoding="utf-8"))


def read_failure(folder: RunFolder) -> str | None:
    """Return how the last attempt at a run failed, and the last line that it wrote; None: it did
    not fail."""
    error = folder.path / ERRORS
    if folder.final.exists() or not error.exists():
        return None
    note, said = "", ""
    for line in error.read_text("utf-8", "replace").splitlines():
        if line.startswith(NOTE):
            note = line.removeprefix(NOTE)
            said = "" if note.startswith("begun") else said
        elif line.strip():
            # Without its own folder, equal failures of two runs read alike.
            said = line.strip().replace(str(folder.path), "RUN")
    if not note or note.startswith(("begun", "stopped")):
        return None
    return f"{note}{OWN_WORDS}{said}" if said else note


def check_comparable(folders: Iterable[RunFolder]) -> None:
    """Raise where runs of one board learnt different data, were asked other test problems, trained
    in other precisions or started from other weights of one model.

    A run that has not recorded them is taken to agree.
    """
    found: dict[str, dict[str, Path]] = {}
    for folder in folders:
        about, run, solved = recorded_about(folder), recorded_run(folder), _read_solved(folder)
        said = {
            "data": about.get("data"),
            "precisions": about.get("precision"),
            # Seeds may start from models of their own.
            f"weights of {run.model.pretrained or run.host.model}": about.get("weights"),
            "test problems": solved and (solved.problems or f"{solved.count} problems"),
        }
        for what, value in said.items():
            if value:
                found.setdefault(what, {}).setdefault(str(value), folder.path)
    for what, by_value in found.items():
        if len(by_value) > 1:
            raise ValueError(
                f"{' and '.join(map(str, by_value.values()))} are on one board and have different "
                f"{what} ({', '.join(by_value)}), so they cannot be compared: train one of them "
                "again in another --out"
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


def _finite_validations(rows: list[dict[str, Any]]) -> tuple[Validation, ...]:
    """Return the validations whose numbers are all finite: JSON has no word for others."""
    counted = [row for row in rows if row.get("flops") and row.get("tokens")]
    validations = []
    for row in (row for row in rows if "val_loss" in row):
        values = {name: row[name] for name in _VALIDATION_FIELDS if name in row}
        if counted:
            values["flops"] = row["tokens"] * (counted[-1]["flops"] / counted[-1]["tokens"])
        if all(map(math.isfinite, values.values())):
            validations.append(from_dict(Validation, values, ""))
    return tuple(validations)


def run_folders(root: Path) -> list[RunFolder]:
    """Return the run folders at a path and below it."""
    return [RunFolder(config.parent) for config in sorted(root.rglob(RunFolder(root).config.name))]


class RecordedRuns:
    """The ended runs below ``out``, where new ones are trained, by their ids."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._ended: dict[str, RunFolder] = {}
        for folder in run_folders(out):
            try:
                run = recorded_run(folder)
                if is_finished(run, folder):
                    self._ended.setdefault(run.id, folder)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                logger.warning("%s is left out: %s", folder.path, error)

    def folder_of(self, name: str, run: Run) -> RunFolder:
        """Return where a run is recorded, under whatever name, else where it is to be trained."""
        own = RunFolder(self.out / name)
        if own.final.exists():
            return own
        return self._ended.get(run.id, own)

    def path_of(self, name: str, run: Run) -> Path:
        """Return the path of that folder."""
        return self.folder_of(name, run).path
