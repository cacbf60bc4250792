"""Documents from every kind of file, one at a time, and errors that say where."""

import bz2
import functools
import gzip
import json
import logging
import lzma
from types import SimpleNamespace

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from layermem_bench.data import sources
from layermem_bench.data.sources import open_source

PACKED = {
    ".xz": lzma.compress,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
COMMIT = "0123456789abcdef" * 2 + "01234567"
TEXTS = ["one", "zwei\nlines", "drei ∞"]


def json_lines(texts=TEXTS):
    return "".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(texts)).encode()


@pytest.mark.parametrize("kind", ["jsonl", "ndjson", "json", "JSONL"])
@pytest.mark.parametrize("suffix", ["", *PACKED, ".GZ"])
def test_json_lines_plain_and_compressed(tmp_path, suffix, kind):
    path = tmp_path / f"a.{kind}{suffix}"
    path.write_bytes(PACKED.get(suffix.lower(), bytes)(json_lines() + b"\n"))
    assert list(open_source(str(path))) == list(open_source(str(tmp_path))) == TEXTS


# Enough for several blocks of every compression, and little alike.
SOME_TEXT = b"".join(b"%x\n" % (i * 2654435761 % 2**32) for i in range(50_000))


@functools.cache
def packed_as(suffix, kind="txt"):
    return PACKED[suffix](SOME_TEXT if kind == "txt" else json_lines(TEXTS * 1000))


@pytest.mark.parametrize("suffix", PACKED)
def test_every_member_of_a_compressed_file_is_read(tmp_path, suffix):
    path, text = tmp_path / f"a.txt{suffix}", SOME_TEXT
    members = [text[:100_000], b"", text[100_000:100_007], text[100_007:]]
    path.write_bytes(b"".join(map(PACKED[suffix], members)))
    assert "".join(open_source(str(path))).encode() == text
    if suffix in (".gz", ".xz"):
        # As their tools do.
        path.write_bytes(packed_as(suffix) + bytes(8192) + PACKED[suffix](b"end") + bytes(8))
        assert "".join(open_source(str(path))).encode() == text + b"end"
    if suffix == ".zst":
        skipped = bytes.fromhex("502a4d18 03000000") + b"abc"
        path.write_bytes(skipped + packed_as(suffix) + skipped)
        assert "".join(open_source(str(path))).encode() == text


