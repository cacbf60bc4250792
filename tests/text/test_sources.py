"""Documents from every kind of file, one at a time, in slices too, and errors that say where."""

import bz2
import gzip
import json
import lzma
import re
from dataclasses import replace
from types import SimpleNamespace

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from layermem_bench.config.run import Data
from layermem_bench.text import sources
from layermem_bench.text.sources import open_source

PACKED = {
    ".xz": lzma.compress,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
STREAMED = Data(streaming=True)
COMMIT = "0123456789abcdef" * 2 + "01234567"
TEXTS = ["one", "zwei\nlines", "drei ∞"]
# Enough for several blocks of every compression, and little alike.
SOME_TEXT = b"".join(b"%x\n" % (i * 2654435761 % 2**32) for i in range(50_000))


def json_lines(texts=TEXTS):
    return "".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(texts)).encode()


@pytest.mark.parametrize("kind", ["jsonl", "JSON"])
@pytest.mark.parametrize("suffix", ["", *PACKED, ".GZ"])
def test_json_lines_plain_and_compressed(tmp_path, suffix, kind):
    path = tmp_path / f"a.{kind}{suffix}"
    # Files that were joined have empty lines and byte order marks within.
    path.write_bytes(PACKED.get(suffix.lower(), bytes)("\ufeff\n \n\ufeff".encode() + json_lines()))
    assert list(open_source(str(path))) == list(open_source(str(tmp_path))) == TEXTS


@pytest.mark.parametrize("suffix", PACKED)
def test_every_member_of_a_compressed_file_is_read_and_damage_refused(tmp_path, suffix):
    path, text = tmp_path / f"a.txt{suffix}", SOME_TEXT
    members = [text[:100_000], b"", text[100_000:100_007], text[100_007:]]
    path.write_bytes(b"".join(map(PACKED[suffix], members)))
    assert "".join(open_source(str(path))).encode() == text
    packed = PACKED[suffix](text)
    middle = len(packed) // 2
    for damaged in (packed[:-3], packed[:middle], packed[:middle] + b"~~~~" + packed[middle + 4 :]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=path.name):
            list(open_source(str(path)))


def test_a_plain_file_is_cut_at_ends_of_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_CHARACTERS", 50)
    path, text = tmp_path / "a.txt", "".join(f"zeile {i} ∞\r\n" for i in range(99)) + "x" * 120
    path.write_bytes(text.encode())
    whole = list(sources.cut_document(text))
    assert list(open_source(str(path))) == whole
    assert "".join(whole) == text and max(map(len, whole)) == 50
    assert all(part.endswith("\n") for part in whole[:20])


@pytest.mark.parametrize("tasks", [2, 3, 50])
def test_slices_in_a_row_are_all_documents_once(tmp_path, tasks):
    texts = [f"text {i} " * (i % 7) for i in range(60)]
    (tmp_path / "a.jsonl").write_bytes(json_lines(texts[:30]) + b"\n")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(json_lines(texts[30:40])))
    (tmp_path / "c.txt").write_text(texts[40])
    parquet.write_table(pyarrow.table({"text": texts[41:50]}), tmp_path / "d.parquet")
    (tmp_path / "e.jsonl").write_bytes(json_lines(texts[50:]).rstrip())
    source = open_source(str(tmp_path))
    sliced = [[text for text, _ in source.parts(rank, tasks)] for rank in range(tasks)]
    assert sum(sliced, []) == list(source) == texts
    assert sum(map(bool, sliced)) > 1


def test_parquet_by_its_column(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"id": range(3), "text": TEXTS}), path)
    assert list(open_source(str(path))) == TEXTS
    with pytest.raises(ValueError, match=r"a\.parquet, row 0 has no field.*--data\.text-field"):
        list(open_source(str(path), Data(text_field="body")))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="a.parquet"):
        list(open_source(str(path)))


def test_a_folder_is_all_its_files_in_order_through_links_without_hidden_ones(tmp_path):
    folder, other = tmp_path / "corpus", tmp_path / "other"
    for place in (folder / "sub", folder / ".hidden", other):
        place.mkdir(parents=True)
    (folder / "b.txt").write_text("b")
    (folder / "a.jsonl").write_bytes(json_lines(["a"]))
    (folder / "sub" / "c.md").write_text("c")
    (folder / ".hidden" / "x.txt").write_text("x")
    (folder / "table.csv").write_text("x")
    (other / "d.py").write_text("d")
    (folder / "z").symlink_to(other)
    assert list(open_source(str(folder))) == ["a", "b", "c", "d"]


