"""Several processes make the tokens that one makes; killed and begun again, none is lost."""

import errno
import hashlib
import json
import logging
import os
import random
import time
from dataclasses import replace

import numpy as np
import pytest
from forked import start_code

from layermem_bench.config.run import Data
from layermem_bench.data import local_workers, piece_writing, pieces, preparing
from layermem_bench.data.blocks import Blocks
from layermem_bench.data.datatrove_tasks import Engine
from layermem_bench.data.preparations import Work
from layermem_bench.data.preparing import prepare
from layermem_bench.data.tokenizers import load_tokenizer

# Prepares a text by two processes, in pieces of some bytes.
RUN = """
import os, sys
os.setsid()
from layermem_bench.config.run import Data
from layermem_bench.data import local_workers, pieces, preparing, piece_writing
from layermem_bench.data.tokenizers import load_tokenizer

source, cache, size, workers = sys.argv[1:]
pieces.SMALLEST = int(size)
preparing.make_locally = lambda *args: local_workers.make_locally(*args, workers=int(workers))
preparing.prepare(Data(source=source, cache=cache, validation_share=0.2), load_tokenizer("bytes"))
"""


@pytest.fixture
def tokenizer():
    return load_tokenizer("bytes")


@pytest.fixture
def text(tmp_path):
    """Return a file of documents of different lengths."""
    path, rng = tmp_path / "a.jsonl", random.Random(0)
    rows = [{"text": f"document {i} " * rng.randrange(1, 40)} for i in range(3000)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def digests(splits):
    return [hashlib.sha256(np.ascontiguousarray(each.array()[:])).hexdigest() for each in splits]


def ask(text, cache):
    return Data(source=str(text), cache=str(cache), validation_share=0.2)


def by(workers, monkeypatch):
    """Have text prepared by some processes."""

    def make(*args):
        return local_workers.make_locally(*args, workers=workers)

    monkeypatch.setattr(preparing, "make_locally", make)


@pytest.fixture
def whole(text, tmp_path, tokenizer):
    """Return the splits of a text that is one piece."""
    return prepare(ask(text, tmp_path / "whole"), tokenizer)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_batches_of_many_files_are_those_of_one(
    text, tmp_path, tokenizer, whole, workers, monkeypatch
):
    length = text.stat().st_size
    monkeypatch.setattr(pieces, "SMALLEST", -(-length // 8))
    by(workers, monkeypatch)
    divided = prepare(ask(text, tmp_path / "divided"), tokenizer)
    assert [len(split.shards) for split in (*whole, *divided)] == [0, 0, 8, 8]
    assert len(list(divided[0].path.parent.iterdir())) == 17
    for one, eight in zip(whole, divided, strict=True):
        assert (one.tokens, one.documents) == (eight.tokens, eight.documents)
        # A length that divides no file, so that blocks go over from one to the next.
        ours, theirs = (Blocks(split, 997, isolate=True) for split in (one, eight))
        assert ours.identity() == theirs.identity() and len(ours) > 30
        for i in range(len(ours)):
            for name, values in ours[i].items():
                assert values.equal(theirs[i][name])


def test_a_random_order_of_documents_is_that_of_its_seed(text, tmp_path, tokenizer, monkeypatch):
    """It keeps every document, and does not depend on who makes the pieces, or on the cache."""
    monkeypatch.setattr(pieces, "SMALLEST", 100_000)

    def documents(name, seed, tasks=None):
        asked = replace(ask(text, tmp_path / name), shuffle_documents=seed)
        if tasks:
            engine = Engine(executor="local", tasks=tasks, workers=1)
            preparing.build(asked, tokenizer, engine.make)
        tokens = [split.array()[:] for split in prepare(asked, tokenizer)]
        return [np.split(each, np.flatnonzero(each == 256) + 1)[:-1] for each in tokens]

    def texts(documents):
        return [bytes(each[:-1].tolist()).decode() for each in documents]

    (plain, held), (train, valid) = documents("c", None), documents("c", 7)
    assert len(list((tmp_path / "c").iterdir())) == 2
    assert texts(train) != texts(plain) and sorted(texts(train)) == sorted(texts(plain))
    assert sorted(texts(valid)) == sorted(texts(held))
    places = {text: place for place, text in enumerate(texts(plain))}
    moved = np.array([places[text] for text in texts(train)])
    # Few neighbours are neighbours still, and another piece comes first.
    assert np.mean(np.diff(moved) == 1) < 0.02
    assert moved[: len(moved) // 20].min() > len(moved) // 20
    assert texts(documents("d", 7)[0]) == texts(train) != texts(documents("c", 8)[0])
    pytest.importorskip("datatrove")
    assert texts(documents("e", 7, tasks=3)[0]) == texts(train)


def test_documents_with_end_tokens_inside_are_put_in_no_other_order(
    text, tmp_path, tokenizer, monkeypatch
):
    """They would be torn apart."""
    ids = np.array([1, 256, 2], np.uint16)
    monkeypatch.setattr(piece_writing, "batch_encoder", lambda _: lambda texts: [ids] * len(texts))
    assert len(prepare(ask(text, tmp_path / "c"), tokenizer)) == 2
    asked = replace(ask(text, tmp_path / "c"), shuffle_documents=1)
    with pytest.raises(ValueError, match=r"makes end tokens \(256\) of text"):
        prepare(asked, tokenizer)


def test_shards_that_are_not_there_or_of_another_tokenizer_are_refused(
    text, tmp_path, tokenizer, monkeypatch
):
    monkeypatch.setattr(pieces, "SMALLEST", 100_000)
    train, _ = prepare(ask(text, tmp_path / "c"), tokenizer)
    folder = train.path.parent
    (folder / "train-00003.bin").rename(tmp_path / "kept")
    with pytest.raises(ValueError, match="train-00003.bin is damaged; delete"):
        prepare(ask(text, tmp_path / "c"), tokenizer)
    (tmp_path / "kept").rename(folder / "train-00003.bin")
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | {"tokenizer": "0" * 20}))
    with pytest.raises(ValueError, match="holds tokens of another tokenizer; delete"):
        prepare(ask(text, tmp_path / "c"), tokenizer)


def test_what_is_done_is_not_done_twice(text, tmp_path, tokenizer, whole, monkeypatch, caplog):
    """A full disk in the middle; then pieces of another tokenizer; then all of it."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(pieces, "SMALLEST", 100_000)
    made, make = [], piece_writing._make_piece

    def full(work, plan, tokenizer, index, progress):
        if len(made) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        make(work, plan, tokenizer, index, progress)
        made.append(index)

    asked = ask(text, tmp_path / "c")
    with monkeypatch.context() as patch:
        patch.setattr(piece_writing, "_make_piece", full)
        with pytest.raises(OSError, match="No space left"):
            prepare(asked, tokenizer)
    (left,) = (tmp_path / "c").iterdir()
    mark = left / "00001.json"
    good = mark.read_text()
    mark.write_text(json.dumps(json.loads(good) | {"tokenizer": "other"}))
    with pytest.raises(ValueError, match="00001.json is of another tokenizer than the plan"):
        Work(left.with_name(left.name.removeprefix(".parts-"))).done(
            1, Work(left.with_name(left.name.removeprefix(".parts-"))).plan()
        )
    mark.write_text(good)

    def counted(work, plan, tokenizer, index, progress):
        make(work, plan, tokenizer, index, progress)
        made.append(index)

    monkeypatch.setattr(piece_writing, "_make_piece", counted)
    splits = prepare(asked, tokenizer)
    assert made == list(range(len(splits[0].shards))) and digests(splits) == digests(whole)
    assert f"3 of {len(made)} pieces are done already" in caplog.text


def test_a_worker_that_fails_is_one_error(text, tmp_path, tokenizer, monkeypatch):
    with text.open("a") as file:
        file.write("not JSON\n")
    monkeypatch.setattr(pieces, "SMALLEST", 100_000)
    by(2, monkeypatch)
    with pytest.raises(ValueError, match=r"a.jsonl, line \d+ after byte \d+ is not JSON"):
        prepare(ask(text, tmp_path / "c"), tokenizer)
    assert os.listdir(tmp_path / "c") == []


def killed_and_finished(text, cache, times, tokenizer, whole, seed):
    """Kill a preparation at random moments; return what the last one makes of the rest."""
    rng, ended = random.Random(seed), 0
    for _ in range(times):
        process = start_code(RUN, str(text), str(cache), "20000", "2", folder=cache.parent)
        # Not before it has begun to write.
        before, deadline = marks(cache), time.monotonic() + 120
        while marks(cache) == before and process.exitcode is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(rng.random() * 0.2)
        process.kill()
        process.join()
        ended += process.exitcode == 0
        # Its workers end by themselves.
        while marks(cache) != (now := marks(cache)) or running(process.pid):
            time.sleep(0.02)
        assert now or ended
    splits = prepare(ask(text, cache), tokenizer)
    assert digests(splits) == digests(whole) and ended < times
    return splits


def marks(cache):
    return sorted(path.name for path in cache.glob(".parts-*/[0-9]*.json"))


def running(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_ten_kills_lose_and_double_nothing(tmp_path, tokenizer):
    text, rng = tmp_path / "a.jsonl", random.Random(0)
    rows = ({"text": f"document {i} " * rng.randrange(1, 400)} for i in range(6_000))
    text.write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = prepare(ask(text, tmp_path / "whole"), tokenizer)
    killed_and_finished(text, tmp_path / "c", 10, tokenizer, whole, seed=2)


def test_cores_are_shared_by_the_processes_of_a_training(monkeypatch):
    class Plan:
        pieces = [{"size": 2**24}] * 100

    monkeypatch.setattr(local_workers, "available_cores", lambda: 16)
    count = local_workers._count_workers
    assert count(Plan, range(100)) == 16
    # So little text is not worth the start of a process.
    assert count(Plan, range(3)) == 1 and count(Plan, range(8)) == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert count(Plan, range(100)) == 4
    monkeypatch.setattr(local_workers, "available_cores", lambda: 2)
    assert count(Plan, range(100)) == 1
