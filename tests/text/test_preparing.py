"""Preparing text: no document is lost, repeated or in both splits; folders are complete."""

import gzip
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from layermem_bench.cli import main, parse
from layermem_bench.config.hashing import hash_to_unit_interval
from layermem_bench.config.run import Data
from layermem_bench.presets import get_preset
from layermem_bench.text import preparing, sources
from layermem_bench.text.preparing import open_sources, prepare, prepared_name
from layermem_bench.text.tokenizers import load_tokenizer

END = 256
BYTES = load_tokenizer("bytes")
# Digests of prepared files, recorded before bytes were encoded without a tokenizer.
RECORDED = {
    "bytes": ["1bb27b902f90", "ceb076024b6f"],
    "words": ["de7abae1d0ba", "edd96ca696fd"],
}


def write(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def config(tmp_path, texts, **fields):
    source = write(tmp_path / "a.jsonl", texts)
    return Data(source=source, cache=str(tmp_path / "cache"), **fields)


def documents(split):
    """Cut the file at the end tokens and decode it."""
    text = bytes(0 if token == END else token for token in split.array().tolist())
    *found, rest = text.split(b"\0")
    assert not rest, "the last document has no end token"
    return [each.decode() for each in found]


def left(folder):
    """Return what a cache holds beside locks."""
    return sorted(name for name in os.listdir(folder) if not name.startswith(".lock-"))


def test_every_document_is_in_one_split_once_and_whole(tmp_path):
    # More than one batch, some empty, one that looks like the end token.
    texts = [f"text {i} " * (i % 7) for i in range(300)] + ["a <|endoftext|> b"]
    train, valid = prepare(config(tmp_path, texts, validation_share=0.2), BYTES)
    kept = [text for text in texts if text]
    assert sorted(documents(train) + documents(valid)) == sorted(kept)
    assert train.documents + valid.documents == len(kept)
    assert 0.1 < valid.documents / len(kept) < 0.3
    assert [t for t in kept if t in set(documents(train))] == documents(train)
    assert train.dtype == "uint16"
    assert left(tmp_path / "cache") == [train.path.parent.name]


@pytest.mark.parametrize("kind", RECORDED)
def test_files_are_those_of_earlier_versions(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(preparing, "_BATCH", 300)
    tokenizer = load_tokenizer("bytes")
    if kind == "words":
        tokenizer.add_tokens(["text", "<é>"])
    texts = [f"text {i} <é> 漢字 <|endoftext|>\n" * (i % 5) for i in range(200)]
    splits = prepare(config(tmp_path, texts, validation_share=0.2), tokenizer)
    digests = [hashlib.sha256(split.path.read_bytes()).hexdigest()[:12] for split in splits]
    assert digests == RECORDED[kind]


def test_names_are_those_of_recorded_runs(tmp_path):
    """Runs record them as the digest of their text."""
    tokenizer = SimpleNamespace(
        eos_token_id=0, backend_tokenizer=SimpleNamespace(to_str=lambda: "made up")
    )
    texts = [{"id": i, "text": text} for i, text in enumerate(["one", "zwei\nlines", "drei ∞"])]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(each) + "\n" for each in texts))
    (tmp_path / "b.txt").write_text("held")
    asked = Data(source=str(tmp_path / "a.jsonl"))
    held = replace(asked, validation=str(tmp_path / "b.txt"))
    few = replace(asked, validation_share=0.05, max_documents=2)
    names = [prepared_name(each, open_sources(each), tokenizer) for each in (asked, held, few)]
    assert names == ["0e7d96775ebe595add2c", "299191e21e64990e7a83", "298dff034c3fc897bcd8"]


