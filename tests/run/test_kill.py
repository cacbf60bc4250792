"""kill -9 at moments nobody chose, several of them during a save: the end is the same."""

import contextlib
import os
import random
import signal
import time
from dataclasses import replace

import pytest
import yaml
from forked import read_errors, start_together
from small_run import a_run, assert_same_end

from layermem_bench import cli
from layermem_bench.config.run import to_dict
from layermem_bench.run.folder import RunFolder
from layermem_bench.run.training import train


def start(config, out, processes, *options):
    command = ["train", "--config", str(config), "--out", str(out), *options]
    return start_together(processes, cli.main, command, folder=config.parent)


def wait_until(started, true, seconds=120.0):
    end = time.monotonic() + seconds
    while all(p.exitcode is None for p in started) and time.monotonic() < end:
        if true():
            return
        time.sleep(0.001)


def send(started, number):
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def stop_in_save(started, staging, chance):
    """Stop processes while a checkpoint lies half written, or return when they have ended."""
    while all(p.exitcode is None for p in started):
        wait_until(started, staging.exists)
        time.sleep(chance.random() * 0.01)
        send(started, signal.SIGSTOP)
        # A call that had begun still ends.
        time.sleep(0.01)
        if staging.exists():
            return
        send(started, signal.SIGCONT)


def wait_for_end(started, tmp_path):
    for process in started:
        process.join(timeout=300)
        assert process.exitcode == 0, read_errors(process, tmp_path)


@pytest.mark.parametrize(
    ("processes", "kills"),
    [
        pytest.param(1, 3, id="3 kills"),
        pytest.param(1, 40, id="40 kills", marks=pytest.mark.slow),
        pytest.param(2, 4, id="4 kills of two processes", marks=pytest.mark.slow),
    ],
)
def test_killed_again_and_again_it_ends_alike(processes, kills, tmp_path):
    # With dropout, each process goes on drawing its own random numbers.
    model = {"options": ("attention_dropout=0.1",)}
    run = a_run(tmp_path, max_steps=10 * kills, save_every=1, eval_every=50, model=model)
    run = replace(run, compute=replace(run.compute, shard=processes > 1))
    config, out = tmp_path / "config.yaml", tmp_path / "killed"
    config.write_text(yaml.safe_dump(to_dict(run)))
    if processes == 1:
        train(run, tmp_path / "whole")
    else:
        # By as many: sums in another order drift apart over so many steps.
        wait_for_end(start(config, tmp_path / "whole", processes), tmp_path)
    folder, chance, in_a_save = RunFolder(out), random.Random(0), 0
    for moment in range(kills):
        started = start(config, out, processes, "--resume")
        rows = len(folder.rows())
        # Well into training; every other time, while a checkpoint lies half written.
        wait_until(started, lambda rows=rows: len(folder.rows()) > rows + 2)
        if moment % 2:
            stop_in_save(started, folder.staging, chance)
        else:
            time.sleep(chance.random() * 0.1)
        send(started, signal.SIGKILL)
        for process in started:
            process.join()
            assert process.exitcode in (-signal.SIGKILL, 0), read_errors(process, tmp_path)
        in_a_save += folder.staging.exists()
    assert in_a_save >= max(1, kills // 4), "too few kills fell into a save"
    wait_for_end(start(config, out, processes, "--resume"), tmp_path)
    assert_same_end(folder, RunFolder(tmp_path / "whole"))


def test_a_job_about_to_end_saves_and_ends_well(tmp_path):
    """As srun starts processes, without torchrun: each gets the signal, and all end with 0."""
    run = a_run(tmp_path, max_steps=5000, eval_every=5000, save_every=5000)
    config, folder = tmp_path / "run.yaml", RunFolder(tmp_path / "job")
    config.write_text(yaml.safe_dump(to_dict(run)))
    started = start(config, folder.path, 2)
    wait_until(started, lambda: len(folder.rows()) > 3)
    send(started, signal.SIGTERM)
    wait_for_end(started, tmp_path)
    assert len(folder.complete_checkpoints()) == 1
    assert not folder.final.exists() and not folder.staging.exists()
