"""Local files as sources of documents: JSON lines, Parquet and text, of a path or a folder.

A plain file is cut while it is read; of JSON lines one line is held in memory, of Parquet 256 rows
and what its reader keeps of a row group. ``datasets`` would hold a plain file whole, and write its
ends of lines otherwise.

It does not know: Hugging Face datasets, tokens, blocks.
"""

import codecs
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import final

from layermem.data.compression import kind_of, open_decompressed
from layermem.data.documents import Source, cut_document
from layermem.data.records import JSON_LINES, file_records, text_of_document

# The part of a file that is one document; of other files, all of it is.
_UNITS = {**dict.fromkeys(JSON_LINES, "line"), ".parquet": "row"}
_SUFFIXES = (*_UNITS, ".txt", ".md", ".py")
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
            if _document_unit(path) == "file":
                yield _plain_parts(path)
            else:
                for record in file_records(path, only=self.text_field):
                    yield cut_document(text_of_document(record, self.text_field))

    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.text_field.encode())
        for path in self.paths:
            digest.update(_document_unit(path).encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()


def open_path(path: Path, text_field: str) -> LocalFiles | None:
    """Return the documents of a file or folder, or None where there is neither."""
    if path.is_file():
        if kind_of(path) == ".tar":
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
            if kind_of(path) not in _SUFFIXES:
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


def _document_unit(path: Path) -> str:
    return _UNITS.get(kind_of(path), "file")


def _plain_parts(path: Path) -> Iterator[str]:
    """Yield a file's text, cut while it is read."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    text, read, ended = "", 0, False
    with open_decompressed(path) as file:
        while not ended:
            chunk = file.read(_CHUNK)
            # The decoder still holds the bytes of a character that the last chunk cut in two.
            begin, ended = read - len(decoder.getstate()[0]), not chunk
            try:
                decoded = decoder.decode(chunk, final=ended)
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path} is not UTF-8 at byte {begin + error.start}; convert it first"
                ) from error
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
