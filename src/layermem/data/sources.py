"""Where documents come from: the standard library's sources, local files, Hugging Face datasets.

A source yields one text at a time and has a fingerprint: the same documents, wherever they lie,
have the same one. No text is longer than ``LONGEST``: a longer document is cut into several, at
ends of lines where it has any. A plain file is cut as it is read; of JSON lines one line is held
whole, of Parquet 256 rows and what its reader keeps of a row group.

It does not know: tokens, blocks.
"""

import codecs
import hashlib
import itertools
import json
import os
import re
import sys
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

import datasets
import huggingface_hub
from pyarrow import ArrowException, parquet

from layermem.data import compression

# Characters of a document: what a tokenizer notes of each takes some hundred bytes.
LONGEST = 1_000_000
_KINDS = (".jsonl", ".ndjson", ".json", ".parquet", ".txt", ".md", ".py")
# What of a file is a document; of other kinds, all of it.
_PARTS = {".jsonl": "line", ".ndjson": "line", ".json": "line", ".parquet": "row"}
# Bytes of a plain file read at once.
_CHUNK = 2**20
_COMMIT = re.compile(r"[0-9a-f]{40}")


class Source(ABC):
    """Documents, and what tells them from others."""

    whole = False
    """Whether all is one document, so that a share can be set apart of its parts alone."""

    def __iter__(self) -> Iterator[str]:
        """Yield one text after the other, none longer than ``LONGEST``."""
        return (text for text, _ in self.parts())

    def parts(self) -> Iterator[tuple[str, str]]:
        """Yield each text with the one that its document begins with: by it parts stay together."""
        for document in self._documents():
            first: str | None = None
            for text in document:
                first = text if first is None or self.whole else first
                yield text, first

    @abstractmethod
    def _documents(self) -> Iterator[Iterable[str]]:
        """Yield the parts of each document."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return what changes when a text does."""


def open_source(
    source: str,
    *,
    text_field: str = "text",
    subset: str | None = None,
    revision: str | None = None,
    streaming: bool = False,
) -> Source:
    """Return the documents of "stdlib", of a file or folder, or of a Hugging Face dataset.

    A dataset is NAME or NAME:SPLIT; without a split it is the one called train.
    """
    local = _local(source, text_field)
    if local and revision:
        raise ValueError(
            f"{source} is on this machine and has no revision {revision!r}; data.revision is one "
            "of a Hugging Face dataset: leave it out"
        )
    if local:
        return local
    name, split = hub_name(source)
    if name.startswith(("/", ".", "~")) or Path(name).suffix or name.count("/") > 1:
        raise FileNotFoundError(
            f"{source} does not exist; data.source is a file, a folder, a Hugging Face dataset "
            '(NAME or NAME:SPLIT), or "stdlib"'
        )
    return Hub(name, subset, text_field, split=split, streaming=streaming, revision=revision)


def _local(source: str, text_field: str) -> Source | None:
    """Return what is on this machine."""
    if source == "stdlib":
        return Files(_standard_library(), text_field)
    path = Path(source).expanduser()
    if path.is_file():
        if _kind(path) == ".tar":
            raise ValueError(f"{path} is an archive; unpack it, and name the folder")
        return Files([path], text_field)
    if path.is_dir():
        found = sorted(_within(path))
        if not found:
            raise ValueError(f"the folder {path} holds no file of a kind {', '.join(_KINDS)}")
        return Files(found, text_field)
    return None


