"""What runs recorded, read from their folders, and where those of a plan are recorded.

Only a run that reported a number that is not finite has diverged. One that was killed, or failed in
any other way, has not: it says nothing about what it was run for.
"""

import hashlib
import json
import logging
import math
import os
import statistics
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from layermem_bench.config.run import Run, to_dict
from layermem_bench.config.typed_dicts import from_dict
from layermem_bench.results.run_folder import (
    ERRORS,
    RunFolder,
    check_has_config,
    read_config,
    recorded_run,
)
from layermem_bench.results.solved import Solved
from layermem_bench.results.study import (
    BY_LEVEL,
    EVERY_STEP_RIGHT,
    LOSS,
    RIGHT_ANSWERS,
    RunRecord,
    State,
    Validation,
)
from layermem_bench.train.run_config import check_same_run

NOTE = "-- study: "
"""What begins a line of that file which the run did not write itself."""
OWN_WORDS = ": "
"""Between how a run ended and the last line that it wrote itself."""
_VALIDATION_FIELDS = [field.name for field in fields(Validation)]


def read_record(name: str, run: Run, folder: RunFolder) -> RunRecord:
    """Return everything a run recorded; what cannot be read is an error that names the folder."""
    with naming_damage(folder):
        rows, about = folder.rows(), recorded_about(folder)
        record = standing(name, run, folder)
        speeds = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row]
        has_ended = record.state == "ended"
        return replace(
            record,
            steps=rows[-1]["step"] if rows else 0,
            # Where the file of rows is gone, pages say so; one that lacks its end is damaged.
            metrics=read_metrics(folder, run) if has_ended and rows else {},
            validations=_finite_validations(rows),
            tokens_per_second=statistics.median(speeds) if speeds else None,
            # Before the final model is there, it may be of an attempt that did not count.
            solved=read_solved(folder, about.get("run_id") or run.id) if has_ended else None,
            about={name: str(value) for name, value in about.items() if value is not None},
        )


def standing(name: str, run: Run, folder: RunFolder) -> RunRecord:
    """Return where a planned run stands, and of one that diverged or failed what was seen."""
    state: State = "begun" if folder.metrics.exists() else "not begun"
    note = ""
    divergence = read_divergence(folder, run.id) if folder.config.exists() else None
    if divergence is not None:
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
        seed=run.seed,
        max_steps=run.max_steps,
    )


def check_usable(folder: RunFolder, run: Run) -> None:
    """Raise where a run's folder holds another run, or has lost what an ended one recorded."""
    if folder.rows() or folder.final.exists():
        check_same_run(folder, run)
    if folder.final.exists():
        read_metrics(folder, run)


def recorded_about(folder: RunFolder) -> dict[str, Any]:
    """Return what a run recorded beside its options: versions, commit, command, data."""
    check_has_config(folder)
    with naming_damage(folder):
        return read_config(folder.config)[1]


def trained_on(run: Run) -> dict[str, Any]:
    """Return the fields of the part of a run's config that names what it was trained on."""
    return dict(to_dict(run)["task" if run.task.name else "data"])


def read_divergence(folder: RunFolder, run_id: str) -> str | None:
    """Return at which step a run diverged, and what was seen; None: it has not diverged.

    A run may have been left with a last validation loss that is not finite.
    """
    if recorded := folder.divergence(run_id):
        return f"step {recorded['step']:,}: {recorded['message']}"
    rows = _validation_rows(folder)
    if rows and not math.isfinite(rows[-1]["val_loss"]):
        return f"step {rows[-1]['step']:,}: the validation loss is {rows[-1]['val_loss']}"
    return None


def read_metrics(folder: RunFolder, run: Run) -> dict[str, float]:
    """Return what an ended run is judged by: the validation of its last step, what it solves."""
    rows = _validation_rows(folder)
    if not rows or rows[-1]["step"] != run.max_steps:
        last = f"the last is of step {rows[-1]['step']}" if rows else "there is none at all"
        raise ValueError(
            f"{folder.path} has ended, but {folder.metrics.name} lacks the validation of its last "
            f"step {run.max_steps}: {last}; delete the folder to run it again"
        )
    metrics = {LOSS: float(rows[-1]["val_loss"])}
    run_id = recorded_about(folder).get("run_id") or run.id
    if solved := read_solved(folder, run_id):
        metrics[RIGHT_ANSWERS] = solved.accuracy
        metrics[EVERY_STEP_RIGHT] = solved.steps
    for name, levels in solved.by.items() if solved else ():
        for level, shares in levels.items() if len(levels) > 1 else ():
            metrics[f"{RIGHT_ANSWERS}{BY_LEVEL}{name}: {level}"] = shares.accuracy
    return metrics


