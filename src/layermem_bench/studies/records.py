"""Run folders -> rows of runs with their labels: where each stands, and what it recorded.

Only a run that reported a number that is not finite has diverged. One that was killed, or failed in
any other way, has not: it says nothing about what it was run for.
"""

import logging
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
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
logger = logging.getLogger(__name__)
# Of a run's training loss, at most.
_PARTS = 20


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """A run with its labels, where it lies, and what it recorded."""

    run: Run
    folder: RunFolder
    record: RunRecord

    @classmethod
    def read(cls, name: str, run: Run, folder: RunFolder) -> "Labelled":
        """Return a run with what it recorded in a folder."""
        return cls(run=run, folder=folder, record=read_record(name, run, folder))


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

    def has_ended(self, run: Run) -> bool:
        """Return whether a run had ended when these were read."""
        return run.id in self._ended

    def path_of(self, name: str, run: Run) -> Path:
        """Return the path of that folder."""
        return self.folder_of(name, run).path

    def read(self, name: str, run: Run) -> Labelled:
        """Return a planned run with what it recorded, wherever it lies and stands."""
        return Labelled.read(name, run, self.folder_of(name, run))


def run_folders(root: Path) -> list[RunFolder]:
    """Return the run folders at a path and below it."""
    return [RunFolder(config.parent) for config in sorted(root.rglob(RunFolder(root).config.name))]


def add_labels(folder: RunFolder, labels: Labels) -> None:
    """Add to an ended run's config what a study counts it as: further conditions of its board, or
    all labels of a run that has none. A run of another board keeps its labels."""
    config, about = read_config(folder.config)
    known = run_from_dict(config).labels
    conditions = tuple(dict.fromkeys((*known.conditions, *labels.conditions)))
    is_here = not known.board or (known.board, known.arm) == (labels.board, labels.arm)
    if is_here and (now := replace(labels, conditions=conditions)) != known:
        config["labels"] = to_dict(now)
        about["digest"] = fields_digest(config)
        content = yaml.safe_dump({**config, "about": about}, sort_keys=False)
        write_atomically(folder.config, content)


def check_comparable(members: Iterable[Labelled]) -> None:
    """Raise where runs of one board learnt different data, were asked other test problems, trained
    in other precisions or started from other weights of one model.

    A run that has not recorded them is taken to agree.
    """
    found: dict[str, dict[str, str]] = {}
    for each in members:
        run, record, solved = each.run, each.record, each.record.solved
        said = {
            "data": record.about.get("data"),
            "precisions": record.about.get("precision"),
            # Seeds may start from models of their own.
            f"weights of {run.model.pretrained or run.host.model}": record.about.get("weights"),
            "test problems": solved and (solved.problems or f"{solved.count} problems"),
        }
        for what, value in said.items():
            if value:
                found.setdefault(what, {}).setdefault(value, record.folder)
    for what, by_value in found.items():
        if len(by_value) > 1:
            raise ValueError(
                f"{' and '.join(by_value.values())} are on one board and have different {what} "
                f"({', '.join(by_value)}), so they cannot be compared: train one of them again in "
                "another --out"
            )


def read_record(name: str, run: Run, folder: RunFolder) -> RunRecord:
    """Return where a run stands, and everything it recorded, with its labels; what cannot be read
    is an error that names the folder."""
    with naming_damage(folder):
        rows, (state, note) = folder.rows(), _state(run, folder)
        about = read_config(folder.config)[1] if folder.config.exists() else {}
        speeds = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row]
        validations = _validations(rows)
        # Before the final model is there, it may be of an attempt that did not count.
        is_solved = state == "ended" and folder.result.exists()
        solved = Solved.from_json(folder.result.read_text("utf-8")) if is_solved else None
        return RunRecord(
            name=name,
            run_id=run.id,
            folder=str(folder.path),
            state=state,
            note=note,
            **vars(run.labels),
            seed=run.seed,
            steps=rows[-1]["step"] if rows else 0,
            max_steps=run.max_steps,
            metrics=_metrics(run, validations, solved) if state == "ended" else {},
            validations=validations,
            learning=_learning(rows),
            tokens_per_second=statistics.median(speeds) if speeds else None,
            solved=solved,
            about={name: str(value) for name, value in about.items() if value is not None},
        )