def _within(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder, those behind links too, but for hidden ones."""
    seen = set[str]()
    # Path.rglob passes over folders that are links.
    for at, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if os.path.realpath(at) in seen:
            raise ValueError(f"{at} leads to a folder that is in {folder} already; delete the link")
        seen.add(os.path.realpath(at))
        for path in (Path(at, name) for name in names if not name.startswith(".")):
            if _kind(path) not in _KINDS:
                continue
            if path.is_symlink() and not path.exists():
                raise FileNotFoundError(
                    f"{path} leads to {os.readlink(path)}, which does not exist; fetch it, or "
                    "delete the link"
                )
            if path.is_file():
                yield path


def hub_name(source: str) -> tuple[str, str]:
    """Return the name of a Hugging Face dataset, and its split."""
    name, _, split = source.partition(":")
    return name, split or "train"


@final
class Files(Source):
    """Local files: a line of JSON, a row of Parquet, and any other file, is a document."""

    def __init__(self, paths: list[Path], text_field: str) -> None:
        self.paths, self.text_field = paths, text_field
        self.whole = [_part(path) for path in paths] == ["file"]

    def _documents(self) -> Iterator[Iterable[str]]:
        for path in self.paths:
            part = _part(path)
            if part == "line":
                yield from map(_cut, self._json_lines(path))
            elif part == "row":
                yield from map(_cut, self._parquet(path))
            else:
                yield _plain(path)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.text_field.encode())
        for path in self.paths:
            digest.update(_part(path).encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def _json_lines(self, path: Path) -> Iterator[str]:
        with compression.opened(path) as file:
            for number, line in enumerate(file, 1):
                where = f"{path}, line {number}"
                if line.strip():
                    yield _text(_record(line, where), self.text_field, where)

    def _parquet(self, path: Path) -> Iterator[str]:
        try:
            with parquet.ParquetFile(path) as file:
                names = file.schema_arrow.names
                if self.text_field not in names:
                    _text(dict.fromkeys(names), self.text_field, str(path))
                batches = file.iter_batches(batch_size=256, columns=[self.text_field])
                rows = itertools.chain.from_iterable(b.column(0).to_pylist() for b in batches)
                for number, text in enumerate(rows):
                    yield _text({self.text_field: text}, self.text_field, f"{path}, row {number}")
        except (ArrowException, OSError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{path} is damaged, cut short or no Parquet file ({error}); fetch it or write it "
                "again"
            ) from error


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
        revision: str | None = None,
    ) -> None:
        self.name, self.subset, self.text_field = name, subset, text_field
        self.split, self.streaming, self.revision = split, streaming, revision
        self._loaded: Any = None

    def _documents(self) -> Iterator[Iterable[str]]:
        for number, record in enumerate(self._load()):
            yield _cut(_text(record, self.text_field, f"{self.name}, record {number}"))

    def fingerprint(self) -> str:
        if self.streaming:
            # Its text has not been seen: only a commit tells it from what the name meant before.
            self._pin()
            content = self.revision
        else:
            data = self._load()
            content = f"{self.revision} {data.info.version} {data._fingerprint}"
        told = self.name, self.subset, self.split, self.text_field, self.streaming, content
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    def _pin(self) -> None:
        """Name the commit that is read, and read no other."""
        if _COMMIT.fullmatch(self.revision or ""):
            return
        try:
            commit = huggingface_hub.HfApi().dataset_info(self.name, revision=self.revision).sha
        except Exception as error:
            raise ValueError(
                f"which commit of the streamed dataset {self.name} is read cannot be told "
                f"({error}), so what is prepared could not be told from another version's; name "
                "the commit (--data.revision, 40 hexadecimal digits), or leave out --data.streaming"
            ) from error
        if not _COMMIT.fullmatch(commit or ""):
            raise ValueError(f"the hub names no commit of {self.name}, but {commit!r}")
        self.revision, self._loaded = commit, None

    def _load(self) -> Any:
        if self._loaded is None:
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
    packed = path.suffix.lower() in compression.SUFFIXES
    return (Path(path.stem).suffix if packed else path.suffix).lower()


def _part(path: Path) -> str:
    return _PARTS.get(_kind(path), "file")


def _plain(path: Path) -> Iterator[str]:
    """Yield a file's text, cut as it is read."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    text, read, ended = "", 0, False
    with compression.opened(path) as file:
        while not ended:
            chunk = file.read(_CHUNK)
            begin, ended = read - len(decoder.getstate()[0]), not chunk
            try:
                more = decoder.decode(chunk, final=ended)
            except UnicodeDecodeError as error:
                raise _not_utf8(path, begin + error.start) from error
            if "\0" in more:
                raise ValueError(
                    f"{path} holds a NUL at byte {read + chunk.index(0)}: it is damaged, or no "
                    "UTF-8 (UTF-16?); convert it first, or delete them (tr -d '\\000')"
                )
            read += len(chunk)
            text += more
            *whole, text = _cut(text)
            yield from whole
    yield text


def _cut(text: str) -> Iterator[str]:
    """Yield a text's parts of at most ``LONGEST`` characters: all but the last end in a line's end.

    Where the second half of a part has none, it ends before a space, and without that, anywhere.
    A part depends on what comes before its end alone.
    """
    start = 0
    while len(text) - start > LONGEST:
        window = start + LONGEST // 2, start + LONGEST
        end = text.rfind("\n", *window) + 1 or max(text.rfind(" ", *window), 0) or window[1]
        yield text[start:end]
        start = end
    yield text[start:]


def _record(line: bytes, where: str) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _not_utf8(where, error.start) from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(
            f"{where} is not JSON ({error}); a line must hold one whole object, {{...}}: "
            "`jq -c .` writes objects so, `jq -c '.[]'` those of a list"
        ) from error


def _not_utf8(where: object, byte: int) -> ValueError:
    return ValueError(f"{where} is not UTF-8 at byte {byte}; convert it first")


def _text(record: Any, name: str, where: str) -> str:
    if isinstance(record, list):
        raise ValueError(
            f"{where} holds a list; a line must hold one object, {{...}}: `jq -c '.[]'` writes a "
            "list's objects so"
        )
    if not isinstance(record, Mapping) or name not in record:
        has = ", ".join(record) if isinstance(record, Mapping) else repr(record)[:60]
        raise ValueError(f"{where} has no field {name!r} (it has {has}); set data.text_field")
    text = record[name]
    if not isinstance(text, str):
        raise ValueError(f"{where}: the field {name!r} must be a string, got {text!r:.60}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where}: the field {name!r} holds half a surrogate pair, "
            f"{text[error.start]!a}, at character {error.start}, which is no text; mend it or "
            "delete the line"
        ) from error
    return text