def _check_run_id(file: Path, run_id: str, of_folder: str) -> None:
    if run_id != of_folder:
        raise ValueError(f"{file} is of run {run_id}, its folder of run {of_folder}")


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
    _check_run_id(folder.result, solved.run_id or run_id, run_id)
    return solved


def read_failure(folder: RunFolder) -> str | None:
    """Return how the last attempt at a run failed, and the last line that it wrote; None: it did
    not fail."""
    error = folder.path / ERRORS
    if folder.final.exists() or not error.exists():
        return None
    lines = [line for line in error.read_text("utf-8", "replace").splitlines() if line.strip()]
    note, said = "", ""
    for line in lines:
        if line.startswith(NOTE):
            note = line.removeprefix(NOTE)
            said = "" if note.startswith("begun") else said
        else:
            # Without its own folder, equal failures of two runs read alike.
            said = line.strip().replace(str(folder.path), "RUN")
    if not note or note.startswith(("begun", "stopped")):
        return None
    return f"{note}{OWN_WORDS}{said}" if said else note


def check_comparable(folders: Iterable[RunFolder], *, of_one_board: bool = False) -> None:
    """Raise where runs of one config learnt different data, from other weights or otherwise; warn
    where code of plugins was another.

    A run that has not recorded them is taken to agree. ``of_one_board``: they were grouped by their
    data, which are not compared again.
    """
    found: dict[str, dict[str, Path]] = {}
    of_plugins: dict[str, Path] = {}
    for folder in folders:
        about, run = recorded_about(folder), recorded_run(folder)
        start = run.model.pretrained or run.host.model
        said = {
            "on different data": None if of_one_board else about.get("data"),
            "in other precisions": about.get("precision"),
            # Seeds may start from models of their own.
            f"from different weights of {start}": about.get("weights"),
        }
        if plugins := about.get("plugins"):
            of_plugins.setdefault(str(plugins), folder.path)
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

    if len(of_plugins) > 1:
        # What was changed may be something else in the file.
        logger.warning(
            "%s were trained with other code of plugins: if what they train was changed, train "
            "them all in another --out",
            " and ".join(map(str, of_plugins.values())),
        )


def data_of_config(run: Run) -> str:
    """Return what must be the same for losses to be comparable, as one text."""
    data = trained_on(run)
    data.pop("cache", None)
    # A pretrained model's tokenizer by its digest; by its name, if it is not on this machine.
    tokenizer = run.model.pretrained or run.host.model
    if tokenizer is not None and (file := Path(tokenizer, "tokenizer.json")).exists():
        tokenizer = hashlib.sha256(file.read_bytes()).hexdigest()
    return json.dumps([data, run.eval_blocks, tokenizer], sort_keys=True)


def check_same_text(records: Iterable[RunRecord]) -> None:
    """Raise where runs on one text, of whatever boards, recorded different digests of it."""
    found: dict[str, dict[str, str]] = {}
    for record in records:
        if record.state == "ended" and (digest := record.about.get("data")):
            of = data_of_config(recorded_run(RunFolder(record.folder)))
            found.setdefault(of, {}).setdefault(str(digest), record.folder)
    for by_digest in found.values():
        if len(by_digest) > 1:
            raise ValueError(
                f"{' and '.join(by_digest.values())} were trained on different data under one "
                f"config ({', '.join(by_digest)}), so their boards cannot be compared; train one "
                "of them again in another --out"
            )


