"""Preparing text: no document is lost, repeated or in both splits; folders are complete."""

import gzip
import hashlib
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from layermem_bench.config.hashing import hash_to_unit_interval
from layermem_bench.config.run import Data
from layermem_bench.data import piece_writing, preparing, sources
from layermem_bench.data.preparing import prepare
from layermem_bench.data.tokenizers import load_tokenizer

END = 256
BOOKS = Path(__file__).parents[3] / "shared" / "data" / "lm" / "openstax_small_train.jsonl"
# Digests of prepared files, recorded before bytes were encoded without a tokenizer.
RECORDED = {
    "bytes": ["1bb27b902f90", "ceb076024b6f"],
    "words": ["de7abae1d0ba", "edd96ca696fd"],
}


@pytest.fixture
def tokenizer():
    return load_tokenizer("bytes")


def write(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def config(tmp_path, texts, **fields):
    source = write(tmp_path / "a.jsonl", texts)
    return Data(source=source, cache=str(tmp_path / "cache"), **fields)


def documents(split):
    """Cut the file at the end tokens and decode it."""
    found, current = [], []
    for token in split.array().tolist():
        if token == END:
            found.append(bytes(current).decode())
            current = []
        else:
            current.append(token)
    assert not current, "the last document has no end token"
    return found


def test_every_document_is_in_one_split_once_and_whole(tmp_path, tokenizer):
    # More than one batch, some empty, one that looks like the end token.
    texts = [f"text {i} " * (i % 7) for i in range(300)] + ["a <|endoftext|> b"]
    train, valid = prepare(config(tmp_path, texts, validation_share=0.2), tokenizer)
    kept = [text for text in texts if text]
    assert sorted(documents(train) + documents(valid)) == sorted(kept)
    assert train.documents + valid.documents == len(kept)
    assert 0.1 < valid.documents / len(kept) < 0.3
    assert [t for t in kept if t in set(documents(train))] == documents(train)
    assert train.dtype == "uint16"


@pytest.mark.parametrize("kind", ["bytes", "words"])
def test_files_are_those_of_earlier_versions(tmp_path, monkeypatch, kind):
    # Several batches, read ahead of the one that is written.
    monkeypatch.setattr(piece_writing, "_BATCH", 300)
    tokenizer = load_tokenizer("bytes")
    if kind == "words":
        tokenizer.add_tokens(["text", "<é>"])
    texts = [f"text {i} <é> 漢字 <|endoftext|>\n" * (i % 5) for i in range(200)]
    splits = prepare(config(tmp_path, texts, validation_share=0.2), tokenizer)
    digests = [hashlib.sha256(split.path.read_bytes()).hexdigest()[:12] for split in splits]
    assert digests == RECORDED[kind]


def test_a_tokenizer_that_fails_leaves_nothing(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(piece_writing, "_BATCH", 100)
    monkeypatch.setattr(piece_writing, "batch_encoder", lambda tokenizer: lambda texts: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare(config(tmp_path, [f"text {i}" for i in range(100)]), tokenizer)
    assert os.listdir(tmp_path / "cache") == []


def test_a_document_that_comes_twice_is_in_one_split(tmp_path, tokenizer):
    texts = [f"text {i % 50}" for i in range(200)]
    train, valid = prepare(config(tmp_path, texts, validation_share=0.3), tokenizer)
    assert not set(documents(train)) & set(documents(valid))


def test_copies_that_differ_in_white_space_are_not_in_both_splits(tmp_path, tokenizer):
    """A document stays in the split of its own hash; copies of what is held out are left out."""
    forms = "{}", "{}\n", "\n{}", " {}\r\n"
    texts = [form.format(f"text {i}") for form in forms for i in range(50)]
    train, valid = prepare(config(tmp_path, texts, validation_share=0.2), tokenizer)
    held = [text for text in texts if hash_to_unit_interval(text) < 0.2]
    assert documents(valid) == held and len(held) > 20
    copies = {text.strip() for text in held}
    assert documents(train) == [text for text in texts if text.strip() not in copies]
    assert train.left_out == len(texts) - len(held) - train.documents > 20


@pytest.mark.parametrize("share", [0.02, 0.05])
def test_white_space_without_copies_changes_no_split(share, tmp_path, tokenizer):
    """Files end with a newline, and recorded runs divided them by their text as it is."""
    asked = Data(source="stdlib", cache=str(tmp_path), validation_share=share)
    train, valid = prepare(asked, tokenizer)
    texts = list(sources.open_source("stdlib"))
    held = {text for text in texts if hash_to_unit_interval(text) < share}
    assert documents(valid) == [text for text in texts if text in held]
    assert documents(train) == [text for text in texts if text not in held]


@pytest.mark.skipif(not BOOKS.exists(), reason="the shared data is not beside the checkout")
@pytest.mark.parametrize(
    ("fields", "digests"),
    [
        ({"validation_share": 0.02}, ["12d36728d257", "55e712a9b155"]),
        ({"validation_share": 0.05}, ["58ac4b1513da", "611a75e5682d"]),
        (
            {"validation": str(BOOKS.with_name("openstax_small_valid.jsonl"))},
            ["b60c805e6b99", "befdcff85239"],
        ),
    ],
)
def test_splits_of_books_are_those_of_records(fields, digests, tmp_path, tokenizer):
    splits = prepare(Data(source=str(BOOKS), cache=str(tmp_path), **fields), tokenizer)
    tokens = [split.array()[:].tobytes() for split in splits]
    assert [hashlib.sha256(each).hexdigest()[:12] for each in tokens] == digests


def test_validation_of_its_own(tmp_path, tokenizer):
    valid = write(tmp_path / "v.jsonl", ["x", "y"])
    train, held = prepare(config(tmp_path, ["a", "b"], validation=valid), tokenizer)
    assert documents(train) == ["a", "b"] and documents(held) == ["x", "y"]


@pytest.fixture
def hub(monkeypatch):
    """Stand in for the hub: a document that says what it was asked for; return what was."""
    import datasets

    seen = []

    def load_dataset(name, subset, *, split, streaming, revision):
        seen.append((name, subset, split))
        return datasets.Dataset.from_dict({"text": [f"{name} {subset} {split}"]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return seen


@pytest.mark.parametrize(
    ("source", "validation", "read", "held"),
    [
        ("a", "a:test", ("a", "small", "train"), ("a", "small", "test")),
        ("a:train", "b", ("a", "small", "train"), ("b", None, "train")),
        ("a:x", "a:test[:1%]", ("a", "small", "x"), ("a", "small", "test[:1%]")),
    ],
)
def test_validation_is_another_split_or_dataset(
    tmp_path, tokenizer, hub, source, validation, read, held
):
    asked = Data(
        source=source, subset="small", validation=validation, cache=str(tmp_path / "cache")
    )
    splits = prepare(asked, tokenizer)
    assert hub == [read, held]
    assert [documents(split) for split in splits] == [[" ".join(map(str, w))] for w in (read, held)]


def test_validation_by_the_text_that_is_learnt_is_refused(tmp_path, tokenizer, hub):
    copy = write(tmp_path / "b.jsonl", ["x", "y"])
    local = config(tmp_path, ["x", "y"])
    for source, validation in (
        ("wikitext", "wikitext"),
        ("wikitext", "wikitext:train"),
        (local.source, local.source),
        (local.source, copy),
    ):
        asked = replace(local, source=source, validation=validation)
        with pytest.raises(ValueError, match="holds the text of data.source; .* NAME:validation"):
            prepare(asked, tokenizer)


def test_found_again_whatever_the_block_size_and_made_anew_when_the_text_changes(
    tmp_path, tokenizer, monkeypatch
):
    texts = [f"text {i}" for i in range(100)]
    first = prepare(config(tmp_path, texts, block_size=8), tokenizer)
    monkeypatch.setattr(preparing, "_build", None)
    assert prepare(config(tmp_path, texts, block_size=16), tokenizer) == first
    with pytest.raises(TypeError):
        prepare(config(tmp_path, [*texts, "more"]), tokenizer)
    with pytest.raises(TypeError):
        prepare(config(tmp_path, texts, max_documents=50), tokenizer)


def test_an_interrupted_preparation_leaves_nothing_that_looks_whole(
    tmp_path, tokenizer, monkeypatch
):
    monkeypatch.setattr(piece_writing, "_BATCH", 100)
    texts = [f"text {i}" for i in range(400)]
    asked = config(tmp_path, texts)
    add, calls = piece_writing._Writer.add, []

    def stop(self, ids):
        calls.append(1)
        if len(calls) == 20:
            raise KeyboardInterrupt
        add(self, ids)

    with monkeypatch.context() as patch:
        patch.setattr(piece_writing._Writer, "add", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(asked, tokenizer)
    assert os.listdir(tmp_path / "cache") == []
    train, valid = prepare(asked, tokenizer)
    assert train.documents + valid.documents == 400


def test_a_damaged_file_is_noticed(tmp_path, tokenizer):
    asked = config(tmp_path, [f"text {i}" for i in range(100)])
    train, _ = prepare(asked, tokenizer)
    train.path.write_bytes(train.path.read_bytes()[:-2])
    with pytest.raises(ValueError, match="train.bin is damaged; delete"):
        prepare(asked, tokenizer)


def test_documents_are_taken_by_their_length(monkeypatch):
    monkeypatch.setattr(piece_writing, "_BATCH", 10)
    texts = ["a" * n for n in (3, 3, 3, 3, 50, 1, 9, 2)]
    batches = piece_writing._batch_parts((text, text) for text in texts)
    assert [[len(text) for text, _ in batch] for batch in batches] == [
        [3, 3, 3, 3],
        [50],
        [1, 9],
        [2],
    ]


@pytest.mark.parametrize("texts", [[], [""]], ids=["no lines", "no text"])
def test_no_text(tmp_path, tokenizer, texts):
    with pytest.raises(ValueError, match="holds no text"):
        prepare(config(tmp_path, texts), tokenizer)


def test_a_split_without_documents(tmp_path, tokenizer):
    with pytest.raises(ValueError, match="none of the 1 documents .*give data.validation a source"):
        prepare(config(tmp_path, ["alone"]), tokenizer)


def test_a_large_vocabulary_takes_wider_numbers(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(type(tokenizer), "__len__", lambda tokenizer: 2**16 + 1)
    train, _ = prepare(config(tmp_path, [f"text {i}" for i in range(100)]), tokenizer)
    assert train.dtype == "uint32" and documents(train)[0].startswith("text ")


def warned(caplog):
    return [record.message for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("how", ["in the folder", "gzipped", "reordered", "white space"])
def test_what_validates_is_left_out_of_training_and_counted(tmp_path, tokenizer, how, caplog):
    folder = tmp_path / "corpus"
    folder.mkdir()
    learnt, held = [f"text {i}" for i in range(50)], [f"held {i}" for i in range(9)]
    write(folder / "a.jsonl", learnt)
    valid = folder / "valid.jsonl"
    write(valid, held)
    if how == "gzipped":
        valid = tmp_path / "v.jsonl.gz"
        valid.write_bytes(gzip.compress((folder / "valid.jsonl").read_bytes()))
    elif how == "reordered":
        valid = tmp_path / "v.jsonl"
        write(valid, ["only here", *reversed(held)])
    elif how == "white space":
        valid = tmp_path / "v.jsonl"
        write(valid, [f" {text}\n" for text in held])
    asked = Data(source=str(folder), validation=str(valid), cache=str(tmp_path / "cache"))
    for _ in ("made", "found again"):
        caplog.clear()
        train, validating = prepare(asked, tokenizer)
        assert documents(train) == learnt
        assert len(documents(validating)) == validating.documents >= 9
        assert (train.left_out, validating.left_out) == (9, 0)
        assert warned(caplog) == [
            f"9 of 59 documents of {folder} are in {valid} too: they are left out of training"
        ]
    meta = json.loads((train.path.parent / "meta.json").read_text())
    assert meta["train"]["left_out"] == 9


def test_nothing_is_left_out_where_nothing_is_in_both(tmp_path, tokenizer, caplog):
    valid = write(tmp_path / "v.jsonl", ["x", "", "text"])
    train, _ = prepare(config(tmp_path, ["text 1", "", "text 2"], validation=valid), tokenizer)
    assert train.left_out == 0 and not warned(caplog)


@pytest.mark.parametrize("how", ["gzipped", "reordered", "within it"])
def test_validation_by_all_the_text_that_is_learnt_is_refused(tmp_path, tokenizer, how):
    texts = [f"text {i}" for i in range(20)]
    valid = tmp_path / "v.jsonl.gz"
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    made = {"gzipped": lines, "reordered": lines[::-1], "within it": ['{"text": "x"}\n', *lines]}
    valid.write_bytes(gzip.compress("".join(made[how]).encode()))
    with pytest.raises(ValueError, match=f"{valid}, holds the text of data.source"):
        prepare(config(tmp_path, texts, validation=str(valid)), tokenizer)
    assert os.listdir(tmp_path / "cache") == []


def test_validation_without_text_is_named(tmp_path, tokenizer):
    valid = write(tmp_path / "v.jsonl", [""])
    with pytest.raises(ValueError, match=f"data.validation, {valid}, holds no text"):
        prepare(config(tmp_path, ["a"], validation=valid), tokenizer)


def test_a_file_longer_than_a_document_can_be_is_several(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(sources, "MAX_CHARACTERS", 50)
    text = "".join(f"line {i}\n" for i in range(400))
    path = tmp_path / "a.txt"
    path.write_text(text)
    asked = Data(source=str(path), validation_share=0.2, cache=str(tmp_path / "cache"))
    parts = [part for split in prepare(asked, tokenizer) for part in documents(split)]
    assert len(parts) > 60 and max(map(len, parts)) <= 50
    assert sorted("".join(parts).splitlines()) == sorted(text.splitlines())


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "txt"])
def test_parts_of_a_document_fall_to_one_split(tmp_path, tokenizer, monkeypatch, kind):
    monkeypatch.setattr(sources, "MAX_CHARACTERS", 50)
    texts = [f"document {i}\n" + f"of {i}, a line\n" * 30 for i in range(60)]
    folder = tmp_path / "texts"
    folder.mkdir()
    if kind == "jsonl":
        write(folder / "a.jsonl", texts)
    elif kind == "parquet":
        parquet.write_table(pyarrow.table({"text": texts}), folder / "a.parquet")
    else:
        for i, text in enumerate(texts):
            (folder / f"{i}.txt").write_text(text)
    asked = Data(source=str(folder), validation_share=0.3, cache=str(tmp_path / "cache"))
    train, valid = prepare(asked, tokenizer)
    assert train.documents + valid.documents > 60 * 8
    learnt, held = (
        {i for i in range(60) if any(f" {i}, a" in part for part in documents(split))}
        for split in (train, valid)
    )
    assert len(held) > 5 and not learnt & held and len(learnt | held) == 60


def test_text_that_changes_while_it_is_prepared_is_not_kept(tmp_path, tokenizer, monkeypatch):
    asked = config(tmp_path, [f"text {i}" for i in range(50)])
    write_all = piece_writing.write_parts

    def write_and_change(*arguments):
        write_all(*arguments)
        write(tmp_path / "a.jsonl", ["other"])

    monkeypatch.setattr(piece_writing, "write_parts", write_and_change)
    with pytest.raises(ValueError, match="a.jsonl or its validation text changed while"):
        prepare(asked, tokenizer)
    assert os.listdir(tmp_path / "cache") == []


MEASURED = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from layermem_bench.config.run import Data
from layermem_bench.data.preparing import prepare

def peak():
    status = open("/proc/self/status").read()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024

inner = Tokenizer(models.WordLevel({"a": 0, "<end>": 1}, unk_token="a"))
inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>")
before = peak()
train, valid = prepare(Data(source=sys.argv[1], cache=sys.argv[2], validation_share=0.4), tokenizer)
print(train.tokens + valid.tokens - train.documents - valid.documents, peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to say its memory")
def test_the_memory_that_a_long_text_takes_is_bounded(tmp_path):
    """Tokenized whole, it took 80 bytes a character with few tokens, with many 235."""
    path, words = tmp_path / "a.txt", 40_000
    path.write_text("\n".join(f"{i:w>200}" for i in range(words)))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MEASURED, str(path), str(tmp_path / "cache")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    tokens, megabytes = map(int, done.stdout.split())
    assert tokens == words and megabytes < 300


def test_a_line_that_is_no_text_leaves_nothing(tmp_path, tokenizer):
    asked = config(tmp_path, ["a"] * 50)
    with Path(asked.source).open("a", encoding="utf-8") as file:
        file.write('{"text": "\\ud800"}\n' + '{"text": "b"}\n' * 50)
    with pytest.raises(ValueError, match="a.jsonl, line 51: .*half a surrogate pair"):
        prepare(asked, tokenizer)
    assert os.listdir(tmp_path / "cache") == []


def test_half_a_file_leaves_nothing(tmp_path, tokenizer):
    packed = zstandard.ZstdCompressor().compress("".join(map(str, range(200_000))).encode())
    path = tmp_path / "a.txt.zst"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ValueError, match=f"{path} is cut short"):
        prepare(Data(source=str(path), cache=str(tmp_path / "cache")), tokenizer)
    assert os.listdir(tmp_path / "cache") == []


@pytest.fixture
def small_disk():
    """Files that cannot grow beyond 4,000 bytes."""
    resource = pytest.importorskip("resource", reason="the system has no such limits")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    @contextmanager
    def small():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return small


@pytest.mark.parametrize("size", [5_000, 50_000], ids=["at the end", "on the way"])
def test_a_full_disk_is_named_and_what_is_done_stays(tmp_path, tokenizer, small_disk, size):
    asked = config(tmp_path, ["x" * 100] * (size // 200) + ["y" * 100] * (size // 200))
    valid = write(tmp_path / "v.jsonl", ["z"])
    asked = replace(asked, validation=valid)
    with small_disk(), pytest.raises(OSError, match=r"too large: .* free room, or .*data.cache"):
        prepare(asked, tokenizer)
    (left,) = (tmp_path / "cache").iterdir()
    files = {path.name for path in left.glob("*.bin")}
    # The piece of the validation text is done, that of the other text is not there.
    assert files == {"train-00000.bin", "valid-00000.bin"} and not list(left.glob(".tmp*"))
    train, held = prepare(asked, tokenizer)
    assert (train.documents, documents(held)) == (size // 100, ["z"])


def test_a_cache_that_cannot_be_made_is_named(tmp_path, tokenizer):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(OSError, match="exists: prepared text cannot be written; .*/cache'"):
        prepare(config(tmp_path, ["a", "b"]), tokenizer)
