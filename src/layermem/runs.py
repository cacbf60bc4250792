"""The run folder: what lies where, metrics row by row, files written whole or not at all.

    config.yaml      the resolved config, and under ``about`` versions, commit and command
    metrics.jsonl    one object for each logged step and each validation
    checkpoints/     checkpoint-STEP, each complete or absent
    final/           the trained model and its tokenizer
    result.json      of a task: what the trained model solves of the test problems
    attempts.jsonl   of a task: each test problem, what the model wrote, its grade
    diverged.json    of a run whose numbers were no longer finite: the step, and what was seen

It does not know: torch, models, what is in a checkpoint.
"""

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

_MARKER = "complete.json"
_STAGING = ".staging"
# More bytes than a row and one cut short have together.
_ROW = 4096


def told_apart(paths: Sequence[Sequence[str]]) -> list[str]:
    """Return the last part of each path, with as many before it as no other path ends in."""
    names = []
    for path in paths:
        ends = (path[-count:] for count in range(1, len(path) + 1))
        alone = (end for end in ends if sum(other[-len(end) :] == end for other in paths) == 1)
        names.append(str(Path(*next(alone, path))))
    return names


class RunFolder:
    """Paths and files of one run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.staging = self.checkpoints / _STAGING
        self.final = self.path / "final"
        self.result = self.path / "result.json"
        self.attempts = self.path / "attempts.jsonl"
        self.diverged = self.path / "diverged.json"

    def create(self) -> None:
        """Make the folder, and say early if it cannot be written to."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.write_text("", encoding="utf-8")
            probe.unlink()
        except OSError as error:
            raise OSError(
                f"cannot write to the run folder {self.path} ({error.strerror}); "
                "choose another --out"
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing to the same run; the lock goes with the process."""
        with (self.path / ".lock").open("w", encoding="utf-8") as file:
            try:
                _lock(file)
            except OSError as error:
                raise RuntimeError(
                    f"another process is training in {self.path}; wait for it or stop it"
                ) from error
            yield

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row to the metrics."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """Return the metrics; a last line cut short by a kill is left out."""
        if not self.metrics.exists():
            return []
        rows = []
        lines = self.metrics.read_bytes().splitlines()
        for number, line in enumerate(lines, 1):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                if number < len(lines):
                    raise ValueError(
                        f"{self.metrics}, line {number} is no row ({error}): mend or delete it"
                    ) from error
        return rows

    def last(self) -> dict[str, Any]:
        """Return the newest row, without reading the others; empty if there is none."""
        try:
            with self.metrics.open("rb") as file:
                file.seek(max(0, self.metrics.stat().st_size - _ROW))
                lines = file.read().decode("utf-8", errors="replace").splitlines()
        except OSError:
            return {}
        for line in reversed(lines):
            try:
                return dict(json.loads(line))
            except (json.JSONDecodeError, TypeError, ValueError):
                continue
        return {}

    def forget_after(self, step: int) -> None:
        """Drop rows of steps after ``step``, which are about to be run again."""
        self.rewrite([row for row in self.rows() if row.get("step", 0) <= step])

    def rewrite(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the metrics anew."""
        write_whole(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))

    def note_divergence(self, run_id: str, step: int, message: str) -> None:
        """Record that a run diverged at a step."""
        noted = {"run_id": run_id, "step": step, "message": message}
        write_whole(self.diverged, json.dumps(noted, indent=1) + "\n")

    def divergence(self, run_id: str) -> dict[str, Any] | None:
        """Return the record of where the run diverged; None: there is none, or it has ended since.

        The record of another run, which the folder held with another config, says nothing of this.
        """
        if not self.diverged.exists() or self.final.exists():
            return None
        try:
            noted = json.loads(self.diverged.read_text(encoding="utf-8"))
            known = {"run_id": noted["run_id"], "step": noted["step"], "message": noted["message"]}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self.diverged} is damaged ({type(error).__name__}: {error}); delete it, and the "
                "run is tried again"
            ) from error
        return known if known["run_id"] == run_id else None

    def completed(self) -> list[Path]:
        """Return the checkpoints, oldest first."""
        found = [p for p in self.checkpoints.glob("checkpoint-*") if (p / _MARKER).exists()]
        return sorted(found, key=step_of)

    def latest(self) -> Path | None:
        """Return the newest checkpoint, once its files are found as they were written."""
        found = self.completed()
        if not found:
            return None
        check_complete(found[-1])
        return found[-1]

    @contextmanager
    def staged(self) -> Iterator[Path]:
        """Yield a folder to write ``checkpoint-STEP`` in; it is in its place once the block ends.

        A process killed at any moment leaves either the whole checkpoint or a staging folder, which
        the next one clears away.
        """
        with cleared(self.staging, f"a checkpoint in {self.checkpoints}"):
            self.staging.mkdir(parents=True)
            yield self.staging
            for made in self.staging.iterdir():
                _seal(made)
                place = self.checkpoints / made.name
                if (place / _MARKER).exists():
                    # A run that was resumed from before it: the same step, and nothing to gain.
                    continue
                shutil.rmtree(place, ignore_errors=True)
                os.replace(made, place)
            _sync(self.checkpoints)

    def rotate(self, keep: int, best: int | None) -> None:
        """Delete all checkpoints but the last ``keep`` and that of step ``best``."""
        for path in self.completed()[:-keep]:
            if step_of(path) != best:
                self.discard(step_of(path))
        for hidden in self.checkpoints.glob(".deleted-*"):
            shutil.rmtree(hidden, ignore_errors=True)

    def discard(self, step: int) -> None:
        """Delete the checkpoint of a step, if there is one."""
        path = self.checkpoints / f"checkpoint-{step}"
        # Out of sight first: half a deletion must not look like a checkpoint.
        hidden = self.checkpoints / f".deleted-{path.name}"
        if path.exists():
            os.replace(path, hidden)
            shutil.rmtree(hidden)