def check_same_starts(folders: Iterable[RunFolder]) -> None:
    """Raise where runs started from one path at different weights."""
    found: dict[str, dict[str, Path]] = {}
    for folder in folders:
        run, weights = recorded_run(folder), recorded_about(folder).get("weights")
        model = run.model.pretrained or run.host.model
        if model and weights:
            found.setdefault(model, {}).setdefault(str(weights), folder.path)
    for model, by_weights in found.items():
        if len(by_weights) > 1:
            raise ValueError(
                f"{' and '.join(map(str, by_weights.values()))} started from different weights of "
                f"{model} ({', '.join(by_weights)}), so they cannot be compared: it was made anew "
                "in between; train those again that are of the older one"
            )


def check_test_problems(records: Iterable[RunRecord]) -> None:
    """Raise where models of one board solved different test problems."""
    solved = {record.name: record.solved for record in records if record.solved}
    mend = "; their shares cannot be compared: name runs that were tested on the same problems"
    by_count: dict[int, str] = {}
    for name, result in solved.items():
        by_count.setdefault(result.count, name)
    if len(by_count) > 1:
        (count, first), (other, name), *_ = by_count.items()
        raise ValueError(f"{first} solved {count} test problems and {name} {other}{mend}")
    by_problems = {result.problems: name for name, result in solved.items() if result.problems}
    if len(by_problems) > 1:
        names = " and ".join(by_problems.values())
        raise ValueError(f"{names} solved different test problems, by their result.json{mend}")
    by_solutions = {each.solutions: name for name, each in solved.items() if each.solutions}
    if len(by_solutions) > 1:
        names = " and ".join(by_solutions.values())
        raise ValueError(f"{names} were graded by different solutions of one set{mend}")


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
    mend = f"; delete {folder.path} to run it again"
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{folder.metrics} has a row that is no object{mend}")
    rows = [row for row in rows if "val_loss" in row]
    before, last = -1, math.nan
    for row in rows:
        step, loss = row.get("step"), row["val_loss"]
        if not isinstance(step, int) or not isinstance(loss, int | float):
            raise ValueError(
                f"{folder.metrics}: a validation must have a number as its step and as its "
                f"val_loss, got {step} and {loss}{mend}"
            )
        if loss < 0:
            raise ValueError(f"{folder.metrics}: a val_loss cannot be negative, got {loss}{mend}")
        is_last = loss == last or (math.isnan(loss) and math.isnan(last))
        if step < before or (step == before and not is_last):
            raise ValueError(
                f"{folder.metrics}: step {step} comes after step {before}, so the rows are of more "
                "than one run"
            )
        before, last = step, loss
    return rows


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


logger = logging.getLogger(__name__)


class RecordedRuns:
    """The runs below ``out``, where new ones are trained, and below further folders."""

    def __init__(self, out: Path, others: Iterable[Path] = ()) -> None:
        self.out = out
        self._ended: dict[str, RunFolder] = {}
        for root in (out, *others):
            if root != out and not root.is_dir():
                raise FileNotFoundError(f"{root} is no folder; name one that holds runs")
            for folder in _run_folders(root):
                try:
                    run = recorded_run(folder)
                    has_ended = folder.final.exists() or folder.divergence(run.id) is not None
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    logger.warning("%s is left out: %s", folder.path, error)
                    continue
                if has_ended:
                    self._ended.setdefault(run.id, folder)

    def folder_of(self, name: str, run: Run) -> RunFolder:
        """Return where a run is recorded, else where it is to be trained.

        A run that was begun elsewhere and has not ended is left alone: it may go on there.
        """
        own = RunFolder(self.out / name)
        if own.final.exists():
            return own
        return self._ended.get(run.id, own)

    def path_of(self, name: str, run: Run) -> Path:
        """Return the path of that folder."""
        return self.folder_of(name, run).path


def _run_folders(root: Path) -> Iterator[RunFolder]:
    """Yield the run folders below a folder, at any depth; there is none within another."""
    seen: set[Path] = set()
    for path, inner, files in os.walk(root, followlinks=True):
        # A link may lead back to where it lies in.
        if (real := Path(path).resolve()) in seen:
            inner.clear()
            continue
        seen.add(real)
        if RunFolder(path).config.name in files:
            yield RunFolder(path)
            inner.clear()
        inner[:] = sorted(name for name in inner if not name.startswith("."))
