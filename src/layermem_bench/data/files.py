"""Files of documents and of records: what one is of, its lines or rows, decompressed as it is read.

    {"text": "Who?", "label": 1}    .jsonl .ndjson .json: an object on each line
    columns                         .parquet: a column for each field; 256 rows are held at once
    anything else                   plain text

Each may be compressed (.gz, .bz2, .xz, .zst). ``datasets`` reads these files otherwise, without an
error: a text such as "2020-01-01" becomes a date, and its errors name no line.
"""

import bz2
import glob
import gzip
import io
import json
import lzma
import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

# The part of a file that is one document; of other files, all of it is.
_UNITS = {".jsonl": "line", ".ndjson": "line", ".json": "line", ".parquet": "row"}
SUFFIXES = (*_UNITS, ".txt", ".md", ".py")
"""Kinds of files that are read of a folder."""
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


def kind_of(path: Path) -> str:
    """Return the suffix without a compression's, in small letters: ``.jsonl`` of ``a.JSONL.gz``."""
    return (Path(path.stem).suffix if is_compressed(path) else path.suffix).lower()


def document_unit(path: Path) -> str:
    """Return the part of a file that is one document: "line", "row", or all of it, "file"."""
    return _UNITS.get(kind_of(path), "file")


def is_compressed(path: Path) -> bool:
    """Return whether a file's suffix is that of a compression."""
    return path.suffix.lower() in _COMPRESSED


def find_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that hold text, behind links too, except hidden ones."""
    paths = (folder / name for name in glob.iglob("**", root_dir=folder, recursive=True))
    return (path for path in paths if kind_of(path) in SUFFIXES and path.is_file())


def json_lines(path: Path, begin: int = 0, end: float = math.inf) -> Iterator[tuple[Any, str]]:
    """Yield the value of each line that starts at these bytes; empty lines have none."""
    with open_decompressed(path) as file:
        place = begin
        if begin:
            # From the byte before, whose line is another slice's: it may end just there.
            file.seek(begin - 1)
            place += len(file.readline()) - 1
        for number, line in enumerate(file, 1):
            if place >= end:
                return
            place += len(line)
            where = f"{path}, line {number}" + f" after byte {begin}" * bool(begin)
            # Files that were joined have byte order marks within.
            text = line.decode().removeprefix("\ufeff").strip(" \t\r\n\v\f")
            try:
                if text:
                    yield json.loads(text), where
            except (json.JSONDecodeError, RecursionError) as error:
                raise ValueError(f"{where} is not one whole object of JSON: {error}") from error


def parquet_rows(path: Path, only: str) -> Iterator[tuple[Any, str]]:
    """Yield each row with its field ``only``, or with all fields where it has none of this name."""
    # Imported where such a file is read: it takes longer than all the rest.
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(path) as file:
            columns = [only] if only in file.schema_arrow.names else None
            batches = file.iter_batches(batch_size=256, columns=columns)
            rows = (row for batch in batches for row in batch.to_pylist())
            yield from ((row, f"{path}, row {number}") for number, row in enumerate(rows))
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged or no Parquet file: {error}") from error


@contextmanager
def open_decompressed(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file's content, of all members of a compressed file; what is damaged, cut short or
    not UTF-8 while the block reads it is a ``ValueError``."""
    opening: dict[str, Callable[[Path, str], Any]] = {
        ".gz": gzip.open,
        ".bz2": bz2.open,
        ".xz": lzma.open,
        ".zst": _open_zstandard,
    }
    with opening.get(path.suffix.lower(), open)(path, "rb") as file:
        try:
            yield cast("IO[bytes]", file)
        except (EOFError, OSError, zlib.error, lzma.LZMAError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is damaged, cut short or not UTF-8: {error}") from error


def _open_zstandard(path: Path, mode: str) -> io.BufferedReader:
    # The package zstandard reads one frame of several, and takes one cut short for whole.
    import pyarrow

    return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"))
