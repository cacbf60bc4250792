"""Documents of local files, of the standard library, or of a Hugging Face dataset.

    stdlib                     this Python's own sources, without their tests
    a.jsonl  .ndjson  .json    each line is a document, an object with a text field
    a.parquet                  each row is one; 256 rows are held at once
    a.txt    .md  .py ...      the file is one
    corpus/                    such files of a folder, in the order of their paths
    NAME, NAME:SPLIT           a dataset of the hub

Each file may be compressed (.gz, .bz2, .xz, .zst). ``datasets`` reads local files otherwise,
without an error: a text such as "2020-01-01" becomes a date, and its errors name no line. A
document longer than ``MAX_CHARACTERS`` is cut into parts; a plain file is cut while it is read, so
that memory is bounded. A fingerprint depends on the documents alone, not on their place.
"""

import bz2
import glob
import gzip
import hashlib
import io
import json
import lzma
import re
import sysconfig
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, cast, final

from layermem_base.generation_settings import check_text

# Characters of a text: a tokenizer's own bookkeeping takes some hundred bytes for each.
MAX_CHARACTERS = 1_000_000
# The part of a file that is one document; of other files, all of it is.
_UNITS = {".jsonl": "line", ".ndjson": "line", ".json": "line", ".parquet": "row"}
# Kinds of files that are read of a folder.
_SUFFIXES = (*_UNITS, ".txt", ".md", ".py")
# What the name of a file of records says of its split, as those of datasets on the hub do.
_SPLIT = re.compile(r"(?:^|[-_./])(train|test|validation|valid|dev)(?:[-_./]|$)")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class Source(ABC):
    """Documents, and a fingerprint that distinguishes them from others."""

    single_document = False
    """Whether the source is one document, so that only its parts can be divided into splits."""

    def __iter__(self) -> Iterator[str]:
        """Yield one text after the other, none longer than ``MAX_CHARACTERS``."""
        return (text for text, _ in self.parts())

    def parts(self, rank: int = 0, tasks: int = 1) -> Iterator[tuple[str, str]]:
        """Yield each text with the first part of its document, by which parts stay together.

        A document of the parts A, B and C yields (A, A), (B, A) and (C, A). The parts of a single
        document need not stay together and yield (A, A), (B, B) and (C, C). Of several ``tasks``
        each yields its slice of the documents: in a row they are those of one task.
        """
        for document in self._documents(rank, tasks):
            first: str | None = None
            for text in document:
                first = text if first is None or self.single_document else first
                yield text, first

    @abstractmethod
    def _documents(self, rank: int, tasks: int) -> Iterator[Iterable[str]]:
        """Yield the parts of each document of a slice."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a digest that changes when a text does."""


def open_source(
    source: str,
    *,
    text_field: str = "text",
    subset: str | None = None,
    revision: str | None = None,
    streaming: bool = False,
) -> Source:
    """Return the documents of "stdlib", a file, a folder, or a dataset (NAME or NAME:SPLIT)."""
    if source == "stdlib":
        return LocalFiles(standard_library(), text_field)
    path = Path(source).expanduser()
    if path.exists():
        return LocalFiles(_files_of(path) if path.is_dir() else [path.absolute()], text_field)
    name, split = hub_name(source)
    is_path = name.startswith(("/", ".", "~")) or name.count("/") > 1
    if is_path or _kind_of(Path(name)) in _SUFFIXES:
        raise FileNotFoundError(
            f"{source} does not exist; data.source is a file, a folder, a Hugging Face dataset "
            '(NAME or NAME:SPLIT), or "stdlib"'
        )
    return HubDataset(name, split, text_field, subset, revision, streaming)


def hub_name(source: str) -> tuple[str, str]:
    """Return the name of a Hugging Face dataset, and its split."""
    name, _, split = source.partition(":")
    return name, split or "train"


