"""One process makes a folder while others wait; however it ends, nothing incomplete stays."""

import errno
import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from layermem_bench.config.run import Data
from layermem_bench.data import piece_writing, preparing, staging
from layermem_bench.data.preparing import prepare
from layermem_bench.data.tokenizers import load_tokenizer


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(staging, "_POLL", 0.01)


@pytest.fixture
def tokenizer():
    return load_tokenizer("bytes")


@pytest.fixture
def asked(tmp_path):
    """Return configs of different texts in one cache."""

    def config(name):
        path = tmp_path / f"{name}.jsonl"
        if not path.exists():
            texts = [f"{name} {i}" for i in range(100)]
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return Data(source=str(path), cache=str(tmp_path / "cache"), validation_share=0.2)

    return config


def names(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache").iterdir())


def slowly(monkeypatch):
    """Have preparing stop at a document; return what says it is there, and what frees it."""
    there, free = threading.Event(), threading.Event()
    add = piece_writing._Writer.add

    def slow(self, ids):
        there.set()
        assert free.wait(60)
        add(self, ids)

    monkeypatch.setattr(piece_writing._Writer, "add", slow)
    return there, free


def test_several_at_once_prepare_once(tmp_path, tokenizer, asked, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    there, free = slowly(monkeypatch)
    with ThreadPoolExecutor() as pool:
        made = [pool.submit(prepare, asked("a"), tokenizer) for _ in range(4)]
        assert there.wait(60)
        # Who looks before the holder has written its name says "another process"; this one cannot.
        made.append(pool.submit(prepare, asked("a"), tokenizer))
        deadline = time.monotonic() + 60
        while sum("waiting" in line for line in caplog.messages) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        free.set()
    assert len({splits.result() for splits in made}) == 1
    assert sum(line.startswith("preparing ") for line in caplog.messages) == 1
    waiting = [line for line in caplog.messages if line.startswith("waiting")]
    assert any(f"is made by process {os.getpid()} on " in line for line in waiting)
    assert names(tmp_path) == [made[0].result()[0].path.parent.name]


def test_where_one_fails_who_waits_takes_over(tmp_path, tokenizer, asked, monkeypatch):
    failed, build = [], preparing._build

    def failing(*args):
        failed.append(1)
        if len(failed) == 1:
            time.sleep(0.1)
            raise RuntimeError("the first one fails")
        build(*args)

    monkeypatch.setattr(preparing, "_build", failing)
    with ThreadPoolExecutor() as pool:
        made = [pool.submit(prepare, asked("a"), tokenizer) for _ in range(3)]
    errors = [splits.exception() for splits in made if splits.exception()]
    assert [str(error) for error in errors] == ["the first one fails"] and len(failed) == 2
    assert len(names(tmp_path)) == 1


def test_what_was_made_between_the_look_and_the_lock_is_not_made_again(tmp_path):
    looks = iter([False, True])
    with staging.claim_folder(tmp_path / "a", lambda: next(looks)) as to_make:
        assert not to_make
    assert not list(tmp_path.iterdir())


def test_different_texts_do_not_wait_for_each_other(tmp_path, tokenizer, asked, monkeypatch):
    there, free = slowly(monkeypatch)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(prepare, asked("a"), tokenizer)
        assert there.wait(60)
        there.clear()
        other = pool.submit(prepare, asked("b"), tokenizer)
        assert there.wait(60)
        # What is being made is not taken for what was left.
        assert len(list((tmp_path / "cache").glob(".parts-*"))) == 2
        free.set()
        assert first.result() != other.result()
    assert len(names(tmp_path)) == 2


def test_sigterm_clears_away_what_is_half_made(tmp_path, tokenizer, asked, monkeypatch):
    def asked_to_end(self, ids):
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(piece_writing._Writer, "add", asked_to_end)
        # Not by the signal's own means: those would end the tests.
        before = signal.getsignal(signal.SIGTERM)
        with pytest.raises(SystemExit) as ended:
            prepare(asked("a"), tokenizer)
    assert ended.value.code == 128 + signal.SIGTERM
    assert names(tmp_path) == [] and signal.getsignal(signal.SIGTERM) == before == signal.SIG_DFL
    prepare(asked("a"), tokenizer)


def test_who_listens_for_sigterm_goes_on_listening(tmp_path, tokenizer, asked, monkeypatch):
    heard, build = [], preparing._build
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))

    def watched(*args):
        os.kill(os.getpid(), signal.SIGTERM)
        build(*args)

    monkeypatch.setattr(preparing, "_build", watched)
    try:
        prepare(asked("a"), tokenizer)
        assert heard == [1]
    finally:
        signal.signal(signal.SIGTERM, before)


