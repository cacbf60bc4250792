"""Pieces of a source are, in a row, its documents, whatever their size."""

import bz2
import gzip
import json
import re

import pyarrow
import pytest
from pyarrow import parquet

from layermem_bench.data import pieces, sources
from layermem_bench.data.pieces import divide, read_piece
from layermem_bench.data.sources import HubDataset, open_source

COMMIT = "0123456789abcdef" * 2 + "01234567"
TEXTS = [f"{i} ∞ a document\nof {i} lines\n" * (i % 9) for i in range(120)]


@pytest.fixture(params=[100, 1000, 4000, 10**9])
def size(request, monkeypatch):
    monkeypatch.setattr(pieces, "SMALLEST", request.param)
    return request.param


def json_lines(ending="\n"):
    return "".join(json.dumps({"text": t}) + ending for t in TEXTS).encode()


def joined(source, most=None):
    """Return the parts of all pieces, and how many pieces there are."""
    divided = json.loads(json.dumps(divide(source, most)))
    return [part for piece in divided for part in read_piece(source, piece)], len(divided)


FILES = {
    "a.jsonl": json_lines,
    "b.jsonl.gz": lambda: gzip.compress(json_lines()),
    "c.jsonl": lambda: json_lines("\r\n\n\n"),
    "d.txt": lambda: "".join(TEXTS).encode(),
    "e.md.bz2": lambda: bz2.compress("".join(TEXTS).encode()),
    "f.txt": lambda: b"",
    "g.jsonl": lambda: b"\xef\xbb\xbf" + json_lines() + b'{"text": "no line end"}',
}


@pytest.mark.parametrize("name", FILES)
def test_pieces_of_a_file_are_the_file(tmp_path, size, name, monkeypatch):
    monkeypatch.setattr(sources, "MAX_CHARACTERS", 50)
    path = tmp_path / name
    path.write_bytes(FILES[name]())
    source = open_source(str(path))
    found, count = joined(source)
    assert found == list(source.parts())
    assert count == 1 if size == 10**9 or name == "f.txt" else count > 1 or size == 4000
    assert count <= 8 or path.suffix not in (".gz", ".bz2")


def test_pieces_of_a_folder_are_the_folder(tmp_path, size, monkeypatch):
    """Parts of a long file in a folder go to the split of its first part."""
    monkeypatch.setattr(sources, "MAX_CHARACTERS", 50)
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content())
    parquet.write_table(pyarrow.table({"text": TEXTS}), tmp_path / "h.parquet", row_group_size=7)
    source = open_source(str(tmp_path))
    found, count = joined(source)
    assert found == list(source.parts())
    # Small files are read together.
    assert count == 1 if size == 10**9 else count > 8


def test_row_groups_are_divided_and_rows_counted(tmp_path, size):
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": [*TEXTS[:-1], None]})
    parquet.write_table(table, path, row_group_size=7)
    source, good = open_source(str(path)), []
    with pytest.raises(ValueError, match=r"a.parquet, row 119: text must be a text"):
        for piece in divide(source):
            good += read_piece(source, piece)
    parquet.write_table(table.slice(0, 119), path, row_group_size=7)
    found, count = joined(source)
    assert [text for text, _ in found] == TEXTS[:-1] and (count > 1) == (size < 10**9)


@pytest.mark.parametrize("most", [1, 10, 77, 10_000])
def test_the_first_documents_are_those_of_the_whole(tmp_path, size, most):
    path = tmp_path / "a.jsonl"
    path.write_bytes(json_lines())
    source = open_source(str(path))
    found, count = joined(source, most)
    assert found == list(source.parts())[:most]
    assert count == 1 or size < 10**9
    if most == 1:
        assert count == 1


def test_a_line_that_is_invalid_is_found_again(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "SMALLEST", 1000)
    path = tmp_path / "a.jsonl"
    path.write_bytes(json_lines() + b"not JSON\n")
    source = open_source(str(path))
    *_, last = divide(source)
    with pytest.raises(ValueError, match=r"line (\d+) after byte (\d+) is not JSON") as error:
        list(read_piece(source, last))
    number, byte = map(int, re.findall(r"line (\d+) after byte (\d+)", str(error.value))[0])
    after = path.read_bytes()[byte:].split(b"\n", 1)[1]
    assert after.split(b"\n")[number - 1] == b"not JSON"


def test_a_compressed_file_that_is_cut_short_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "SMALLEST", 1000)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(json_lines())[:-20])
    with pytest.raises(ValueError, match="a.jsonl.gz is cut short"):
        divide(open_source(str(path)))


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """Have a dataset's name stand for local Parquet files."""
    import datasets

    load, files = datasets.load_dataset, []
    for i in range(3):
        files.append(str(tmp_path / f"{i}.parquet"))
        parquet.write_table(pyarrow.table({"text": TEXTS[i::3], "id": TEXTS[i::3]}), files[i])

    def load_dataset(name, subset, *, split, streaming, revision):
        folder = str(tmp_path / "datasets")
        options = {"data_files": files, "split": split, "cache_dir": folder}
        return load("parquet", streaming=streaming, **options)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return [text for i in range(3) for text in TEXTS[i::3]]


@pytest.mark.parametrize("streaming", [True, False])
def test_files_of_a_dataset_are_pieces_where_it_is_streamed(shards, streaming, monkeypatch, size):
    source = HubDataset("name", "train", "text", None, COMMIT, streaming)
    found, count = joined(source)
    assert found == [(text, text) for text in shards]
    assert count == 3 if streaming else (count > 1) == (size < 10**9)
    assert joined(source, 50) == (found[:50], 1 if streaming else joined(source, 50)[1])


def test_a_record_of_a_streamed_file_is_named(shards):
    source = HubDataset("name", "train", "wrong", None, COMMIT, True)
    with pytest.raises(ValueError, match="name, file 1 of 3, record 0 has no field 'wrong'"):
        list(read_piece(source, divide(source)[1]))