@final
class LocalFiles(Source):
    """Files of which each line (JSON), each row (Parquet) or else each file is a document."""

    def __init__(self, paths: list[Path], text_field: str) -> None:
        self.paths, self.text_field = paths, text_field
        self.single_document = [_unit_of(path) for path in paths] == ["file"]

    def _documents(self, rank: int, tasks: int) -> Iterator[Iterable[str]]:
        """Yield the documents of the files whose first byte is in a slice of all bytes."""
        total, place = sum(path.stat().st_size for path in self.paths), 0
        for path in self.paths:
            if total * rank // tasks <= place < total * (rank + 1) // tasks:
                yield from self._documents_of(path)
            place += path.stat().st_size

    def _documents_of(self, path: Path) -> Iterator[Iterable[str]]:
        if _unit_of(path) == "file":
            yield _parts_of_file(path)
            return
        records = _lines if _unit_of(path) == "line" else _rows
        for value, where in records(path, self.text_field):
            yield cut_document(_text_of(value, self.text_field, where))

    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.text_field.encode())
        for path in self.paths:
            digest.update(_unit_of(path).encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()


@final
@dataclass
class HubDataset(Source):
    """A split of a Hugging Face dataset."""

    name: str
    split: str
    text_field: str
    subset: str | None
    revision: str | None
    streaming: bool

    def _documents(self, rank: int, tasks: int) -> Iterator[Iterable[str]]:
        rows = self.rows
        if not self.streaming:
            bounds = len(rows) * rank // tasks, len(rows) * (rank + 1) // tasks
            rows = rows.select(range(*bounds))
        elif tasks > 1:
            # Of files of the dataset, of which there may be fewer than tasks.
            count = min(tasks, rows.num_shards)
            rows = rows.shard(count, rank, contiguous=True) if rank < count else ()
        for row in rows:
            yield cut_document(_text_of(row, self.text_field, f"a record of {self.name}"))

    def fingerprint(self) -> str:
        if self.streaming:
            # Its text has not been read: only a commit distinguishes it from an earlier version,
            # and no other is read from here on.
            content = self.revision = self._commit()
        else:
            content = f"{self.revision} {self.rows.info.version} {self.rows._fingerprint}"
        fields = self.name, self.subset, self.split, self.text_field, self.streaming, content
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()

    def _commit(self) -> str | None:
        """Return the commit that the name stands for now."""
        if self.revision and _COMMIT.fullmatch(self.revision):
            return self.revision
        import huggingface_hub

        return huggingface_hub.HfApi().dataset_info(self.name, revision=self.revision).sha

    @cached_property
    def rows(self) -> Any:
        """The split as ``datasets`` has it; streamed, nothing is read yet."""
        # Imported where a dataset is read: it takes longer than all the rest.
        import datasets

        return datasets.load_dataset(
            self.name,
            self.subset,
            split=self.split,
            streaming=self.streaming,
            revision=self.revision,
        )


def cut_document(text: str) -> Iterator[str]:
    """Yield the parts of a text, each of at most ``MAX_CHARACTERS``: a part ends with the last line
    of its second half, or else at the last space. This depends only on the text before it."""
    start = 0
    while len(text) - start > MAX_CHARACTERS:
        window = start + MAX_CHARACTERS // 2, start + MAX_CHARACTERS
        after_line = text.rfind("\n", *window) + 1
        before_space = max(text.rfind(" ", *window), 0)
        end = after_line or before_space or window[1]
        yield text[start:end]
        start = end
    yield text[start:]


def _parts_of_file(path: Path) -> Iterator[str]:
    """Yield the parts of a plain file, which is cut while it is read."""
    text = ""
    with _opened(path) as file:
        decoded = io.TextIOWrapper(file, "utf-8", newline="")
        while more := decoded.read(MAX_CHARACTERS):
            *complete, text = cut_document(text + more)
            yield from complete
    yield text


def _lines(path: Path, field: str) -> Iterator[tuple[Any, str]]:
    """Yield the value of each line of JSON that is not empty, and where it stands."""
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            # Files that were joined have byte order marks within.
            text = line.decode().removeprefix("\ufeff").strip(" \t\r\n\v\f")
            try:
                if text:
                    yield json.loads(text), f"{path}, line {number}"
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number} is not one object of JSON: {error}") from (
                    error
                )


