"""Records of files, plain or compressed: their fields, and their place for errors.

    {"text": "Who?", "label": 1}    .jsonl .ndjson .json: an object on each line
    index   sentence    label       .tsv: a header; quotation marks are text, as in GLUE's files
    sentence,label                  .csv: a header; quotation marks enclose a cell
    columns                         .parquet: a column for each field; 256 rows are held at once

``datasets`` reads these files otherwise, without an error: a text such as "2020-01-01" becomes a
date, the labels 1 and "1" one number, a short row is filled up. Its errors name no line.

Incomplete compressed data is an error (zstandard's reader and ``datasets`` let it pass), and every
member of a file (``cat a.gz b.gz`` has two) is read to its own end mark.
"""

import bz2
import csv
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast, final

import zstandard

from layermem_base.generation_settings import check_text

JSON_LINES = (".jsonl", ".ndjson", ".json")
KINDS = (*JSON_LINES, ".tsv", ".csv", ".parquet")
"""Suffixes of files of records, beside a compression's."""
# Compressed bytes decompressed at once: repeated text can be a hundred thousand times as long.
_PIECE = 4096
_MEMBERS: dict[str, Callable[[], Any]] = {
    ".xz": lzma.LZMADecompressor,
    # 31: with gzip's header and check sum.
    ".gz": lambda: zlib.decompressobj(31),
    ".bz2": bz2.BZ2Decompressor,
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}
# With what the tools pad members.
_PADDING = {".xz": b"\0", ".gz": b"\0"}


@dataclass(frozen=True, slots=True)
class Record:
    """The fields of a record, and its place for errors, such as "FILE, line 17"."""

    fields: Mapping[str, Any]
    where: str

    def field(self, name: str, mend: str = "") -> Any:
        """Return a field; where there is none, raise an error that ends in ``mend``."""
        if name not in self.fields:
            names = ", ".join(map(str, self.fields))
            raise ValueError(f"{self.where} has no field {name!r} (it has {names}){mend}")
        return self.fields[name]

    def text(self, name: str, mend: str = "", *, blank: bool = False) -> str:
        """Return a field that holds a text; ``blank``: also without anything but white space."""
        value = self.field(name, mend)
        if not isinstance(value, str) or not (blank or value.strip()):
            raise self.error(name, "be a text", value)
        check_text(value, f"{self.where}: the field {name!r}")
        return value

    def document(self, name: str) -> str:
        """Return the field of a document's text, which may be empty."""
        return self.text(name, "; name it by --data.text-field (of eval by --field)", blank=True)

    def texts(self, name: str) -> list[str]:
        """Return a field that holds a list of texts, at least one."""
        value = self.field(name)
        if not (isinstance(value, list) and value and all(isinstance(x, str) and x for x in value)):
            raise self.error(name, "be a list of texts", value)
        for text in value:
            check_text(text, f"{self.where}: the field {name!r}")
        return list(value)

    def number(self, name: str) -> int:
        """Return a field that holds a whole number, or its digits."""
        value = self.field(name)
        if isinstance(value, str) and value.strip().isdecimal():
            return int(value)
        if not isinstance(value, int):
            raise self.error(name, "be a whole number", value)
        return int(value)

    def error(self, name: str, must: str, value: Any) -> ValueError:
        """Return an error that says what a field must be or hold, and what it is."""
        return ValueError(f"{self.where}: {name} must {must}, got {value!r:.80}")


def file_records(
    path: Path, *, only: str | None = None, begin: int = 0, end: int | None = None
) -> Iterator[Record]:
    """Yield the records of a file one after the other; of Parquet ``only`` that field.

    ``begin`` and ``end``: of JSON lines those that start at these bytes of the decompressed file,
    of Parquet the row groups of these numbers.
    """
    kind = kind_of(path)
    if kind not in KINDS:
        raise ValueError(f"{path} must be one of {', '.join(KINDS)}, plain or compressed")
    if kind in JSON_LINES:
        return json_lines(path, begin, end)
    if kind == ".parquet":
        return _parquet_rows(path, only, begin, end)
    return _table_rows(path, kind)


def json_lines(path: Path, begin: int = 0, end: int | None = None) -> Iterator[Record]:
    """Yield the objects of a file of JSON lines, whatever its suffix; empty lines are none."""
    for line, where in _lines(path, begin, end):
        # Files that were joined have byte order marks within.
        line = line.removeprefix("\ufeff").strip(" \t\r\n\v\f")
        if not line:
            continue
        try:
            value = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(
                f"{where} is not JSON ({error}); a line must hold one whole object: `jq -c .` "
                "writes objects so, `jq -c '.[]'` those of a list"
            ) from error
        yield as_record(value, where)


def as_record(value: Any, where: str) -> Record:
    """Return an object of JSON as a record; raise if it is none."""
    if not isinstance(value, dict):
        mend = "; `jq -c '.[]'` writes a list's objects so" if isinstance(value, list) else ""
        raise ValueError(f"{where} must hold an object, {{...}}, got {value!r:.60}{mend}")
    return Record(value, where)


def read_json(path: Path) -> Any:
    """Return the one JSON value that a whole file holds."""
    with open_decompressed(path) as file:
        content = file.read()
    try:
        return json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); JSON lines end in .jsonl") from error


