"""Documents from every kind of file, one at a time, and errors that say where."""

import bz2
import gzip
import json
import lzma

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from layermem.data.sources import open_source

TEXTS = ["one", "zwei\nlines", "drei ∞"]


def json_lines(texts=TEXTS):
    return "".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(texts)).encode()


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [
        ("", bytes),
        (".xz", lzma.compress),
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".zst", zstandard.ZstdCompressor().compress),
    ],
    ids=["plain", "xz", "gz", "bz2", "zst"],
)
def test_json_lines_plain_and_compressed(tmp_path, suffix, compress):
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(compress(json_lines() + b"\n"))
    assert list(open_source(str(path))) == TEXTS


def test_parquet_by_its_column(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"body": TEXTS * 300, "n": list(range(900))}), path)
    assert list(open_source(str(path), text_field="body")) == TEXTS * 300
    with pytest.raises(
        ValueError, match=r"no field 'text' \(it has body, n\); set data.text_field"
    ):
        list(open_source(str(path)))


def test_a_bad_row_is_named_however_far_it_is(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": [*TEXTS * 200, None]}), path)
    with pytest.raises(ValueError, match="row 600: the field 'text' must be a string, got None"):
        list(open_source(str(path)))


def test_a_folder_is_all_its_files_in_order(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "a.txt").write_text("whole\nfile")
    (tmp_path / "b" / "c.jsonl").write_bytes(json_lines())
    (tmp_path / "ignored.png").write_bytes(b"\x89")
    assert list(open_source(str(tmp_path))) == ["whole\nfile", *TEXTS]


def test_the_standard_library_is_at_hand():
    source = open_source("stdlib")
    texts = list(source)
    assert len(texts) > 200 and any("class Path" in text for text in texts)
    assert source.fingerprint() == open_source("stdlib").fingerprint()


def test_the_fingerprint_follows_the_content_and_not_the_name(tmp_path):
    a, b = tmp_path / "a.txt", tmp_path / "b.txt"
    a.write_text("x")
    b.write_text("x")
    assert open_source(str(a)).fingerprint() == open_source(str(b)).fingerprint()
    b.write_text("y")
    assert open_source(str(a)).fingerprint() != open_source(str(b)).fingerprint()


def test_the_fingerprint_follows_what_is_a_document(tmp_path):
    marks = []
    for name in ("a.jsonl", "a.json", "a.txt", "a.md"):
        (tmp_path / name).write_bytes(json_lines())
        marks.append(open_source(str(tmp_path / name)).fingerprint())
    lines, same, whole, as_well = marks
    assert lines == same != whole == as_well


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a"}\n{"text": \n', r"a.jsonl, line 2 is not JSON"),
        (b'{"text": "a"}\n\xff\n', r"line 2 is not UTF-8 at byte 0; convert it first"),
        (b'{"body": "a"}\n', r"line 1 has no field 'text' \(it has body\); set data.text_field"),
        (b'{"text": 3}\n', r"line 1: the field 'text' must be a string, got 3"),
        (b"[1]\n", r"line 1 has no field 'text'"),
    ],
    ids=["json", "utf-8", "field", "type", "list"],
)
def test_bad_lines_are_named(tmp_path, content, message):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(open_source(str(path)))


@pytest.mark.parametrize("name", ["nowhere.jsonl", "./nowhere", "/no/where", "a/b/c", "no.txt:x"])
def test_a_path_that_is_not_there(name):
    with pytest.raises(FileNotFoundError, match="does not exist; data.source is a file"):
        open_source(name)


def test_a_folder_without_text(tmp_path):
    with pytest.raises(ValueError, match="holds no file of a kind"):
        open_source(str(tmp_path))


def test_a_hugging_face_dataset_by_name(monkeypatch):
    import datasets

    seen = []

    def load_dataset(name, subset, *, split, streaming):
        seen.append((name, subset, split, streaming))
        return datasets.Dataset.from_dict({"text": TEXTS})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    source = open_source("team/corpus", subset="small", streaming=False)
    assert list(source) == TEXTS
    assert len(source.fingerprint()) == 64
    assert list(open_source("team/corpus:test", streaming=True)) == TEXTS
    assert seen == [
        ("team/corpus", "small", "train", False),
        ("team/corpus", None, "test", True),
    ]


def test_splits_of_one_streamed_dataset_are_told_apart(monkeypatch):
    import datasets

    whole = datasets.Dataset.from_dict({"text": TEXTS}).to_iterable_dataset()
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: whole)
    marks = [open_source(name, streaming=True).fingerprint() for name in ("a:test", "a:train", "a")]
    assert marks[0] != marks[1] == marks[2]


def test_a_dataset_that_cannot_be_loaded(monkeypatch):
    import datasets

    def load_dataset(*_, **__):
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(ValueError, match="team/corpus is neither a local path nor .*no network"):
        list(open_source("team/corpus"))