def _rows(path: Path, field: str) -> Iterator[tuple[Any, str]]:
    """Yield each row of Parquet with its field, or with all fields where it has none so named."""
    # Imported where such a file is read: it takes longer than all the rest.
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(path) as file:
            columns = [field] if field in file.schema_arrow.names else None
            batches = file.iter_batches(batch_size=256, columns=columns)
            rows = (row for batch in batches for row in batch.to_pylist())
            yield from ((row, f"{path}, row {number}") for number, row in enumerate(rows))
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path} is damaged or no Parquet file: {error}") from error


def _text_of(value: Any, field: str, where: str) -> str:
    """Return the text of a record, which may be empty."""
    text = value.get(field) if isinstance(value, dict) else None
    if not isinstance(text, str):
        has = ", ".join(map(str, value)) if isinstance(value, dict) else f"{value!r:.60}"
        raise ValueError(
            f"{where} has no field {field!r} with a text, got {has}; name the field by "
            "--data.text-field (of eval by --field)"
        )
    check_text(text, f"{where}: the field {field!r}")
    return text


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file's content, of all members of a compressed file; what is damaged, cut short or
    not UTF-8 while the block reads it is a ``ValueError``."""
    opening: dict[str, Callable[[Path], Any]] = {
        ".gz": gzip.open,
        ".bz2": bz2.open,
        ".xz": lzma.open,
        ".zst": _open_zstandard,
    }
    with opening.get(path.suffix.lower(), lambda plain: plain.open("rb"))(path) as file:
        try:
            yield cast("IO[bytes]", file)
        except (EOFError, OSError, zlib.error, lzma.LZMAError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is damaged, cut short or not UTF-8: {error}") from error


def _open_zstandard(path: Path) -> io.BufferedReader:
    # The package zstandard reads one frame of several, and takes one cut short for whole.
    import pyarrow

    return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"))


def _kind_of(path: Path) -> str:
    """Return the suffix without a compression's, in small letters: ``.jsonl`` of ``a.JSONL.gz``."""
    suffix = path.suffix.lower()
    compressed = suffix in (".gz", ".bz2", ".xz", ".zst")
    return Path(path.stem).suffix.lower() if compressed else suffix


def _unit_of(path: Path) -> str:
    """Return the part of a file that is one document: "line", "row", or all of it, "file"."""
    return _UNITS.get(_kind_of(path), "file")


def _files_of(folder: Path) -> list[Path]:
    """Return the files of a folder that hold text, behind links too, except hidden ones; those of
    records must be of one split."""
    names = sorted(map(Path, glob.iglob("**", root_dir=folder, recursive=True)))
    names = [n for n in names if _kind_of(n) in _SUFFIXES and (folder / n).is_file()]
    if not names:
        raise ValueError(f"the folder {folder} holds no file of a kind {', '.join(_SUFFIXES)}")
    records = [name.as_posix() for name in names if _unit_of(name) != "file"]
    splits = {split[1]: name for name in records if (split := _SPLIT.search(name))}
    if len(splits) > 1:
        raise ValueError(
            f"the folder {folder} holds files of several splits ({', '.join(splits.values())}), "
            "which would all be read: name one file, or put those of one split into a folder"
        )
    return [folder.absolute() / name for name in names]


def standard_library() -> list[Path]:
    """Return the source files of this Python's standard library, without its tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    # The library's tests hold files that are invalid on purpose.
    excluded = {"site-packages", "dist-packages", "__pycache__", "test"}
    return sorted(
        path
        for path in root.rglob("*.py")
        if not excluded & set(path.relative_to(root).parts) and _is_text(path)
    )


def _is_text(path: Path) -> bool:
    try:
        return bool(path.read_text(encoding="utf-8").strip())
    except UnicodeDecodeError:
        return False