def _lines(path: Path, begin: int = 0, end: int | None = None) -> Iterator[tuple[str, str]]:
    """Yield each line that starts at a byte from ``begin`` to ``end``, with its end, and its place
    for errors; no byte order mark is before all."""
    with open_decompressed(path) as file:
        place = begin
        if begin:
            # From the byte before, whose line is another reader's: it may end just there.
            skip_bytes(file, begin - 1)
            place += len(file.readline()) - 1
        for number, line in enumerate(file, 1):
            if end is not None and place >= end:
                return
            place += len(line)
            where = f"{path}, line {number}" + f" after byte {begin - 1}" * bool(begin)
            try:
                yield line.decode("utf-8" if begin or number > 1 else "utf-8-sig"), where
            except UnicodeDecodeError as error:
                problem = f"{where} is not UTF-8 at byte {error.start}; convert it first"
                raise ValueError(problem) from error


def _table_rows(path: Path, kind: str) -> Iterator[Record]:
    """Yield the rows of a table with a header; those without any cell are left out."""
    header: list[str] = []
    for cells, where in _comma_separated(path) if kind == ".csv" else _tab_separated(path):
        if not header:
            header = cells
            if twice := sorted({name for name in header if name and header.count(name) > 1}):
                raise ValueError(
                    f"{where} names the column {', '.join(twice)} more than once: which of them "
                    "is read would be chance; give each a name of its own"
                )
        elif len(cells) != len(header):
            raise ValueError(f"{where} has {len(cells)} columns, and the header has {len(header)}")
        else:
            yield Record(dict(zip(header, cells, strict=True)), where)


def _tab_separated(path: Path) -> Iterator[tuple[list[str], str]]:
    for line, where in _lines(path):
        if line := line.rstrip("\r\n"):
            yield line.split("\t"), where


def _comma_separated(path: Path) -> Iterator[tuple[list[str], str]]:
    """Yield the cells of each row, which may stand in quotation marks, over several lines."""
    # Spreadsheets may end lines in "\r" alone.
    lines = (part for line, _ in _lines(path) for part in re.split(r"(?<=\r)(?!\n)", line) if part)
    rows, begin = csv.reader(lines, strict=True), 1
    try:
        for cells in rows:
            if cells:
                yield cells, f"{path}, line {begin}"
            begin = rows.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {begin} is no row of a .csv ({error})") from error


def skip_bytes(file: IO[bytes], count: int) -> None:
    """Go to a byte of a file that was opened just now, which may be decompressed while read."""
    if file.seekable():
        file.seek(count)
        return
    while count > 0 and (piece := file.read(min(count, 2**20))):
        count -= len(piece)


def decompressed_size(path: Path) -> int:
    """Return how many bytes a file has once it is decompressed; raise where it is damaged."""
    if not is_compressed(path):
        return path.stat().st_size
    with open_decompressed(path) as file:
        return sum(map(len, iter(lambda: file.read(2**20), b"")))


def is_compressed(path: Path) -> bool:
    """Return whether a file's suffix is that of a compression."""
    return path.suffix.lower() in _MEMBERS


def row_groups(path: Path) -> list[int]:
    """Return how many bytes each row group of a Parquet file has, decompressed."""
    with _open_parquet(path) as file:
        groups = file.metadata.num_row_groups
        return [file.metadata.row_group(i).total_byte_size for i in range(groups)]


def _parquet_rows(
    path: Path, only: str | None, begin: int = 0, end: int | None = None
) -> Iterator[Record]:
    with _open_parquet(path) as file:
        # Without the field that is to be read: all, so that an error can name them.
        columns = [only] if only in file.schema_arrow.names else None
        last = file.metadata.num_row_groups if end is None else end
        first = sum(file.metadata.row_group(i).num_rows for i in range(begin))
        groups = list(range(begin, last))
        batches = file.iter_batches(batch_size=256, columns=columns, row_groups=groups)
        rows = (row for batch in batches for row in batch.to_pylist())
        for number, row in enumerate(rows, first):
            yield Record(row, f"{path}, row {number}")


@contextmanager
def _open_parquet(path: Path) -> Iterator[Any]:
    # Imported where such a file is read: it takes longer than all the rest.
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} is damaged, cut short or no Parquet file ({error}); fetch it again"
        ) from error


@contextmanager
def open_decompressed(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file's content, decompressed where its suffix says so; reading raises ``ValueError``
    where compressed data is incomplete or damaged."""
    with path.open("rb") as file:
        if is_compressed(path):
            yield cast("IO[bytes]", io.BufferedReader(_Pieces(_decompress(file, path)), 2**16))
        else:
            yield file


def kind_of(path: Path) -> str:
    """Return the suffix without a compression's, in small letters: ``.jsonl`` of ``a.JSONL.gz``."""
    compressed = path.suffix.lower() in _MEMBERS
    return (Path(path.stem).suffix if compressed else path.suffix).lower()


def _decompress(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """Yield the content of all members of a file, one after the other."""
    suffix = path.suffix.lower()
    packed, members = b"", 0
    while packed or not members:
        member = _MEMBERS[suffix]()
        while not member.eof:
            packed = packed or file.read(_PIECE)
            if not packed:
                raise ValueError(f"{path} is cut short; fetch it or compress it again")
            try:
                plain = member.decompress(packed)
            except (OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
                raise ValueError(
                    f"{path} is damaged before byte {file.tell()} after {members} complete "
                    f"members, or not {suffix[1:]} ({error}); fetch it or compress it again"
                ) from error
            packed = b""
            yield plain
        members += 1
        packed = member.unused_data.lstrip(_PADDING.get(suffix, b""))
        while not packed and (piece := file.read(_PIECE)):
            packed = piece.lstrip(_PADDING.get(suffix, b""))


@final
class _Pieces(io.RawIOBase):
    """Pieces of bytes as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces, self.rest = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.rest and (piece := next(self.pieces, None)) is not None:
            self.rest = memoryview(piece)
        count = min(len(buffer), len(self.rest))
        buffer[:count], self.rest = self.rest[:count], self.rest[count:]
        return count