STUCK = """
import json, sys, threading, time
import transformers  # Two threads cannot be the first to import it: it replaces its own module.
from layermem_bench.config.run import run_from_dict
from layermem_bench.data import preparing, piece_writing
from layermem_bench.data.tokenizers import load_tokenizer

def stuck(self, ids):
    self.file.flush()
    print("there\\n", end="", flush=True)
    time.sleep(600)

def prepare(values):
    preparing.prepare(run_from_dict({"data": json.loads(values)}).data, load_tokenizer("bytes"))

piece_writing._Writer.add = stuck
threading.Thread(target=prepare, args=sys.argv[2:], daemon=True).start()
prepare(sys.argv[1])
"""


def test_what_a_killed_process_left_is_cleared_by_the_next(tmp_path, tokenizer, asked, caplog):
    caplog.set_level(logging.INFO)
    values = [json.dumps(vars(asked(name))) for name in ("a", "b")]
    command = [sys.executable, "-W", "ignore", "-c", STUCK, *values]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert [process.stdout.readline() for _ in values] == ["there\n"] * 2
            left = names(tmp_path)
            kinds = [name.partition("-")[0] for name in left]
            assert kinds == [".lock", ".lock", ".parts", ".parts"]
            # As long as it lives, what it makes is its own.
            prepare(asked("c"), tokenizer)
            assert set(left) < set(names(tmp_path))
            with ThreadPoolExecutor() as pool:
                waiting = pool.submit(prepare, asked("a"), tokenizer)
                while not any("waiting" in line for line in caplog.messages):
                    time.sleep(0.01)
                process.kill()
                train, valid = waiting.result()
        finally:
            process.kill()
    assert train.documents + valid.documents == 100
    # Who makes another text clears away as well.
    prepare(asked("d"), tokenizer)
    assert not [name for name in names(tmp_path) if name.startswith(".parts")]
    train, valid = prepare(asked("b"), tokenizer)
    assert train.documents + valid.documents == 100
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_a_lock_that_went_with_its_file_is_no_lock(tmp_path, monkeypatch):
    """Who opened it before it was deleted holds nothing that others would meet."""
    lock, taken, flock = tmp_path / ".lock-a", [], fcntl.flock

    def late(file, how):
        if not taken:
            lock.unlink()
        taken.append(1)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with staging._try_lock(lock) as held, staging._try_lock(lock) as other:
        assert (held, other, len(taken)) == (True, False, 3)
    assert not lock.exists()


@pytest.fixture(params=[errno.ENOLCK, errno.ENOSYS], ids=["ENOLCK", "ENOSYS"])
def no_locks(monkeypatch, request):
    def refuse(*_):
        raise OSError(request.param, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_where_there_are_no_locks_two_make_it_and_one_copy_stays(
    tmp_path, tokenizer, asked, no_locks, caplog, monkeypatch
):
    both, build = threading.Barrier(2), piece_writing.write_parts
    # Two processes of one machine have names of their own.
    monkeypatch.setattr(preparing, "process_name", lambda: f"host-{threading.get_ident()}")

    def meeting(*args):
        both.wait(60)
        build(*args)

    monkeypatch.setattr(piece_writing, "write_parts", meeting)
    with ThreadPoolExecutor() as pool:
        made = [pool.submit(prepare, asked("a"), tokenizer) for _ in range(2)]
    assert made[0].result() == made[1].result()
    # The lock's file stays, in case others can lock it.
    place = made[0].result()[0].path.parent.name
    assert names(tmp_path) == [f".lock-{place}", place]
    assert any("cannot be locked (" in line and "meanwhile" in line for line in caplog.messages)


def test_what_another_machine_makes_is_left_alone_until_it_is_quiet(tmp_path, tokenizer, asked):
    cache = tmp_path / "cache"
    names = ["fresh", "quiet", "begun", "queued", "forgotten"]
    fresh, quiet, begun, queued, forgotten = (cache / f".parts-{name}" for name in names)
    for folder in (fresh, quiet, begun, queued, forgotten):
        folder.mkdir(parents=True)
        (folder / "host").write_text("other-host")
    for folder in (begun, forgotten):
        (folder / "00000.json").write_text("{}")
    (queued / staging.SUBMITTED).touch()
    for folder, days in ((quiet, 0.1), (begun, 10), (queued, 10), (forgotten, 40)):
        for path in (*folder.iterdir(), folder):
            os.utime(path, (time.time() - days * 86400,) * 2)
    prepare(asked("a"), tokenizer)
    assert fresh.exists() and not quiet.exists()
    # What is done, or waits in a queue, is gone on with later.
    assert begun.exists() and queued.exists() and not forgotten.exists()


def test_a_folder_without_its_description_is_damaged(tmp_path, tokenizer, asked):
    train, _ = prepare(asked("a"), tokenizer)
    (train.path.parent / "meta.json").unlink()
    with pytest.raises(ValueError, match=r"meta.json is damaged .*; delete .* made again"):
        prepare(asked("a"), tokenizer)