def test_copies_that_differ_in_white_space_are_not_in_both_splits(tmp_path):
    """A document stays in the split of its own hash; copies of what is held out are left out."""
    forms = "{}", "{}\n", "\n{}", " {}\r\n", "{}"
    texts = [form.format(f"text {i}") for form in forms for i in range(50)]
    train, valid = prepare(config(tmp_path, texts, validation_share=0.2), BYTES)
    held = [text for text in texts if hash_to_unit_interval(text) < 0.2]
    assert documents(valid) == held and len(held) > 20
    copies = {text.strip() for text in held}
    assert documents(train) == [text for text in texts if text.strip() not in copies]
    assert train.left_out == len(texts) - len(held) - train.documents > 20


def test_what_validates_is_left_out_of_training_and_counted(tmp_path, caplog):
    folder = tmp_path / "corpus"
    folder.mkdir()
    learnt, held = [f"text {i}" for i in range(50)], [f"held {i}" for i in range(9)]
    write(folder / "a.jsonl", learnt)
    write(folder / "valid.jsonl", held)
    valid = tmp_path / "v.jsonl.gz"
    valid.write_bytes(gzip.compress((folder / "valid.jsonl").read_bytes()))
    asked = Data(source=str(folder), validation=str(valid), cache=str(tmp_path / "cache"))
    for _ in ("made", "found again"):
        caplog.clear()
        splits = prepare(asked, BYTES)
        assert [documents(split) for split in splits] == [learnt, held]
        assert [split.left_out for split in splits] == [9, 0]
        assert [each.args[0] for each in caplog.records if each.levelname == "WARNING"] == ["9"]


@pytest.mark.parametrize("kind", ["jsonl", "txt"])
def test_a_long_document_is_cut_and_its_parts_stay_together(tmp_path, monkeypatch, kind):
    """But those of a single file, which is nothing else that could be divided. Tokenized whole, a
    text took 80 bytes a character with few tokens, with many 235."""
    sizes, batch_encoder = [], preparing.batch_encoder

    def watched(tokenizer):
        encode = batch_encoder(tokenizer)
        return lambda texts: sizes.append(sum(map(len, texts))) or encode(texts)

    monkeypatch.setattr(preparing, "batch_encoder", watched)
    monkeypatch.setattr(sources, "MAX_CHARACTERS", 50)
    monkeypatch.setattr(preparing, "_BATCH", 30)
    text = "".join(f"line {i}\n" for i in range(400))
    asked = config(tmp_path, [text, *(f"{i}" for i in range(200))], validation_share=0.2)
    if kind == "txt":
        (tmp_path / "a.txt").write_text(text)
        asked = replace(asked, source=str(tmp_path / "a.txt"))
    splits = [[t for t in documents(split) if len(t) > 5] for split in prepare(asked, BYTES)]
    assert len(sum(splits, [])) > 60 and max(map(len, sum(splits, []))) <= 50
    assert sum(map(bool, splits)) == (2 if kind == "txt" else 1)
    assert sorted("".join(sum(splits, [])).splitlines()) == sorted(text.splitlines())
    assert max(sizes) < 80


def test_found_again_whatever_the_block_size_and_made_anew_when_the_text_changes(
    tmp_path, monkeypatch
):
    texts = [f"text {i}" for i in range(100)]
    first = prepare(config(tmp_path, texts, block_size=8), BYTES)
    monkeypatch.delattr(preparing, "_write")
    assert prepare(config(tmp_path, texts, block_size=16), BYTES) == first
    with pytest.raises(NameError):
        prepare(config(tmp_path, [*texts, "more"]), BYTES)
    first[0].path.write_bytes(first[0].path.read_bytes()[:-2])
    with pytest.raises(ValueError, match="damaged"):
        prepare(config(tmp_path, texts), BYTES)


@pytest.mark.parametrize(
    ("texts", "fields"),
    [
        (["", ""], {}),
        (["only one"], {"validation_share": 0.5}),
        ([f"text {i}" for i in range(20)], {"validation": [f"text {i}\n" for i in range(21)]}),
        (["a"], {"validation": [""]}),
        (["a", "b"], {"validation": ["a", "b"]}),
    ],
)
def test_a_split_without_documents_or_a_bad_line_leaves_nothing(tmp_path, texts, fields):
    if "validation" in fields:
        fields["validation"] = write(tmp_path / "v.jsonl", fields["validation"])
    asked = config(tmp_path, texts, **fields)
    with pytest.raises(ValueError, match="data.validation"):
        prepare(asked, BYTES)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("{\n")
    with pytest.raises(ValueError, match=f"line {len(texts) + 1}"):
        prepare(asked, BYTES)
    assert left(tmp_path / "cache") == []


