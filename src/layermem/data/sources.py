"""Where documents come from: the standard library's sources, local files, Hugging Face datasets.

A source yields one text at a time and holds no more than that, whatever its size, and has a
fingerprint: the same documents, wherever they lie, have the same one.

It does not know: tokens, blocks.
"""

import bz2
import gzip
import hashlib
import io
import itertools
import json
import lzma
import sys
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast, final

import datasets
import zstandard
from pyarrow import parquet

_OPENERS: dict[str, Any] = {
    ".xz": lzma.open,
    ".gz": gzip.open,
    ".bz2": bz2.open,
    # Its own reader knows no lines.
    ".zst": lambda path, mode: io.BufferedReader(zstandard.open(path, mode)),
}
_KINDS = (".jsonl", ".json", ".parquet", ".txt", ".md", ".py")
# What of a file is a document; of other kinds, all of it.
_PARTS = {".jsonl": "line", ".json": "line", ".parquet": "row"}


class Source(ABC):
    """Documents, and what tells them from others."""

    @abstractmethod
    def __iter__(self) -> Iterator[str]:
        """Yield one text after the other."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return what changes when a text does."""


def open_source(
    source: str, *, text_field: str = "text", subset: str | None = None, streaming: bool = False
) -> Source:
    """Return the documents of "stdlib", of a file or folder, or of a Hugging Face dataset.

    A dataset is NAME or NAME:SPLIT; without a split it is the one called train.
    """
    if source == "stdlib":
        return Files(_standard_library(), text_field)
    path = Path(source).expanduser()
    if path.is_file():
        return Files([path], text_field)
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.is_file() and _kind(p) in _KINDS)
        if not found:
            raise ValueError(f"the folder {path} holds no file of a kind {', '.join(_KINDS)}")
        return Files(found, text_field)
    name, split = hub_name(source)
    if name.startswith(("/", ".", "~")) or Path(name).suffix or name.count("/") > 1:
        raise FileNotFoundError(
            f"{source} does not exist; data.source is a file, a folder, a Hugging Face dataset "
            '(NAME or NAME:SPLIT), or "stdlib"'
        )
    return Hub(name, subset, text_field, split=split, streaming=streaming)


def hub_name(source: str) -> tuple[str, str]:
    """Return the name of a Hugging Face dataset, and its split."""
    name, _, split = source.partition(":")
    return name, split or "train"


@final
class Files(Source):
    """Local files: a line of JSONL, a row of Parquet, and any other file whole, is a document."""

    def __init__(self, paths: list[Path], text_field: str) -> None:
        self.paths, self.text_field = paths, text_field

    def __iter__(self) -> Iterator[str]:
        for path in self.paths:
            part = _part(path)
            if part == "line":
                yield from self._json_lines(path)
            elif part == "row":
                yield from self._parquet(path)
            else:
                yield _decoded(_read(path), path)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.text_field.encode())
        for path in self.paths:
            digest.update(_part(path).encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def _json_lines(self, path: Path) -> Iterator[str]:
        with _open(path) as file:
            for number, line in enumerate(file, 1):
                where = f"{path}, line {number}"
                if not line.strip():
                    continue
                try:
                    record = json.loads(_decoded(line, where))
                except json.JSONDecodeError as error:
                    raise ValueError(f"{where} is not JSON: {error.msg}") from error
                yield _text(record, self.text_field, where)

    def _parquet(self, path: Path) -> Iterator[str]:
        file = parquet.ParquetFile(path)
        if self.text_field not in file.schema_arrow.names:
            _text(dict.fromkeys(file.schema_arrow.names), self.text_field, str(path))
        batches = file.iter_batches(batch_size=256, columns=[self.text_field])
        rows = itertools.chain.from_iterable(batch.column(0).to_pylist() for batch in batches)
        for number, text in enumerate(rows):
            yield _text({self.text_field: text}, self.text_field, f"{path}, row {number}")


@final
class Hub(Source):
    """A split of a Hugging Face dataset."""

    def __init__(
        self,
        name: str,
        subset: str | None,
        text_field: str,
        *,
        split: str = "train",
        streaming: bool = False,
    ) -> None:
        self.name, self.subset, self.text_field = name, subset, text_field
        self.split, self.streaming = split, streaming
        self._loaded: Any = None

    def __iter__(self) -> Iterator[str]:
        for number, record in enumerate(self._load()):
            yield _text(record, self.text_field, f"{self.name}, record {number}")

    def fingerprint(self) -> str:
        data = self._load()
        # A streamed dataset is told by its name and version: its text has not been seen.
        content = getattr(data, "_fingerprint", None) or str(data.info.download_checksums)
        told = self.name, self.subset, self.split, self.text_field, data.info.version, content
        return hashlib.sha256(" ".join(map(str, told)).encode()).hexdigest()

    def _load(self) -> Any:
        if self._loaded is None:
            try:
                self._loaded = datasets.load_dataset(
                    self.name, self.subset, split=self.split, streaming=self.streaming
                )
            except Exception as error:
                raise ValueError(
                    f"{self.name} is neither a local path nor a dataset that can be loaded: {error}"
                ) from error
        return self._loaded


def _standard_library() -> list[Path]:
    root = Path(sysconfig.get_paths()["stdlib"])
    apart = {"site-packages", "dist-packages", "__pycache__"}
    found = [p for p in root.rglob("*.py") if not apart & set(p.relative_to(root).parts)]
    # The library's tests hold files that are wrong on purpose.
    found = [p for p in found if "test" not in p.relative_to(root).parts and _is_text(p)]
    if not found:
        raise FileNotFoundError(f"this Python ({sys.executable}) has no sources of its own library")
    return sorted(found)


def _is_text(path: Path) -> bool:
    try:
        return bool(path.read_text(encoding="utf-8").strip())
    except UnicodeDecodeError:
        return False


def _kind(path: Path) -> str:
    """The suffix below a compression's."""
    return Path(path.stem).suffix if path.suffix in _OPENERS else path.suffix


def _part(path: Path) -> str:
    return _PARTS.get(_kind(path), "file")


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    with cast("IO[bytes]", _OPENERS.get(path.suffix, open)(path, "rb")) as file:
        yield file


def _read(path: Path) -> bytes:
    with _open(path) as file:
        return file.read()


def _decoded(content: bytes, where: object) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 at byte {error.start}; convert it first") from error


def _text(record: Any, name: str, where: str) -> str:
    if not isinstance(record, Mapping) or name not in record:
        has = ", ".join(record) if isinstance(record, Mapping) else repr(record)[:60]
        raise ValueError(f"{where} has no field {name!r} (it has {has}); set data.text_field")
    text = record[name]
    if not isinstance(text, str):
        raise ValueError(f"{where}: the field {name!r} must be a string, got {text!r:.60}")
    return text