def test_the_standard_library_is_at_hand(tmp_path, monkeypatch):
    for name in ("b.py", "a.py", "test/c.py", "site-packages/d.py", "empty.py", "latin.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text({"empty.py": " "}.get(name, name))
    (tmp_path / "latin.py").write_bytes(b"\xe9")
    monkeypatch.setattr(sources.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    assert list(open_source("stdlib")) == ["a.py", "b.py"]


def test_the_fingerprint_follows_content_and_kind_and_not_the_name(tmp_path):
    def fingerprint(name, content, **fields):
        (tmp_path / name).write_bytes(content)
        return open_source(str(tmp_path / name), Data(**fields)).fingerprint()

    first = fingerprint("a.jsonl", json_lines())
    # Recorded runs name their data by it.
    assert first.startswith("5539782c9aef")
    assert fingerprint("b.jsonl", json_lines()) == first
    others = {
        fingerprint("c.txt", json_lines()),
        fingerprint("d.jsonl", json_lines(TEXTS[:2])),
        fingerprint("e.jsonl", json_lines(), text_field="id"),
    }
    assert len({first, *others}) == 4


NO_TEXT = [b"[1]", b"{", b'"text"', b'{"body": "x"}', b'{"text": 3}', rb'{"text": "\ud800"}']


@pytest.mark.parametrize(
    ("name", "line", "where"),
    [*(("a.jsonl", line, ", line 3") for line in NO_TEXT)]
    + [("a.jsonl", b"\xff", ""), ("a.txt", b"\xff", "")],
)
def test_a_bad_line_is_named(tmp_path, name, line, where):
    path = tmp_path / name
    path.write_bytes(json_lines(TEXTS[:1]) + b"\n" + line + b"\n")
    with pytest.raises(ValueError, match=re.escape(name) + where):
        list(open_source(str(path)))


@pytest.mark.parametrize("name", ["nowhere.jsonl", "./nowhere", "/no/where", "a/b/c", "no.txt:x"])
def test_a_path_that_is_not_there_and_a_folder_without_text(name, tmp_path):
    with pytest.raises(FileNotFoundError, match="data.source"):
        open_source(name)
    with pytest.raises(ValueError, match="holds no file"):
        open_source(str(tmp_path))


@pytest.fixture
def hub(monkeypatch):
    """Stand in for the hub, whose names have moved to a commit; return what was asked of it."""
    import datasets
    import huggingface_hub

    seen = []

    def load_dataset(name, subset, *, split, streaming, revision):
        seen.append((name, subset, split, streaming, revision))
        made = datasets.Dataset.from_dict({"text": [*TEXTS, str(revision)]})
        return made.to_iterable_dataset(num_shards=2) if streaming else made

    def dataset_info(self, name, *, revision=None):
        return SimpleNamespace(sha=hub.commits[revision])

    hub = SimpleNamespace(seen=seen, commits={None: COMMIT, "v1": COMMIT[::-1]})
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    return hub


def test_a_hugging_face_dataset_by_name(hub):
    how = Data(source="team/corpus.v2", subset="small", revision="v1")
    source = open_source(how.source, how)
    assert list(source) == [*TEXTS, "v1"]
    assert len(source.fingerprint()) == 64
    # Another dataset has subsets and revisions of its own; what is only looked at needs no commit.
    for name in ("team/corpus.v2:test", "team/other"):
        list(open_source(name, how))
    assert list(open_source("team/corpus:test", STREAMED)) == [*TEXTS, "None"]
    assert hub.seen == [
        ("team/corpus.v2", "small", "train", False, "v1"),
        ("team/corpus.v2", "small", "test", False, "v1"),
        ("team/other", None, "train", False, None),
        ("team/corpus", None, "test", True, None),
    ]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("tasks", [2, 5])
def test_slices_of_a_dataset_are_its_rows_once(hub, tasks, streaming):
    source = open_source("a", Data(streaming=streaming))
    sliced = [[text for text, _ in source.parts(rank, tasks)] for rank in range(tasks)]
    assert sum(sliced, []) == list(source) and sum(map(bool, sliced)) > 1


def test_a_streamed_dataset_is_told_apart_and_read_by_its_commit(hub):
    marks = [open_source(name, STREAMED).fingerprint() for name in ("a:test", "a:train", "a")]
    assert marks[0] != marks[1] == marks[2]
    older = open_source("a", replace(STREAMED, source="a", revision="v1")).fingerprint()
    assert older not in marks
    # The same name is another text once the branch has moved; an open source stays.
    opened = open_source("a", STREAMED)
    opened.fingerprint()
    hub.commits[None] = "f" * 40
    assert open_source("a", STREAMED).fingerprint() not in (*marks, older)
    assert list(opened)[-1] == COMMIT