@pytest.mark.slow
def test_a_killed_preparation_leaves_nothing_that_looks_whole(tmp_path):
    code = (
        "import os, sys; from layermem_bench.text import preparing\n"
        "from layermem_bench.config.run import Data\n"
        "from layermem_bench.text.tokenizers import load_tokenizer\n"
        "preparing.os.replace = lambda *_: os.kill(os.getpid(), 9)\n"
        "data = Data(source=sys.argv[1], cache=sys.argv[2])\n"
        "preparing.prepare(data, load_tokenizer('bytes'))"
    )
    asked = config(tmp_path, [f"text {i}" for i in range(100)])
    done = subprocess.run([sys.executable, "-c", code, asked.source, asked.cache])
    assert done.returncode == -9
    assert [name.startswith(".parts-") for name in left(asked.cache)] == [True]
    train, valid = prepare(asked, BYTES)
    assert train.documents + valid.documents == 100
    assert left(asked.cache) == [train.path.parent.name]


@pytest.fixture
def corpus(tmp_path):
    """A folder of four files, from which a fifth is held out."""
    (tmp_path / "corpus").mkdir()
    for number in range(4):
        texts = [f"text {i} " * (i % 9) for i in range(70 * number, 70 * number + 70)]
        write(tmp_path / "corpus" / f"{number}.jsonl", texts)
    source, cache = str(tmp_path / "corpus"), str(tmp_path / "one")
    return Data(source=source, cache=cache, validation_share=0.2)


def assert_same_tokens(splits, others):
    for one, other in zip(splits, others, strict=True):
        assert one.path.read_bytes() == other.path.read_bytes()
        assert replace(other, path=one.path) == one


def test_tasks_that_ended_are_kept_and_tokens_are_those_of_one(corpus, monkeypatch):
    """By datatrove in this process: the third task fails at first."""
    pytest.importorskip("datatrove")
    one, read = prepare(corpus, BYTES), []
    documents_of = sources.LocalFiles._documents_of

    def fail(source, path):
        read.append(path.name)
        assert len(read) != 7
        return documents_of(source, path)

    monkeypatch.setattr(sources.LocalFiles, "_documents_of", fail)
    asked = replace(corpus, cache=f"{corpus.cache}-by-tasks")
    with pytest.raises(AssertionError):
        prepare(asked, BYTES, 4)
    again = prepare(asked, BYTES, 4)
    # What is held out is read before the tasks.
    names = [f"{i}.jsonl" for i in range(4)]
    assert read == [*names, *names[:3], *names, *names[2:]]
    assert left(asked.cache) == [again[0].path.parent.name]
    assert_same_tokens(one, again)


def test_a_preset_says_which_text_is_prepared():
    data = get_preset("small-30m").data
    asked = parse(["prepare", "small-30m", "--tasks", "8"])
    assert (asked.data, asked.tasks) == (data, 8)
    own = parse(["prepare", "small-30m", "--data.source", "corpus"])
    assert own.data == replace(data, source="corpus")


@pytest.mark.slow
def test_tasks_in_processes_make_the_tokens_of_one(tmp_path, corpus, monkeypatch):
    pytest.importorskip("datatrove")
    monkeypatch.setenv("LAYERMEM_CACHE", str(tmp_path / "four"))
    share = ["--data.validation-share", "0.2"]
    main(["prepare", "--data.source", corpus.source, *share, "--tasks", "4", "--workers", "2"])
    four = prepare(replace(corpus, cache=None), BYTES)
    assert len(left(tmp_path / "four")) == 1
    assert_same_tokens(prepare(corpus, BYTES), four)
