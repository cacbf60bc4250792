"""Sources of documents: local files, the standard library, or a Hugging Face dataset.

A document longer than ``MAX_CHARACTERS`` is cut into parts, at ends of lines where it has any. A
plain file is cut while it is read (``datasets`` would hold it whole, and write its ends of lines
otherwise). The fingerprint of a source depends on its documents alone, not on their place.
"""

import codecs
import glob
import hashlib
import json
import logging
import re
import sysconfig
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from layermem_bench.data.records import (
    JSON_LINES,
    Record,
    file_records,
    kind_of,
    open_decompressed,
    skip_bytes,
)

logger = logging.getLogger(__name__)

# Characters of a text: a tokenizer's own bookkeeping takes some hundred bytes for each.
MAX_CHARACTERS = 1_000_000
# The part of a file that is one document; of other files, all of it is.
_UNITS = {**dict.fromkeys(JSON_LINES, "line"), ".parquet": "row"}
_SUFFIXES = (*_UNITS, ".txt", ".md", ".py")
_TABLES, _ARCHIVES = (".csv", ".tsv"), (".tar", ".tgz")
_NO_TEXT = (*_TABLES, *_ARCHIVES)
# What the name of a file of records says of its split, as those of datasets on the hub do.
_SPLIT = re.compile(r"(?:^|[-_./])(train|test|validation|valid|dev)(?:[-_./]|$)")
# Bytes in which the first line of a file is looked for.
_FIRST_LINE = 2**16
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

    def parts(self) -> Iterator[tuple[str, str]]:
        """Yield each text with the first part of its document, by which parts stay together.

        A document of the parts A, B and C yields (A, A), (B, A) and (C, A). The parts of a single
        document need not stay together and yield (A, A), (B, B) and (C, C).
        """
        return parts_of(self._documents(), self.single_document)

    @abstractmethod
    def _documents(self) -> Iterator[Iterable[str]]:
        """Yield the parts of each document."""

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
        local: LocalFiles | None = LocalFiles(standard_library(), text_field)
    else:
        local = open_path(Path(source).expanduser(), text_field)
    if local and revision:
        raise ValueError(
            f"{source} is on this machine and has no revision {revision!r}: leave data.revision out"
        )
    if local:
        return local
    name, split = hub_name(source)
    is_file = kind_of(Path(name)) in (*_SUFFIXES, *_NO_TEXT)
    if name.startswith(("/", ".", "~")) or is_file or name.count("/") > 1:
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

    def _documents(self) -> Iterator[Iterable[str]]:
        for path in self.paths:
            if document_unit(path) == "file":
                yield plain_parts(path)
            else:
                for record in file_records(path, only=self.text_field):
                    yield cut_document(record.document(self.text_field))

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
    _loaded: Any = None

    def _documents(self) -> Iterator[Iterable[str]]:
        return self.documents_of(self.load(), self.name, 0)

    def documents_of(self, records: Any, where: str, first: int) -> Iterator[Iterable[str]]:
        """Yield the parts of each document of records, the first of which has a number."""
        for number, record in enumerate(records, first):
            place = f"{where}, record {number}"
            yield cut_document(Record(record, place).document(self.text_field))

    def fingerprint(self) -> str:
        if self.streaming:
            # Its text has not been read: only a commit distinguishes it from an earlier version.
            self._pin_commit()
            content = self.revision
        else:
            data = self.load()
            content = f"{self.revision} {data.info.version} {data._fingerprint}"
        fields = self.name, self.subset, self.split, self.text_field, self.streaming, content
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()

    def _pin_commit(self) -> None:
        """Find the commit that the name stands for now, and read no other from here on."""
        if _COMMIT.fullmatch(self.revision or ""):
            return
        import huggingface_hub

        try:
            commit = huggingface_hub.HfApi().dataset_info(self.name, revision=self.revision).sha
            if not _COMMIT.fullmatch(commit or ""):
                raise ValueError(f"the hub must name a commit of {self.name}, got {commit!r}")
        except Exception as error:
            raise ValueError(
                f"the commit of the streamed dataset {self.name}, by which its prepared text is "
                f"found again, cannot be determined ({error}); name it (--data.revision, 40 "
                "hexadecimal digits), or leave out --data.streaming"
            ) from error
        self.revision, self._loaded = commit, None

    def load(self) -> Any:
        """Return the split as ``datasets`` has it; streamed, nothing is read yet."""
        if self._loaded is None:
            # Imported where a dataset is read: it takes longer than all the rest.
            import datasets

            try:
                self._loaded = datasets.load_dataset(
                    self.name,
                    self.subset,
                    split=self.split,
                    streaming=self.streaming,
                    revision=self.revision,
                )
            except Exception as error:
                raise ValueError(
                    f"{self.name} is neither a local path nor a dataset that can be loaded: {error}"
                ) from error
        return self._loaded