def _state(run: Run, folder: RunFolder) -> tuple[State, str]:
    """Return where a run stands, and of one that did not end what was seen."""
    if recorded := folder.divergence(run.id):
        return "diverged", f"step {recorded['step']:,}: {recorded['message']}"
    if folder.final.exists():
        return "ended", ""
    if failure := _failure(folder):
        return "failed", failure
    return ("begun" if folder.metrics.exists() else "not begun"), ""


def _validations(rows: Sequence[Mapping[str, Any]]) -> tuple[Validation, ...]:
    """Return the validations of a run; its FLOPs are counted in rows of training."""
    counted = [row["flops"] / row["tokens"] for row in rows if row.get("flops")]
    validations = []
    for row in (row for row in rows if "val_loss" in row):
        values = {each.name: row[each.name] for each in fields(Validation) if each.name in row}
        if counted:
            values["flops"] = row["tokens"] * counted[-1]
        validations.append(from_dict(Validation, values, ""))
    return tuple(validations)


def _learning(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[float, float], ...]:
    """Return a run's training loss: means of as many parts of it, of equally many rows each."""
    told = [(row["step"], row["loss"]) for row in rows if "loss" in row]
    size = -(-len(told) // _PARTS) or 1
    parts = [told[i : i + size] for i in range(0, len(told), size)]
    return tuple(
        (float(part[-1][0]), round(statistics.fmean(loss for _, loss in part), 5)) for part in parts
    )


def _metrics(
    run: Run, validations: Sequence[Validation], solved: Solved | None
) -> dict[str, float]:
    """Return what an ended run is judged by: the validation of its last step, what it solves."""
    if not validations or validations[-1].step != run.max_steps:
        raise ValueError(f"metrics.jsonl lacks the validation of its last step {run.max_steps}")
    metrics = {LOSS: validations[-1].val_loss}
    if solved is None:
        if run.task.name is not None:
            raise ValueError("result.json, with what it solves, is not there")
        return metrics
    metrics |= {RIGHT_ANSWERS: solved.accuracy, EVERY_STEP_RIGHT: solved.steps}
    for name, levels in solved.by.items():
        for level, shares in levels.items() if len(levels) > 1 else ():
            metrics[f"{RIGHT_ANSWERS}{BY_LEVEL}{name}: {level}"] = shares.accuracy
    return metrics


def is_finished(run: Run, folder: RunFolder) -> bool:
    """Return whether nothing is to be done: the run has ended, or would diverge again."""
    return folder.final.exists() or folder.divergence(run.id) is not None


def check_usable(folder: RunFolder, run: Run) -> None:
    """Raise where a run's folder holds another run, or has lost what an ended one recorded."""
    if folder.rows() or folder.final.exists():
        check_same_run(folder, run)
        read_record(folder.path.name, run, folder)


def _failure(folder: RunFolder) -> str:
    """Return how the last attempt at a run failed, and the last line that it wrote; empty: it did
    not fail."""
    error, note, said = folder.path / ERRORS, "", ""
    if not error.exists():
        return ""
    for line in error.read_text("utf-8", "replace").splitlines():
        if line.startswith(NOTE):
            note = line.removeprefix(NOTE)
            said = "" if note.startswith("begun") else said
        elif line.strip():
            # Without its own folder, equal failures of two runs read alike.
            said = line.strip().replace(str(folder.path), "RUN")
    if note.startswith(("begun", "stopped")):
        return ""
    return f"{note}: {said}" if note and said else note


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
