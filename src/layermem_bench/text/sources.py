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
import sysconfig
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, final

from layermem_bench.config.hashing import file_digest
from layermem_bench.config.run import Data

# Characters of a text: a tokenizer's own bookkeeping takes some hundred bytes for each.
MAX_CHARACTERS = 1_000_000
# The part of a file that is one document; of other files, all of it is.
_UNITS = {".jsonl": "line", ".ndjson": "line", ".json": "line", ".parquet": "row"}
# Kinds of files that are read of a folder.
_SUFFIXES = (*_UNITS, ".txt", ".md", ".py")


class Source(ABC):
    """Documents, and a fingerprint that distinguishes them from others."""

    def __iter__(self) -> Iterator[str]:
        """Yield one text after the other, none longer than ``MAX_CHARACTERS``."""
        return (text for text, _ in self.parts())

    def parts(self, rank: int = 0, tasks: int = 1) -> Iterator[tuple[str, str]]:
        """Yield each text with the first part of its document, by which parts stay together: a
        document of the parts A, B and C yields (A, A), (B, A) and (C, A). Of several ``tasks``
        each yields its slice of the documents: in a row they are those of one task.
        """
        for document in self._documents(rank, tasks):
            first: str | None = None
            for text in document:
                first = text if first is None else first
                yield text, first

    @abstractmethod
    def _documents(self, rank: int, tasks: int) -> Iterator[Iterable[str]]:
        """Yield the parts of each document of a slice."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a digest that changes when a text does."""


def open_source(source: str, how: Data | None = None) -> Source:
    """Return the documents of "stdlib", a file, a folder, or a dataset (NAME or NAME:SPLIT), read
    as the other fields of a config say."""
    how, path = how or Data(source=source), Path(source).expanduser()
    if source == "stdlib":
        return LocalFiles(standard_library(), how.text_field)
    if path.exists():
        files = _files_of(path) if path.is_dir() else [path.absolute()]
        return LocalFiles(files, how.text_field)
    name, _, split = source.partition(":")
    is_path = name.startswith(("/", ".", "~")) or name.count("/") > 1
    if is_path or _kind_of(Path(name)) in _SUFFIXES:
        raise FileNotFoundError(
            f"{source} does not exist; data.source is a file, a folder, a Hugging Face dataset "
            '(NAME or NAME:SPLIT), or "stdlib"'
        )
    if name != how.source.partition(":")[0]:
        # Another dataset has configurations and revisions of its own.
        how = replace(how, subset=None, revision=None)
    return HubDataset(name, split or "train", how)


@final
class LocalFiles(Source):
    """Files of which each line (JSON), each row (Parquet) or else each file is a document."""

    def __init__(self, paths: list[Path], text_field: str) -> None:
        self.paths, self.text_field = paths, text_field

    def _documents(self, rank: int, tasks: int) -> Iterator[Iterable[str]]:
        count = len(self.paths)
        for path in self.paths[count * rank // tasks : count * (rank + 1) // tasks]:
            yield from self._documents_of(path)

    def _documents_of(self, path: Path) -> Iterator[Iterable[str]]:
        if _unit_of(path) == "file":
            parts = _naming(path, _parts_of_file(path))
            # Of a single file each part is a document: nothing else could be divided into splits.
            yield from ([part] for part in parts) if len(self.paths) == 1 else [parts]
            return
        records = _lines(path) if _unit_of(path) == "line" else _rows(path, self.text_field)
        texts = (_text_of(value, self.text_field, where) for value, where in records)
        yield from map(cut_document, _naming(path, texts))

    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.text_field.encode())
        for path in self.paths:
            digest.update(_unit_of(path).encode() + bytes.fromhex(file_digest(path)))
        return digest.hexdigest()


