"""``OutputFile``: rows of JSON lines that a run stopped at any moment goes on with, never mixed.

    OUT                  all rows, in the order of the prompts; there once the run has ended
    OUT.part             rows so far, a batch at a time
    OUT.settings.json    what the rows are of: model, prompts, settings, versions

A run that goes on keeps the batches that are whole and does the others again in the same batches,
so the file is the same as without a stop.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from filelock import FileLock, Timeout

from layermem.generation.decoding import Continuation
from layermem.generation.generation import TextGenerator
from layermem.generation.prompts import Prompt
from layermem_base import __version__
from layermem_base.files import write_atomically
from layermem_base.generation_settings import GenerationSettings
from layermem_bench.config.hashing import plugin_digest, sources_digest
from layermem_bench.data.records import json_lines

Row = dict[str, Any]
_MODEL_FILES = ("*.json", "*.safetensors", "*.bin", "*.jinja")


def describe(
    checkpoint: Any, prompts: Sequence[Prompt], settings: GenerationSettings, dtype: str
) -> dict[str, Any]:
    """Return what the rows of a run are of; two runs may be one if it is equal."""
    # Of a model on the hub, which has no files here. Adapters lie in a folder, their base may not.
    commit, base = checkpoint.revision, checkpoint.base
    about = {
        "model": _describe_model(checkpoint.location, dtype, commit if base is None else None),
        "prompts": {"count": len(prompts), "sha256": _digest(prompts)},
        "settings": asdict(settings),
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "layermem": __version__,
        "sources": sources_digest(),
        "plugins": plugin_digest(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return about if base is None else {**about, "base": _describe_model(base, dtype, commit)}


def _digest(prompts: Sequence[Prompt]) -> str:
    """Return a text that changes when any prompt or its tokens do."""
    summed = hashlib.sha256()
    for prompt in prompts:
        summed.update(json.dumps([prompt.content, prompt.ids]).encode())
    return summed.hexdigest()


def _describe_model(location: Path | str, dtype: str, commit: str | None) -> dict[str, Any]:
    """Return where a model is, with size and time of change of each of its files."""
    folder = Path(location)
    paths = {path for pattern in _MODEL_FILES for path in folder.glob(pattern)}
    states = {path.name: path.stat() for path in sorted(paths)}
    return {
        "location": str(folder.resolve() if folder.is_dir() else location),
        "files": {name: [state.st_size, state.st_mtime_ns] for name, state in states.items()},
        "dtype": dtype,
        **({} if commit is None else {"commit": commit}),
    }


class OutputFile:
    """The file of a run, given what its rows are of and how prompts are put in batches."""

    def __init__(
        self, path: Path, about: Mapping[str, Any], batches: Sequence[Sequence[int]]
    ) -> None:
        self.path, self.batches = path, batches
        # As it is read back.
        self.about = json.loads(json.dumps(about))
        self.part = path.with_name(f"{path.name}.part")
        self.settings = path.with_name(f"{path.name}.settings.json")
        self.rows: dict[int, Row] = {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the file during the block, so that no other process writes it."""
        place = self.path.with_name(f".{self.path.name}.lock")
        lock = FileLock(place)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            # Where a folder takes no files, filelock says that the lock is held.
            place.touch()
            lock.acquire(blocking=False)
        except Timeout as error:
            raise RuntimeError(
                f"another process is writing {self.path}; wait for it, or name another --out"
            ) from error
        except OSError as error:
            raise OSError(
                f"{self.path} cannot be written ({error.strerror}); name another --out"
            ) from error
        try:
            yield
        finally:
            lock.release()

    def open(self) -> list[int]:
        """Read what there is, and return the batches, by number, that are still to be done.

        Raise if the file, or what there is of it, is of another model, prompts or settings.
        """
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path} is a folder; name a file")
        if not self.path.exists() and not self.part.exists():
            write_atomically(self.settings, json.dumps(self.about, indent=1) + "\n")
            return list(range(len(self.batches)))
        self._check_same()
        if self.path.exists():
            return []
        rows = {row["index"]: row for row in self._read_part()}
        missing = []
        for number, batch in enumerate(self.batches):
            if rows.keys() >= set(batch):
                self.rows.update({i: rows[i] for i in batch})
            else:
                missing.append(number)
        write_atomically(self.part, "".join(map(_line, self.rows.values())))
        return missing

    def append(self, rows: Sequence[Row]) -> None:
        self.rows.update({row["index"]: row for row in rows})
        with self.part.open("ab") as file:
            file.write("".join(map(_line, rows)).encode())
            file.flush()
            os.fsync(file.fileno())

    def finish(self) -> None:
        """Write the file, once all batches are done."""
        if not self.path.exists():
            write_atomically(self.path, "".join(_line(self.rows[i]) for i in sorted(self.rows)))
            self.part.unlink(missing_ok=True)

    def _check_same(self) -> None:
        """Raise, naming the first difference, unless the rows there are of the same."""
        there = self.path if self.path.exists() else self.part
        mend = f"name another --out, or delete {there} to begin again"
        try:
            recorded = json.loads(self.settings.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{there} exists, and {self.settings.name}, which says what it is of, is missing "
                f"or damaged: {mend}"
            ) from error
        before, now = _flat(recorded), _flat(self.about)
        for name in {**before, **now}:
            if before.get(name) != now.get(name):
                raise ValueError(
                    f"{there} is of another run: {name} was {before.get(name)!r:.80}, and is "
                    f"{now.get(name)!r:.80}; {mend}"
                )

    def _read_part(self) -> list[Row]:
        """Return the rows so far, without a last line that was cut short."""
        # What follows the last line break is empty, or a line that was being written.
        *lines, _ = self.part.read_bytes().split(b"\n")
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                row = dict(json.loads(line))
                if not isinstance(row["index"], int):
                    raise ValueError("its index is no number")
            except (ValueError, TypeError, KeyError) as error:
                if number == len(lines):
                    break
                raise ValueError(
                    f"{self.part}, line {number} is damaged ({error}); delete the line, and its "
                    "batch is done again"
                ) from error
            rows.append(row)
        return rows


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested mapping as one, with names joined by dots."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def read_prompts(path: Path, field: str) -> list[Prompt]:
    """Return the prompts of a file of JSON lines, in the field of that name of each line.

    The field holds a text, or a list of messages: {"role": ..., "content": ...}.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file; --prompts names a file of JSON lines")
    prompts = []
    for i, record in enumerate(json_lines(path)):
        content: Any = record.fields.get(field)
        if isinstance(content, list):
            _check_messages(content, f"{record.where}: the field {field!r}")
        else:
            content = record.document(field)
        prompts.append(Prompt(index=i, content=content, where=record.where))
    if not prompts:
        raise ValueError(f"{path} holds no prompt: it is empty")
    return prompts


def _check_messages(messages: Sequence[Any], where: str) -> None:
    for message in messages:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise ValueError(
                f"{where} must be a text or messages with role and content, got {message!r:.60}"
            )
    if not messages:
        raise ValueError(f"{where} has no message")


def continue_all(
    generator: TextGenerator,
    batches: Sequence[Sequence[Prompt]],
    output: OutputFile | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Row]:
    """Return the rows of all prompts in their order; with an ``output``, write them to it.

    Batches that an opened ``output`` has are not continued again. ``progress`` is called with the
    number of prompts of each batch that was.
    """
    rows: dict[int, Row] = dict(output.rows) if output is not None else {}
    for batch in batches:
        if all(prompt.index in rows for prompt in batch):
            continue
        try:
            done = generator.continue_batch(batch)
        except torch.OutOfMemoryError as error:
            raise RuntimeError(
                f"{len(batch)} prompts at once do not fit in memory; lower --batch-size, now "
                f"{generator.settings.batch_size} ({str(error).splitlines()[0]})"
            ) from error
        new = [_row(prompt, text) for prompt, text in zip(batch, done, strict=True)]
        if output is not None:
            output.append(new)
        rows.update({row["index"]: row for row in new})
        if progress is not None:
            progress(len(batch))
    if output is not None:
        output.finish()
    return [rows[index] for index in sorted(rows)]


def _row(prompt: Prompt, continuation: Continuation) -> Row:
    return {
        "index": prompt.index,
        "prompt": prompt.content,
        "completion": continuation.text,
        "prompt_tokens": len(prompt.ids),
        "new_tokens": continuation.tokens,
        "finish_reason": continuation.reason,
    }