def step_of(checkpoint: Path) -> int:
    """Return the step a checkpoint was written at."""
    return int(checkpoint.name.rpartition("-")[2])


def check_complete(checkpoint: Path) -> None:
    """Raise if a file of a checkpoint is not as it was written."""
    try:
        listed = dict(json.loads((checkpoint / _MARKER).read_text(encoding="utf-8")))
        if not listed:
            raise ValueError("it lists no files")
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"{checkpoint} is not a complete checkpoint; delete it") from error
    for name, digest in listed.items():
        path = checkpoint / name
        if not path.is_file() or _digest(path) != digest:
            raise ValueError(
                f"{path} is missing or damaged; delete {checkpoint} to go on from the checkpoint "
                "before it"
            )


@contextmanager
def cleared(staging: Path, what: str) -> Iterator[None]:
    """Begin without ``staging`` and leave without it; say what could not be written, and where."""
    shutil.rmtree(staging, ignore_errors=True)
    try:
        yield
    except Exception as error:
        raise OSError(
            f"{what} could not be written ({error}); where the disk is full, make room, and "
            "--resume goes on"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or as it was, its folder too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Each writer has its own: two at once leave what one or what the other has written.
    part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _seal(folder: Path) -> None:
    """Bring every file to the disk, then write the marker with their digests."""
    digests = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        _sync(path)
        digests[str(path.relative_to(folder))] = _digest(path)
    marker = folder / _MARKER
    marker.write_text(json.dumps(digests, indent=1), encoding="utf-8")
    _sync(marker)
    _sync(folder)


def _lock(file: IO[str]) -> None:
    """Take the file for this process or raise; where the system has no such locks, do nothing."""
    try:
        import fcntl
    except ImportError:
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    # Folders cannot be opened everywhere (Windows): then their order is the file system's own.
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