@final
class HubDataset(Source):
    """A split of a Hugging Face dataset."""

    def __init__(self, name: str, split: str, how: Data) -> None:
        self.name, self.split, self.how, self.revision = name, split, how, how.revision

    def _documents(self, rank: int, tasks: int) -> Iterator[Iterable[str]]:
        # A streamed dataset is divided by its files, of which there may be fewer than tasks.
        count = min(tasks, self.rows.num_shards if self.how.streaming else len(self.rows))
        rows = self.rows.shard(count, rank, contiguous=True) if rank < count else ()
        for row in rows:
            yield cut_document(_text_of(row, self.how.text_field, f"a record of {self.name}"))

    def fingerprint(self) -> str:
        how = self.how
        if how.streaming:
            # Its text has not been read: only a commit distinguishes it from an earlier version,
            # and no other is read from here on.
            from huggingface_hub import HfApi

            content = self.revision = HfApi().dataset_info(self.name, revision=how.revision).sha
        else:
            content = f"{how.revision} {self.rows.info.version} {self.rows._fingerprint}"
        fields = self.name, how.subset, self.split, how.text_field, how.streaming, content
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()

    @cached_property
    def rows(self) -> Any:
        """The split as ``datasets`` has it; streamed, nothing is read yet."""
        # Imported where a dataset is read: it takes longer than all the rest.
        from datasets import load_dataset

        options = {"split": self.split, "streaming": self.how.streaming, "revision": self.revision}
        return load_dataset(self.name, self.how.subset, **options)


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
    with io.TextIOWrapper(_open(path), "utf-8", newline="") as file:
        while more := file.read(MAX_CHARACTERS):
            *complete, text = cut_document(text + more)
            yield from complete
    yield text


def _lines(path: Path) -> Iterator[tuple[Any, str]]:
    """Yield the value of each line of JSON that is not empty, and where it stands."""
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            # Files that were joined have byte order marks within.
            text = line.decode().removeprefix("\ufeff").strip(" \t\r\n\v\f")
            try:
                if text:
                    yield json.loads(text), f"line {number}"
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number} is not one object of JSON: {error}") from error


def _rows(path: Path, field: str) -> Iterator[tuple[Any, str]]:
    """Yield each row of Parquet with its field, or with all fields where it has none so named."""
    # Imported where such a file is read: it takes longer than all the rest.
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        columns = [field] if field in file.schema_arrow.names else None
        batches = file.iter_batches(batch_size=256, columns=columns)
        rows = (row for batch in batches for row in batch.to_pylist())
        yield from ((row, f"row {number}") for number, row in enumerate(rows))


def _naming(path: Path, texts: Iterable[str]) -> Iterator[str]:
    """Yield texts of a file; an error names it: it may be damaged, cut short or not UTF-8."""
    try:
        yield from texts
    except (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{path}, {error}") from error


def _text_of(value: Any, field: str, where: str) -> str:
    """Return the text of a record, which may be empty."""
    text = value.get(field) if isinstance(value, dict) else None
    if not isinstance(text, str):
        has = ", ".join(map(str, value)) if isinstance(value, dict) else f"{value!r:.60}"
        raise ValueError(
            f"{where} has no field {field!r} with a text, got {has}; name the field by "
            "--data.text-field (of eval by --field)"
        )
    try:
        # JSON can hold half a surrogate pair, which tokenizers do not read.
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        part = f"{text[error.start]!a}, at character {error.start}"
        raise ValueError(f"{where}: {field!r} holds half a surrogate pair, {part}") from error
    return text


def _open(path: Path) -> IO[bytes]:
    """Return a file's content, of all members of a compressed file."""
    return _OPENING.get(path.suffix.lower(), lambda plain: plain.open("rb"))(path)


def _open_zstandard(path: Path) -> io.BufferedReader:
    # The package zstandard reads one frame of several, and takes one cut short for whole.
    import pyarrow

    return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"))


_OPENING: dict[str, Callable[[Path], Any]]
_OPENING = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _open_zstandard}


def _kind_of(path: Path) -> str:
    """Return the suffix without a compression's, in small letters: ``.jsonl`` of ``a.JSONL.gz``."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in _OPENING else suffix


def _unit_of(path: Path) -> str:
    """Return the part of a file that is one document: "line", "row", or all of it, "file"."""
    return _UNITS.get(_kind_of(path), "file")


def _files_of(folder: Path) -> list[Path]:
    """Return the files of a folder that hold text, behind links too, except hidden ones."""
    names = sorted(map(Path, glob.iglob("**", root_dir=folder, recursive=True)))
    files = [folder.absolute() / name for name in names if _kind_of(name) in _SUFFIXES]
    if not (files := [file for file in files if file.is_file()]):
        raise ValueError(f"the folder {folder} holds no file of a kind {', '.join(_SUFFIXES)}")
    return files


def standard_library() -> list[Path]:
    """Return the source files of this Python's standard library, without its tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    # The library's tests hold files that are invalid on purpose.
    excluded = {"site-packages", "dist-packages", "__pycache__", "test"}
    paths = (p for p in root.rglob("*.py") if not excluded & set(p.relative_to(root).parts))
    return sorted(path for path in paths if _is_text(path))


def _is_text(path: Path) -> bool:
    try:
        return bool(path.read_text(encoding="utf-8").strip())
    except UnicodeDecodeError:
        return False
