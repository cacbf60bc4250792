"""Local files as sources of documents: JSON lines, Parquet and text, of a path or a folder.

A plain file is cut while it is read; of JSON lines one line is held in memory, of Parquet 256 rows
and what its reader keeps of a row group.

It does not know: Hugging Face datasets, tokens, blocks.
"""

import codecs
import hashlib
import itertools
import json
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, final

from pyarrow import ArrowException, parquet

from layermem.data import compression
from layermem.data.documents import Source, cut_document, text_of_record

_SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet", ".txt", ".md", ".py")
# The part of a file that is one document; of other files, all of it is.
_UNITS = {".jsonl": "line", ".ndjson": "line", ".json": "line", ".parquet": "row"}
# Bytes of a plain file read at once.
_CHUNK = 2**20


@final
class LocalFiles(Source):
    """Files of which each line (JSON), each row (Parquet) or else each file is a document."""

    def __init__(self, paths: list[Path], text_field: str) -> None:
        self.paths, self.text_field = paths, text_field
        self.single_document = [_document_unit(path) for path in paths] == ["file"]

    def _documents(self) -> Iterator[Iterable[str]]:
        for path in self.paths:
            unit = _document_unit(path)
            if unit == "line":
                yield from map(cut_document, self._json_lines(path))
            elif unit == "row":
                yield from map(cut_document, self._parquet_rows(path))
            else:
                yield _plain_parts(path)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.text_field.encode())
        for path in self.paths:
            digest.update(_document_unit(path).encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def _json_lines(self, path: Path) -> Iterator[str]:
        for record, where in json_records(path):
            yield text_of_record(record, self.text_field, where)

    def _parquet_rows(self, path: Path) -> Iterator[str]:
        try:
            with parquet.ParquetFile(path) as file:
                names = file.schema_arrow.names
                if self.text_field not in names:
                    # It raises the error that names the columns there are.
                    text_of_record(dict.fromkeys(names), self.text_field, str(path))
                batches = file.iter_batches(batch_size=256, columns=[self.text_field])
                rows = itertools.chain.from_iterable(b.column(0).to_pylist() for b in batches)
                for number, text in enumerate(rows):
                    record, where = {self.text_field: text}, f"{path}, row {number}"
                    yield text_of_record(record, self.text_field, where)
        except (ArrowException, OSError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{path} is damaged, cut short or no Parquet file ({error}); fetch it or write it "
                "again"
            ) from error


def json_records(path: Path) -> Iterator[tuple[Any, str]]:
    """Yield what each line of a file of JSON lines holds, and a name for the line in errors."""
    with compression.open_decompressed(path) as file:
        for number, line in enumerate(file, 1):
            where = f"{path}, line {number}"
            if line.strip():
                yield _parse_line(line, where), where


def open_path(path: Path, text_field: str) -> LocalFiles | None:
    """Return the documents of a file or folder, or None where there is neither."""
    if path.is_file():
        if _suffix(path) == ".tar":
            raise ValueError(f"{path} is an archive; unpack it, and name the folder")
        return LocalFiles([path], text_field)
    if path.is_dir():
        paths = sorted(find_files(path))
        if not paths:
            raise ValueError(f"the folder {path} holds no file of a kind {', '.join(_SUFFIXES)}")
        return LocalFiles(paths, text_field)
    return None


def find_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that hold text, behind links too, except hidden ones."""
    visited = set[str]()
    # Path.rglob does not follow links to folders.
    for current, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if os.path.realpath(current) in visited:
            raise ValueError(
                f"{current} leads to a folder that is in {folder} already; delete the link"
            )
        visited.add(os.path.realpath(current))
        for path in (Path(current, name) for name in names if not name.startswith(".")):
            if _suffix(path) not in _SUFFIXES:
                continue
            if path.is_symlink() and not path.exists():
                raise FileNotFoundError(
                    f"{path} leads to {os.readlink(path)}, which does not exist; fetch it, or "
                    "delete the link"
                )
            if path.is_file():
                yield path


def standard_library() -> list[Path]:
    """Return the source files of this Python's standard library, without its tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    # The library's tests hold files that are invalid on purpose.
    excluded = {"site-packages", "dist-packages", "__pycache__", "test"}
    paths = [
        path for path in root.rglob("*.py") if not excluded & set(path.relative_to(root).parts)
    ]
    paths = [path for path in paths if _is_text(path)]
    if not paths:
        raise FileNotFoundError(f"this Python ({sys.executable}) has no sources of its own library")
    return sorted(paths)


def _is_text(path: Path) -> bool:
    try:
        return bool(path.read_text(encoding="utf-8").strip())
    except UnicodeDecodeError:
        return False


def _suffix(path: Path) -> str:
    """Return the suffix without a compression's: ``.jsonl`` of ``a.jsonl.gz``."""
    compressed = path.suffix.lower() in compression.SUFFIXES
    return (Path(path.stem).suffix if compressed else path.suffix).lower()


def _document_unit(path: Path) -> str:
    return _UNITS.get(_suffix(path), "file")


def _plain_parts(path: Path) -> Iterator[str]:
    """Yield a file's text, cut while it is read."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    text, read, ended = "", 0, False
    with compression.open_decompressed(path) as file:
        while not ended:
            chunk = file.read(_CHUNK)
            # The decoder still holds the bytes of a character that the last chunk cut in two.
            begin, ended = read - len(decoder.getstate()[0]), not chunk
            try:
                decoded = decoder.decode(chunk, final=ended)
            except UnicodeDecodeError as error:
                raise _utf8_error(path, begin + error.start) from error
            if "\0" in decoded:
                raise ValueError(
                    f"{path} holds a NUL at byte {read + chunk.index(0)}: it is damaged, or not "
                    "UTF-8 (UTF-16?); convert it first, or delete them (tr -d '\\000')"
                )
            read += len(chunk)
            text += decoded
            *complete, text = cut_document(text)
            yield from complete
    yield text


def _parse_line(line: bytes, where: str) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _utf8_error(where, error.start) from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(
            f"{where} is not JSON ({error}); a line must hold one whole object, {{...}}: "
            "`jq -c .` writes objects so, `jq -c '.[]'` those of a list"
        ) from error


def _utf8_error(where: object, byte: int) -> ValueError:
    return ValueError(f"{where} is not UTF-8 at byte {byte}; convert it first")