def parts_of(documents: Iterable[Iterable[str]], single: bool = False) -> Iterator[tuple[str, str]]:
    """Yield each part with the first of its document, or with itself in a ``single`` document."""
    for document in documents:
        first: str | None = None
        for text in document:
            first = text if first is None or single else first
            yield text, first


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


def open_path(path: Path, text_field: str) -> LocalFiles | None:
    """Return the documents of a file or folder, or None where there is neither."""
    if not path.exists():
        return None
    if path.is_file() and kind_of(path) in _ARCHIVES:
        raise ValueError(f"{path} is an archive; unpack it, and name the folder")
    if path.is_file() and kind_of(path) in _TABLES:
        raise ValueError(
            f"{path} is a table, whose cells are no text of their own: write its texts as JSON "
            "lines (.jsonl) or Parquet, with --data.text-field"
        )
    if path.is_dir():
        return LocalFiles(_files_of(path), text_field)
    if document_unit(path) == "file" and kind_of(path) not in (".py", ".md") and _is_json(path):
        raise ValueError(
            f"{path} begins with a JSON object, and would be read as one text: if its lines are "
            "records, rename it to end in .jsonl"
        )
    return LocalFiles([path], text_field)


def _files_of(folder: Path) -> list[Path]:
    """Return the files of a folder that hold text, and say which others there are."""
    paths = sorted(find_files(folder))
    if not paths:
        raise ValueError(f"the folder {folder} holds no file of a kind {', '.join(_SUFFIXES)}")
    splits: dict[str, Path] = {}
    for path in paths:
        split = _SPLIT.search(path.relative_to(folder).as_posix())
        if split and document_unit(path) != "file":
            splits.setdefault(split[1], path)
    if len(splits) > 1:
        named = ", ".join(str(path.relative_to(folder)) for path in splits.values())
        raise ValueError(
            f"the folder {folder} holds files of several splits ({named}), which would all be "
            "read: put those of one split into a folder of their own, or name its file"
        )
    files = (folder / name for name in glob.iglob("**", root_dir=folder, recursive=True))
    others = Counter(kind_of(each) or "no suffix" for each in files if each.is_file())
    if left_out := {kind: n for kind, n in others.items() if kind not in _SUFFIXES}:
        counts = ", ".join(f"{n} of {kind}" for kind, n in sorted(left_out.items()))
        logger.info("%s: %d files are read, left out are %s", folder, len(paths), counts)
    return paths


def _is_json(path: Path) -> bool:
    """Whether the first line of a file is a JSON object."""
    with open_decompressed(path) as file:
        lines = file.read(_FIRST_LINE).lstrip().splitlines()
    try:
        return bool(lines) and isinstance(json.loads(lines[0]), dict)
    except ValueError:
        return False


def find_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that hold text, behind links too, except hidden ones."""
    folders = {folder.resolve()}
    for name in glob.iglob("**", root_dir=folder, recursive=True):
        path = folder / name
        if path.is_dir():
            if path.resolve() in folders:
                raise ValueError(
                    f"{path} leads to a folder that is in {folder} already; delete the link"
                )
            folders.add(path.resolve())
        elif kind_of(path) in _SUFFIXES:
            if path.is_symlink() and not path.exists():
                raise FileNotFoundError(
                    f"{path} leads to {path.readlink()}, which does not exist; delete the link"
                )
            if path.is_file():
                yield path


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


def document_unit(path: Path) -> str:
    """Return the part of a file that is one document: "line", "row", or all of it, "file"."""
    return _UNITS.get(kind_of(path), "file")


def plain_parts(path: Path, begin: int = 0, end: int | None = None) -> Iterator[str]:
    """Yield a file's text, cut while it is read; the parts that start at the bytes from ``begin``,
    where a part starts, to ``end``."""
    place = begin
    for part in _cut_while_read(path, begin):
        if end is not None and place >= end:
            return
        yield part
        place += len(part.encode()) if end is not None else 0


def _cut_while_read(path: Path, begin: int) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    text, read, ended = "", begin, False
    with open_decompressed(path) as file:
        skip_bytes(file, begin)
        while not ended:
            chunk = file.read(_CHUNK)
            # The decoder still holds the bytes of a character that the last chunk cut in two.
            place, ended = read - len(decoder.getstate()[0]), not chunk
            try:
                decoded = decoder.decode(chunk, final=ended)
            except UnicodeDecodeError as error:
                problem = f"{path} is not UTF-8 at byte {place + error.start}; convert it first"
                raise ValueError(problem) from error
            if "\0" in decoded:
                raise ValueError(
                    f"{path} holds a NUL at byte {read + chunk.index(0)}: it is damaged, or not "
                    "UTF-8 (UTF-16?); convert it first"
                )
            read += len(chunk)
            text += decoded
            *complete, text = cut_document(text)
            yield from complete
    yield text
