"""kill -9 at moments nobody chose, several of them during a save: the end is the same."""

import contextlib
import os
import random
import signal
import socket
import time
from dataclasses import replace

import pytest
import yaml
from forked import read_errors, start_fork
from small_run import a_run, assert_same_end

from layermem_bench import cli
from layermem_bench.config.run import to_dict
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.train.run import train

WAYS = {
    "waited for": {},
    "in the background": {"async_checkpoints": True},
    "in the background of two processes": {"async_checkpoints": True, "shard": True},
}


def start(config, out, processes):
    """Start processes as torchrun would; one alone gets no variables."""
    command = ["train", "--config", str(config), "--resume", "--out", str(out)]
    if processes == 1:
        return [start_fork(cli.main, command, folder=config.parent)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        start_fork(cli.main, command, folder=config.parent, RANK=rank, LOCAL_RANK=rank, **shared)
        for rank in map(str, range(processes))
    ]


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


def kill(started, tmp_path):
    for process in started:
        process.kill()
    for process in started:
        process.join()
        assert process.exitcode in (-signal.SIGKILL, 0), read_errors(process, tmp_path)


def wait_for_end(started, tmp_path):
    for process in started:
        process.join(timeout=300)
        assert process.exitcode == 0, read_errors(process, tmp_path)


@pytest.mark.parametrize(
    ("way", "moments"),
    [
        pytest.param("in the background", 2, id="two kills in the background"),
        *(
            pytest.param(way, moments, marks=pytest.mark.slow, id=f"{moments} kills, {way}")
            for way, moments in zip(WAYS, (4, 20, 4), strict=True)
        ),
    ],
)
def test_killed_again_and_again_it_ends_alike(way, moments, tmp_path):
    run = a_run(tmp_path, max_steps=10 * moments, save_every=1, eval_every=50)
    run = replace(run, compute=replace(run.compute, **WAYS[way]))
    processes = 2 if run.compute.shard else 1
    config, out = tmp_path / "config.yaml", tmp_path / "killed"
    config.write_text(yaml.safe_dump(to_dict(run)))
    if processes == 1:
        train(run, tmp_path / "whole")
    else:
        # By as many: sums in another order drift apart over so many steps.
        wait_for_end(start(config, tmp_path / "whole", processes), tmp_path)
    folder, chance = RunFolder(out), random.Random(0)
    during_a_save = 0
    for moment in range(moments):
        started = start(config, out, processes)
        rows = len(folder.rows())
        # Well into training; every other time, while a checkpoint lies half written.
        wait_until(started, lambda rows=rows: len(folder.rows()) > rows + 2)
        if moment % 2:
            stop_in_save(started, folder.staging, chance)
        else:
            time.sleep(chance.random() * 0.1)
        kill(started, tmp_path)
        during_a_save += folder.staging.exists()
    assert during_a_save, "no kill fell into a save"
    wait_for_end(start(config, out, processes), tmp_path)
    assert_same_end(folder, RunFolder(tmp_path / "whole"))
