"""Preparing: nothing lost, nothing doubled, found again, whole or absent; and the blocks."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from layermem.config import Data
from layermem.data import blocks
from layermem.data.blocks import Blocks, Prepared, prepare
from layermem.data.tokenizers import load_tokenizer

END = 256


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


def test_a_document_that_comes_twice_is_in_one_split(tmp_path, tokenizer):
    texts = [f"text {i % 50}" for i in range(200)]
    train, valid = prepare(config(tmp_path, texts, validation_share=0.3), tokenizer)
    assert not set(documents(train)) & set(documents(valid))


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
    monkeypatch.setattr(blocks, "_build", None)
    assert prepare(config(tmp_path, texts, block_size=16), tokenizer) == first
    with pytest.raises(TypeError):
        prepare(config(tmp_path, [*texts, "more"]), tokenizer)
    with pytest.raises(TypeError):
        prepare(config(tmp_path, texts, max_documents=50), tokenizer)


def test_an_interrupted_preparation_leaves_nothing_that_looks_whole(
    tmp_path, tokenizer, monkeypatch
):
    monkeypatch.setattr(blocks, "_BATCH", 100)
    texts = [f"text {i}" for i in range(400)]
    asked = config(tmp_path, texts)
    add, calls = blocks._Writer.add, []

    def stop(self, ids):
        calls.append(1)
        if len(calls) == 300:
            raise KeyboardInterrupt
        add(self, ids)

    with monkeypatch.context() as patch:
        patch.setattr(blocks._Writer, "add", stop)
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
    monkeypatch.setattr(blocks, "_BATCH", 10)
    texts = ["a" * n for n in (3, 3, 3, 3, 50, 1, 9, 2)]
    assert [list(map(len, batch)) for batch in blocks._batches(iter(texts))] == [
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


def test_a_large_vocabulary_takes_wider_numbers(tmp_path, tokenizer):
    tokenizer.add_tokens([f"<{i}>" for i in range(70_000)])
    train, _ = prepare(config(tmp_path, [f"text {i}" for i in range(100)]), tokenizer)
    assert train.dtype == "uint32"


def prepared(tmp_path, tokens):
    path = tmp_path / "train.bin"
    np.asarray(tokens, dtype=np.uint16).tofile(path)
    return Prepared(path=path, dtype="uint16", tokens=len(tokens), documents=1, end=END)


def test_blocks_are_the_file_in_order_but_for_a_partial_last_one(tmp_path):
    found = Blocks(prepared(tmp_path, range(23)), 5)
    assert len(found) == 4
    assert [found[i]["input_ids"].tolist() for i in range(4)] == [
        list(range(5 * i, 5 * i + 5)) for i in range(4)
    ]
    assert torch.equal(found[2]["labels"], found[2]["input_ids"])
    for index in (4, -1):
        with pytest.raises(IndexError):
            found[index]


def test_isolated_documents_count_from_zero_and_predict_no_first_token(tmp_path):
    tokens = [7, 8, END, 9, END, END, 5, 6]
    (block,) = [Blocks(prepared(tmp_path, tokens), 8, isolate=True)[0]]
    assert block["position_ids"].tolist() == [0, 1, 2, 0, 1, 0, 0, 1]
    assert block["labels"].tolist() == [-100, 8, END, -100, END, -100, -100, 6]


def test_less_text_than_one_block(tmp_path):
    with pytest.raises(ValueError, match="23 tokens, less than one block of 64; give more text"):
        Blocks(prepared(tmp_path, range(23)), 64)