@pytest.mark.parametrize("kind", ["txt", "jsonl"])
@pytest.mark.parametrize("suffix", PACKED)
def test_a_compressed_file_that_is_cut_short_is_refused(tmp_path, suffix, kind):
    path, packed = tmp_path / f"a.{kind}{suffix}", packed_as(suffix, kind)
    contents = [packed[:size] for size in (0, 1, 5, len(packed) // 2, len(packed) - 1)]
    # Of a second member, too.
    contents += [packed + packed[:size] for size in (1, len(packed) - 1)]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{path} is cut short"):
            list(open_source(str(path)))


@pytest.mark.parametrize("suffix", PACKED)
def test_a_compressed_file_that_is_damaged_is_refused(tmp_path, suffix):
    path, packed = tmp_path / f"a.txt{suffix}", packed_as(suffix)
    middle = len(packed) // 2
    for content in (
        packed + b"what follows it is another thing",
        packed + packed + b"\xff" * 100,
        packed[:middle] + bytes([packed[middle] ^ 255]) + packed[middle + 1 :],
        SOME_TEXT,
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{path} is damaged before byte \d+.* again"):
            list(open_source(str(path)))


def test_a_plain_file_is_cut_at_ends_of_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_CHARACTERS", 100)
    path = tmp_path / "a.txt"
    texts = {
        "lines": "".join(f"line {i} ∞\r\n" for i in range(200)),
        "one line": "word ∞ " * 300,
        "no space": "∞" * 777,
        "as long as may be": "x" * 99 + "\n",
        "a line's end too early": "\n" + "x" * 250 + "\n",
    }
    for text in texts.values():
        path.write_bytes(text.encode())
        parts = {}
        for chunk in (1, 7, 10**6):
            monkeypatch.setattr(sources, "_CHUNK", chunk)
            parts[chunk] = list(open_source(str(path)))
        assert parts[1] == parts[7] == parts[10**6]
        assert "".join(parts[1]) == text and max(map(len, parts[1])) <= 100
        assert len(parts[1]) <= 1 + len(text) // 50
        # A line of JSON that holds the same is cut alike.
        (tmp_path / "b.jsonl").write_text(json.dumps({"text": text}))
        assert list(open_source(str(tmp_path / "b.jsonl"))) == parts[1]
    path.write_bytes(texts["lines"].encode())
    assert all(part.endswith("\n") for part in open_source(str(path)))
    path.write_bytes(texts["one line"].encode())
    assert all(part.startswith(" ") for part in list(open_source(str(path)))[1:])
    path.write_bytes(texts["as long as may be"].encode())
    assert list(open_source(str(path))) == [texts["as long as may be"]]


def test_a_folder_is_read_through_links_without_hidden_files(tmp_path):
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    for path in (folder / "sub", folder / ".ipynb_checkpoints", elsewhere):
        path.mkdir(parents=True)
    (folder / "a.txt").write_text("near")
    (folder / "sub" / "b.txt").write_text("below")
    (elsewhere / "c.txt").write_text("far")
    (folder / "link").symlink_to(elsewhere)
    for hidden in (".ipynb_checkpoints/a-checkpoint.txt", "._a.txt"):
        (folder / hidden).write_text("hidden")
    assert list(open_source(str(folder))) == ["near", "far", "below"]
    # Twice the same, or for ever.
    (elsewhere / "back").symlink_to(folder)
    with pytest.raises(ValueError, match=r"link/back leads to a folder .* already; delete"):
        open_source(str(folder))
    (elsewhere / "back").unlink()
    (folder / "d.jsonl").symlink_to(tmp_path / "not-fetched")
    with pytest.raises(FileNotFoundError, match=r"d.jsonl leads to .*not-fetched, which does not"):
        open_source(str(folder))


def test_what_is_no_text_of_ours_is_refused(tmp_path, monkeypatch):
    archive, wide = tmp_path / "a.tar.gz", tmp_path / "b.txt"
    archive.write_bytes(gzip.compress(b"a.txt" + bytes(507) + b"text" + bytes(508)))
    (tmp_path / "a.csv").write_text("id,text\n1,hello\n")
    with pytest.raises(ValueError, match=r"a.csv is a table.*JSON lines"):
        open_source(str(tmp_path / "a.csv"))
    with pytest.raises(ValueError, match=r"a.tar.gz is an archive; unpack it"):
        open_source(str(archive))
    wide.write_bytes("ab".encode("utf-16-le"))
    for chunk in (1, 10**6):
        monkeypatch.setattr(sources, "_CHUNK", chunk)
        with pytest.raises(ValueError, match=r"b.txt holds a NUL at byte 1: .*UTF-16"):
            list(open_source(str(wide)))


@pytest.mark.parametrize("chunk", [1, 7, 10**6])
def test_what_is_not_utf8_is_named_by_its_byte(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(sources, "_CHUNK", chunk)
    path = tmp_path / "a.txt"
    for content in ("∞".encode() * 10 + b"\xff more", "∞".encode() * 10 + b"\xe2\x88"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"a.txt is not UTF-8 at byte 30; convert it first"):
            list(open_source(str(path)))


def test_parquet_by_its_column(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"body": TEXTS * 300, "n": list(range(900))}), path)
    assert list(open_source(str(path), text_field="body")) == TEXTS * 300
    with pytest.raises(
        ValueError, match=r"no field 'text' \(it has body, n\); name it by --data.text-field"
    ):
        list(open_source(str(path)))


def test_a_bad_row_is_named_however_far_it_is(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": [*TEXTS * 200, None]}), path)
    with pytest.raises(ValueError, match="row 600: text must be a text, got None"):
        list(open_source(str(path)))


def test_a_damaged_parquet_file_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": [f"{i} text" for i in range(9000)]}), path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"text", bytes(4000) + whole[4000:]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"(?s){path} is damaged, cut short .* again"):
            list(open_source(str(path)))


def test_a_folder_is_all_its_files_in_order(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "a.txt").write_text("whole\nfile")
    (tmp_path / "b" / "c.jsonl").write_bytes(json_lines())
    (tmp_path / "ignored.png").write_bytes(b"\x89")
    assert list(open_source(str(tmp_path))) == ["whole\nfile", *TEXTS]


def test_the_standard_library_is_at_hand(tmp_path, monkeypatch):
    assert len(sources.standard_library()) > 200
    files = {"b.py": "b", "a/c.py": "c", "test/d.py": "d", "site-packages/e.py": "e", "f.py": " \n"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "g.py").write_bytes(b"\xff")
    monkeypatch.setattr(sources.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    assert list(open_source("stdlib")) == ["c", "b"]
    with pytest.raises(ValueError, match="stdlib .* no revision 'v1'"):
        open_source("stdlib", revision="v1")


def test_the_fingerprint_follows_the_content_and_not_the_name(tmp_path):
    a, b = tmp_path / "a.txt", tmp_path / "b.txt"
    a.write_text("x")
    b.write_text("x")
    assert open_source(str(a)).fingerprint() == open_source(str(b)).fingerprint()
    b.write_text("y")
    assert open_source(str(a)).fingerprint() != open_source(str(b)).fingerprint()


def test_the_fingerprint_follows_what_is_a_document(tmp_path):
    marks = []
    for name in ("a.jsonl", "a.json", "a.py", "a.md"):
        (tmp_path / name).write_bytes(json_lines())
        marks.append(open_source(str(tmp_path / name)).fingerprint())
    lines, same, whole, as_well = marks
    assert lines == same != whole == as_well


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a"}\n{"text": \n', r"a.jsonl, line 2 is not JSON"),
        (b'{"text": "a"}\n\xff\n', r"line 2 is not UTF-8 at byte 0; convert it first"),
        (
            b'{"body": "a"}\n',
            r"line 1 has no field 'text' \(it has body\); name it by --data.text-field",
        ),
        (b'{"text": 3}\n', r"line 1: text must be a text, got 3"),
        (b'{"text": "a"}\n{"text": "\\ud800b"}\n', r"a.jsonl, line 2: .* half a surrogate pair"),
        (b'[\n{"text": "a"}\n]', r"line 1 is not JSON .*; a line must hold one whole object"),
        (b'{\n"text": "a"}', r"line 1 is not JSON .*; a line must hold one whole object"),
        (b'[{"text": "a"}]', r"line 1 must hold an object, .* got \[.*jq -c"),
        (b"[" * 100_000, r"line 1 is not JSON \(maximum recursion"),
        (b"[1]\n", r"line 1 must hold an object, .* got \[.*jq -c"),
    ],
    ids=[
        *("json", "utf-8", "field", "type", "surrogate", "lines of a list", "lines of an object"),
        *("a list", "deep", "list"),
    ],
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


@pytest.fixture
def hub(monkeypatch):
    """Stand in for the hub, whose names have moved to a commit; return what was asked of it."""
    import datasets
    import huggingface_hub

    seen = []

    def load_dataset(name, subset, *, split, streaming, revision):
        seen.append((name, subset, split, streaming, revision))
        made = datasets.Dataset.from_dict({"text": [*TEXTS, str(revision)]})
        return made.to_iterable_dataset() if streaming else made

    def dataset_info(self, name, *, revision=None):
        return SimpleNamespace(sha=hub.commits[revision])

    hub = SimpleNamespace(seen=seen, commits={None: COMMIT, "v1": COMMIT[::-1]})
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    return hub


def test_a_hugging_face_dataset_by_name(hub):
    source = open_source("team/corpus", subset="small", streaming=False, revision="v1")
    assert list(source) == [*TEXTS, "v1"]
    assert len(source.fingerprint()) == 64
    # What is only looked at needs no commit.
    assert list(open_source("team/corpus:test", streaming=True)) == [*TEXTS, "None"]
    assert hub.seen == [
        ("team/corpus", "small", "train", False, "v1"),
        ("team/corpus", None, "test", True, None),
    ]


def test_splits_and_revisions_of_one_streamed_dataset_are_told_apart(hub):
    marks = [open_source(name, streaming=True).fingerprint() for name in ("a:test", "a:train", "a")]
    assert marks[0] != marks[1] == marks[2]
    older = open_source("a", streaming=True, revision="v1").fingerprint()
    assert older not in marks
    assert open_source("a", streaming=True, revision=COMMIT[::-1]).fingerprint() == older
    # The same name is another text once the branch has moved.
    hub.commits[None] = "f" * 40
    assert open_source("a", streaming=True).fingerprint() not in (*marks, older)


def test_a_streamed_dataset_is_read_at_the_commit_it_is_told_by(hub):
    source = open_source("a", streaming=True)
    source.fingerprint()
    hub.commits[None] = "f" * 40
    assert list(source)[-1] == COMMIT


def test_a_streamed_dataset_that_names_no_commit_is_not_prepared(hub, monkeypatch):
    import huggingface_hub

    def dataset_info(self, name, *, revision=None):
        raise ConnectionError("no network")

    hub.commits[None] = None
    with pytest.raises(ValueError, match="must name a commit of a, got None"):
        open_source("a", streaming=True).fingerprint()
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    with pytest.raises(
        ValueError, match=r"commit .*cannot be determined \(no network\).*data.revision"
    ):
        open_source("a", streaming=True).fingerprint()
    assert len(open_source("a", streaming=True, revision=COMMIT).fingerprint()) == 64


def test_a_revision_of_what_is_on_this_machine_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    for source in (str(tmp_path), str(tmp_path / "a.txt")):
        with pytest.raises(ValueError, match="on this machine and has no revision 'v1'"):
            open_source(source, revision="v1")


def test_a_dataset_that_cannot_be_loaded(monkeypatch):
    import datasets

    def load_dataset(*_, **__):
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(ValueError, match="team/corpus is neither a local path nor .*no network"):
        list(open_source("team/corpus"))


@pytest.mark.parametrize("name", ["a.jsonlines", "part-00000", "a.jsonl.bak", "a.txt", "a.log.gz"])
def test_json_lines_of_another_name_are_no_text(name, tmp_path):
    content = b'\n{"text": "beta"}\n{"text": "gamma"}\n'
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(ValueError, match=f"{name} begins with a JSON object.* end in .jsonl"):
        open_source(str(path))
    (tmp_path / "a.md").write_bytes(content)
    assert len(list(open_source(str(tmp_path / "a.md")))) == 1


@pytest.mark.parametrize(
    "names",
    [
        ("data/train-00000-of-00002.parquet", "data/test-00000-of-00001.parquet"),
        ("train.jsonl", "valid.jsonl"),
        ("en/train/0.jsonl", "en/validation/0.jsonl"),
    ],
)
def test_a_folder_of_several_splits_is_refused(names, tmp_path):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"text": "a"}\n', encoding="utf-8")
    said = f"holds files of several splits .*{names[1]}.*: put those of one split into a folder"
    with pytest.raises(ValueError, match=said):
        open_source(str(tmp_path))
    assert open_source(str(tmp_path / names[0]))


def test_what_is_left_out_of_a_folder_is_said(tmp_path, caplog):
    for name in ("a.jsonl", "b.csv", "c.csv", "d", "testing.jsonl"):
        (tmp_path / name).write_text('{"text": "a"}\n', encoding="utf-8")
    with caplog.at_level(logging.INFO):
        assert len(open_source(str(tmp_path)).paths) == 2
    assert "2 files are read, left out are 2 of .csv, 1 of no suffix" in caplog.text


def test_the_name_of_a_dataset_may_have_a_dot():
    assert open_source("mlfoundations/dclm-baseline-1.0", streaming=True).name.endswith("-1.0")
