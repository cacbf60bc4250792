"""A source divided into pieces, which can be read alone: in a row they are the source's documents.

    {"spans": [[FILE, 0, 16777216]], ...}   lines that start at these bytes, once decompressed
    {"spans": [[FILE, 3, 5]], ...}          row groups 3 and 4 of a Parquet file
    {"rows": [0, 5000], ...}                rows of a dataset
    {"shard": [2, 15], "size": ...}                 the third of 15 files of a streamed dataset

The pieces depend on the source alone. A piece is an object of JSON; ``limit`` is the most parts of
documents that it has. Plain files are opened where a piece begins; compressed ones are read up to
there, so that such a file has at most eight pieces.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from layermem_bench.config.hashing import hash_to_unit_interval
from layermem_bench.data.records import (
    JSON_LINES,
    decompressed_size,
    file_records,
    is_compressed,
    kind_of,
    row_groups,
)
from layermem_bench.data.sources import (
    HubDataset,
    LocalFiles,
    Source,
    cut_document,
    document_unit,
    parts_of,
    plain_parts,
)

Piece: TypeAlias = dict[str, Any]
# A file, where a reader of it begins and ends, and how many bytes of text that is, nearly.
Span: TypeAlias = tuple[Path, int, int | None, int]
# Bytes of text in a piece: some seconds of work, so that little is lost by a kill.
SMALLEST = 2**24
# Pieces of a large source, each of which has files of its own.
_MOST = 4096
# Pieces of a compressed file, each of whose readers decompresses all before its own piece.
_MOST_OF_COMPRESSED = 8
# How many times as long compressed text is without, usually.
_RATIO = 4


def divide(source: Source, most: int | None = None) -> list[Piece]:
    """Return the pieces of a source; of at most so many parts of documents, where that is given."""
    if isinstance(source, HubDataset):
        # To count what is streamed would fetch it twice.
        pieces = [_whole_stream()] if source.streaming and most else _divide_dataset(source)
    else:
        assert isinstance(source, LocalFiles)
        pieces = _divide_files(source)
    return pieces if most is None else _limit(source, pieces, most)


def read_piece(source: Source, piece: Piece) -> Iterator[tuple[str, str]]:
    """Yield the texts of a piece as ``Source.parts`` does."""
    if isinstance(source, HubDataset):
        parts = _dataset_parts(source, piece)
    else:
        assert isinstance(source, LocalFiles)
        parts = _file_parts(source, piece)
    return islice(parts, piece.get("limit"))


def is_held_out(first: str, share: float) -> bool:
    """Return whether a document is among the share that is held out, by how it begins.

    White space counts, as it did when runs were recorded: of copies that differ in it, some may be
    held out, and training leaves out the others (``piece_writing``).
    """
    return hash_to_unit_interval(first) < share


def _limit(source: Source, pieces: list[Piece], most: int) -> list[Piece]:
    """Return the pieces that hold the first ``most`` parts."""
    if len(pieces) == 1:
        return [pieces[0] | {"limit": most}]
    kept = []
    for piece in pieces:
        if most <= 0:
            break
        kept.append(piece | {"limit": most})
        most -= sum(1 for _ in islice(read_piece(source, piece), most))
    return kept


def _divide_files(source: LocalFiles) -> list[Piece]:
    total = sum(path.stat().st_size for path in source.paths)
    size = max(SMALLEST, total // _MOST)
    pieces: list[Piece] = [{"spans": [], "size": 0}]
    for path in source.paths:
        for where, begin, end, weight in _divide_file(path, size):
            if pieces[-1]["spans"] and pieces[-1]["size"] + weight > size:
                pieces.append({"spans": [], "size": 0})
            pieces[-1]["spans"].append([str(where), begin, end])
            pieces[-1]["size"] += weight
    return pieces


def _divide_file(path: Path, size: int) -> Iterator[Span]:
    if document_unit(path) == "row":
        yield from _group_rows(path, size)
        return
    compressed, length = is_compressed(path), path.stat().st_size
    weight = length * _RATIO if compressed else length
    if weight <= size:
        yield path, 0, None, weight
        return
    bounds = _line_bounds(path, size) if kind_of(path) in JSON_LINES else _cuts(path, size)
    if compressed:
        bounds = bounds[:: -(-len(bounds) // _MOST_OF_COMPRESSED)]
    ends: list[int | None] = [*bounds[1:], None]
    for begin, end in zip(bounds, ends, strict=True):
        yield path, begin, end, weight // len(bounds)


def _line_bounds(path: Path, size: int) -> list[int]:
    length = decompressed_size(path)
    return list(range(0, max(length, 1), size))


def _cuts(path: Path, size: int) -> list[int]:
    """Return the byte at which the first part of every piece of a plain file starts."""
    bounds, place = [0], 0
    for part in plain_parts(path):
        if place - bounds[-1] >= size:
            bounds.append(place)
        place += len(part.encode())
    return bounds


def _group_rows(path: Path, size: int) -> Iterator[Span]:
    begin, weight, sizes = 0, 0, row_groups(path)
    for number, each in enumerate(sizes):
        if weight and weight + each > size:
            yield path, begin, number, weight
            begin, weight = number, 0
        weight += each
    yield path, begin, len(sizes), weight


def _file_parts(source: LocalFiles, piece: Piece) -> Iterator[tuple[str, str]]:
    for name, begin, end in piece["spans"]:
        path = Path(name)
        if document_unit(path) != "file":
            records = file_records(path, only=source.text_field, begin=begin, end=end)
            yield from parts_of(cut_document(r.document(source.text_field)) for r in records)
            continue
        first = None if source.single_document else next(plain_parts(path))
        for text in plain_parts(path, begin, end):
            yield text, text if first is None else first


def _divide_dataset(source: HubDataset) -> list[Piece]:
    data = source.load()
    if source.streaming:
        count = data.num_shards
        return [{"shard": [number, count], "size": SMALLEST} for number in range(count)]
    rows, size = len(data), data.data.nbytes
    count = max(1, min(size // max(SMALLEST, size // _MOST), rows))
    bounds = [rows * number // count for number in range(count + 1)]
    return [
        {"rows": [begin, end], "size": size // count}
        for begin, end in zip(bounds, bounds[1:], strict=False)
    ]


def _whole_stream() -> Piece:
    return {"shard": [0, 1], "size": SMALLEST}


def _dataset_parts(source: HubDataset, piece: Piece) -> Iterator[tuple[str, str]]:
    data, where, first = source.load(), source.name, 0
    if "rows" in piece:
        first, end = piece["rows"]
        data = data.select(range(first, end))
    else:
        number, count = piece["shard"]
        if count > 1:
            data = data.shard(num_shards=count, index=number, contiguous=True)
            where = f"{where}, file {number} of {count}"
    return parts_of(source.documents_of(data, where, first))
