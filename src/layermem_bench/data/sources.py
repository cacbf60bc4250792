"""Documents of local files, of the standard library, or of a Hugging Face dataset.

    stdlib                     this Python's own sources, without their tests
    a.jsonl  .ndjson  .json    each line is a document, an object with a text field
    a.parquet                  each row is one
    a.txt    .md  .py ...      the file is one
    corpus/                    such files of a folder, in the order of their paths
    NAME, NAME:SPLIT           a dataset of the hub

A document longer than ``MAX_CHARACTERS`` is cut into parts; a plain file is cut while it is read,
so that memory is bounded. The fingerprint of a source depends on its documents alone, not on their
place.
"""

import codecs
import hashlib
import json
import re
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from layermem_base.generation_settings import check_text
from layermem_bench.data.files import (
    SUFFIXES,
    document_unit,
    find_files,
    is_compressed,
    json_lines,
    kind_of,
    open_decompressed,
    parquet_rows,
)

# Characters of a text: a tokenizer's own bookkeeping takes some hundred bytes for each.
MAX_CHARACTERS = 1_000_000
_NO_TEXT = (".csv", ".tsv", ".tar", ".tgz", ".zip")
# What the name of a file of records says of its split, as those of datasets on the hub do.
_SPLIT = re.compile(r"(?:^|[-_./])(train|test|validation|valid|dev)(?:[-_./]|$)")
# Bytes of a plain file read at once.
_CHUNK = 2**20
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
    if path.is_file() and kind_of(path) in _NO_TEXT:
        raise ValueError(f"{path} is a table or an archive: write its texts as JSON lines (.jsonl)")
    if path.exists():
        return LocalFiles(_files_of(path) if path.is_dir() else [path.absolute()], text_field)
    name, split = hub_name(source)
    is_path = name.startswith(("/", ".", "~")) or name.count("/") > 1
    if is_path or kind_of(Path(name)) in (*SUFFIXES, *_NO_TEXT):
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
        self.single_document = [document_unit(path) for path in paths] == ["file"]

    def _documents(self, rank: int, tasks: int) -> Iterator[Iterable[str]]:
        """Yield the documents whose first bytes are in a slice of the bytes of all files."""
        total, place = sum(path.stat().st_size for path in self.paths), 0
        begin, end = total * rank // tasks, total * (rank + 1) // tasks
        for path in self.paths:
            yield from self._documents_of(path, begin - place, end - place)
            place += path.stat().st_size

    def _documents_of(self, path: Path, begin: int, end: int) -> Iterator[Iterable[str]]:
        unit = document_unit(path)
        if unit == "line" and not is_compressed(path):
            if begin < path.stat().st_size and end > 0:
                yield from self._of_records(json_lines(path, max(begin, 0), end))
        elif begin <= 0 < end and unit == "file":
            yield _parts_of_file(path)
        elif begin <= 0 < end:
            rows = json_lines(path) if unit == "line" else parquet_rows(path, self.text_field)
            yield from self._of_records(rows)

    def _of_records(self, records: Iterable[tuple[Any, str]]) -> Iterator[Iterable[str]]:
        return (cut_document(_text_of(value, self.text_field, where)) for value, where in records)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.text_field.encode())
        for path in self.paths:
            digest.update(document_unit(path).encode())
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
    decoder, text = codecs.getincrementaldecoder("utf-8")(), ""
    with open_decompressed(path) as file:
        while chunk := file.read(_CHUNK):
            *complete, text = cut_document(text + decoder.decode(chunk))
            yield from complete
        decoder.decode(b"", final=True)
    yield text


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


def _files_of(folder: Path) -> list[Path]:
    """Return the files of a folder that hold text, which must be of one split."""
    paths = sorted(find_files(folder.absolute()))
    if not paths:
        raise ValueError(f"the folder {folder} holds no file of a kind {', '.join(SUFFIXES)}")
    names = [path.relative_to(folder.absolute()) for path in paths if document_unit(path) != "file"]
    splits = {split[1]: str(name) for name in names if (split := _SPLIT.search(name.as_posix()))}
    if len(splits) > 1:
        raise ValueError(
            f"the folder {folder} holds files of several splits ({', '.join(splits.values())}), "
            "which would all be read: name one file, or put those of one split into a folder"
        )
    return paths


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
