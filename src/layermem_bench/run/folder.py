"""The run folder: the place of each file, rows of metrics, checkpoints complete or absent, results.

config.yaml      the resolved config, and under ``about`` versions, commit and command
metrics.jsonl    one object for each logged step and each validation
checkpoints/     checkpoint-STEP, each complete or absent
final/           the trained model and its tokenizer
result.json      of a task: what the trained model solves of the test problems
attempts.jsonl   of a task: each test problem, what the model wrote, its grade
error.txt        of a run that a study has not ended: what its processes wrote, how they ended
diverged.json    of a run with numbers that were not finite: the step, and what was seen
.lock            locked by the process that trains
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from layermem_base.files import write_atomically
from layermem_bench.config.run import Run, run_from_dict, to_dict
from layermem_bench.config.typed_dicts import from_dict

ERRORS = "error.txt"
"""File of a run that has not ended: what its processes wrote, and how they ended."""
_STAGING = ".staging"
# The end of metrics.jsonl that is read for its last row: it has room for more than two rows.
_TAIL_BYTES = 4096
# That of libyaml is several times as fast, and a study reads the config of each run some times.
_SAFE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def unique_names(paths: Sequence[Sequence[str]]) -> list[str]:
    """Return the shortest end of each path, given in parts, that no other has: a/x, b/x and y."""
    names = []
    for path in paths:
        ends = (path[-count:] for count in range(1, len(path) + 1))
        unique = (end for end in ends if sum(other[-len(end) :] == end for other in paths) == 1)
        names.append(str(Path(*next(unique, path))))
    return names


class RunFolder:
    """Paths and files of one run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        # What trackers show it under: the folder that it is in, a study's board.
        self.project = self.path.absolute().parent.name or "layermem"
        self.config = self.path / "config.yaml"
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.staging = self.checkpoints / _STAGING
        self.final = self.path / "final"
        self.result = self.path / "result.json"
        self.attempts = self.path / "attempts.jsonl"
        self.diverged = self.path / "diverged.json"

    def create(self) -> None:
        """Create the folder."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder during the block, so that no other process trains in it."""
        # A soft lock, which FileLock would fall back to, would outlive a killed process.
        lock = FileLock(self.path / ".lock", fallback_to_soft=False)
        try:
            lock.acquire(blocking=False)
        except Timeout as error:
            raise RuntimeError(
                f"another process is training in {self.path}; wait for it or stop it"
            ) from error
        try:
            yield
        finally:
            lock.release()

    def append_row(self, row: Mapping[str, Any]) -> None:
        """Append a row to the metrics."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of metrics, without a last line that a kill has cut short."""
        lines = self.metrics.read_bytes().splitlines() if self.metrics.exists() else []
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                if number < len(lines):
                    raise ValueError(
                        f"{self.metrics}, line {number} is not a JSON row ({error}): mend or "
                        "delete it"
                    ) from error
        return rows

    def last_row(self) -> dict[str, Any]:
        """Return the newest row without reading the others, or an empty one if there is none."""
        if not self.metrics.exists():
            return {}
        with self.metrics.open("rb") as file:
            file.seek(max(0, self.metrics.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
        for line in reversed(lines):
            with suppress(ValueError, TypeError):
                return dict(json.loads(line))
        return {}

    def drop_rows_after(self, step: int) -> None:
        """Delete the rows of steps after ``step``, which will be trained again."""
        rows = [row for row in self.rows() if row.get("step", 0) <= step]
        write_atomically(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))

    def record_divergence(self, run_id: str, step: int, message: str) -> None:
        """Record that a run diverged at a step."""
        record = {"run_id": run_id, "step": step, "message": message}
        write_atomically(self.diverged, json.dumps(record, indent=1) + "\n")

    def divergence(self, run_id: str) -> dict[str, Any] | None:
        """Return the record of the run's divergence; None if it has none or has ended since."""
        if not self.diverged.exists() or self.final.exists():
            return None
        record: dict[str, Any] = json.loads(self.diverged.read_text(encoding="utf-8"))
        return record if record.get("run_id") == run_id else None

    def complete_checkpoints(self) -> list[Path]:
        """Return the checkpoints, oldest first; each is complete."""
        return sorted(self.checkpoints.glob("checkpoint-*"), key=step_of)

    def latest_checkpoint(self) -> Path | None:
        """Return the newest checkpoint, or None."""
        return max(self.complete_checkpoints(), key=step_of, default=None)

    @contextmanager
    def stage_checkpoint(self, step: int) -> Iterator[Path]:
        """Yield a folder to write a step's checkpoint in, and move it to its place at the end.

        A process that is killed leaves the checkpoint complete, or in a staging folder, which the
        next save deletes.
        """
        target = self.checkpoints / f"checkpoint-{step}"
        with temporary_folder(self.staging, f"a checkpoint in {self.checkpoints}"):
            self.staging.mkdir(parents=True)
            yield self.staging
            for path in (self.metrics, *self.staging.rglob("*"), self.staging):
                _flush_to_disk(path)
            # There is one already where the run was resumed from an earlier step.
            if not target.exists():
                os.replace(self.staging, target)
                _flush_to_disk(self.checkpoints)

    def delete_old_checkpoints(self, keep: int, best: int | None) -> None:
        """Delete all checkpoints but the last ``keep`` and that of the step ``best``."""
        for path in self.complete_checkpoints()[:-keep]:
            if step_of(path) != best:
                self.delete_checkpoint(step_of(path))
        for hidden in self.checkpoints.glob(".deleted-*"):
            shutil.rmtree(hidden, ignore_errors=True)

    def delete_checkpoint(self, step: int) -> None:
        """Delete the checkpoint of a step, if there is one."""
        path = self.checkpoints / f"checkpoint-{step}"
        # Renamed first, so that a deletion cut short does not look like a checkpoint.
        hidden = self.checkpoints / f".deleted-{path.name}"
        if path.exists():
            os.replace(path, hidden)
            shutil.rmtree(hidden)


def step_of(checkpoint: Path) -> int:
    """Return the step a checkpoint was written at."""
    return int(checkpoint.name.rpartition("-")[2])


@contextmanager
def temporary_folder(path: Path, what: str) -> Iterator[None]:
    """Delete a folder, which the block creates and moves, before and after; name errors."""
    shutil.rmtree(path, ignore_errors=True)
    try:
        yield
    except Exception as error:
        raise OSError(
            f"{what} could not be written ({error}); where the disk is full, make room, and "
            "--resume goes on"
        ) from error
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _flush_to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Of some problems, the share that was solved, and with every step right; 95% intervals."""

    count: int
    accuracy: float
    """Share with the right final answer; of problems with several answers, the mean share of right
    answers."""
    interval: tuple[float, ...]
    steps: float
    steps_interval: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Solved(Shares):
    """What a model solves of one set of problems, and the accuracy of a guess."""

    chance: float
    by: Mapping[str, Mapping[str, Shares]] = field(default_factory=dict)
    """What levels are called ("operands", "steps") to each level's shares."""
    faults: Mapping[str, int] = field(default_factory=dict)
    """How often each kind of fault was the first in a wrong solution."""
    task: str | None = None
    split: str | None = None
    model: str | None = None
    """Checkpoint that solved them, where it is not that of a run."""
    run_id: str | None = None
    steps_taken: int | None = None
    problems: str | None = None
    """Digest of the problems, the same for the same problems in the same order."""
    solutions: str | None = None
    """Digest of the solutions by which they were graded."""

    def to_json(self) -> str:
        """Return the text of a result.json, without what is not recorded."""
        values = {name: value for name, value in to_dict(self).items() if value is not None}
        return json.dumps(values, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Solved":
        """Return what a result.json says."""
        return from_dict(cls, json.loads(text), "")


def load_run(path: str | os.PathLike[str]) -> Run:
    """Return the run of a config.yaml, edited or not."""
    return run_from_dict(read_config(path)[0])


def recorded_run(folder: RunFolder) -> Run:
    """Return the run that a folder holds; raise if its config was edited since it was written."""
    fields, about = read_config(folder.config)
    if about.get("digest", fields_digest(fields)) != fields_digest(fields):
        raise ValueError(
            f"{folder.config} was edited after the run wrote it, so it no longer says what was "
            "trained. Undo the edit; to train the edited config, give it another --out; what a run "
            "may change when it goes on (save_every, data.cache...) is given as an option"
        )
    return run_from_dict(fields)


def read_config(path: str | os.PathLike[str]) -> tuple[Any, dict[str, Any]]:
    """Return the fields of a config.yaml, and what is under ``about``."""
    try:
        fields = deepcopy(_parsed(Path(path).read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    about = fields.pop("about", None) if isinstance(fields, dict) else None
    return fields, about if isinstance(about, dict) else {}


@lru_cache(1024)
def _parsed(text: str) -> Any:
    """Return what YAML says. A study looks at each of its configs several times."""
    return yaml.load(text, _SAFE_LOADER)


def fields_digest(fields: Any) -> str:
    """Return a digest of the fields as the file has them, independent of the version reading it."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
