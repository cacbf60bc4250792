"""kill -9 at moments nobody chose, several of them during a save: the end is the same."""

import random
import signal
import time
from dataclasses import replace

import pytest
import torch
import yaml
from forked import read_errors, start_fork
from safetensors.torch import load_file
from small_run import a_run, curve

from layermem_bench import cli
from layermem_bench.config.run import to_dict
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.train.run import train

MOMENTS = 20


def start(config, out):
    command = ["train", "--config", str(config), "--resume", "--out", str(out)]
    return start_fork(cli.main, command, folder=config.parent)


def wait_until(process, true, seconds=120.0):
    end = time.monotonic() + seconds
    while process.exitcode is None and time.monotonic() < end:
        if true():
            return
        time.sleep(0.001)


@pytest.mark.slow
def test_killed_again_and_again_it_ends_alike(tmp_path):
    run = replace(a_run(tmp_path), max_steps=10 * MOMENTS, save_every=1, eval_every=50)
    whole = train(run, tmp_path / "whole")
    config, out = tmp_path / "config.yaml", tmp_path / "killed"
    config.write_text(yaml.safe_dump(to_dict(run)))
    folder, chance = RunFolder(out), random.Random(0)
    during_a_save = 0
    for moment in range(MOMENTS):
        process = start(config, out)
        rows = len(folder.rows())
        # Well into training; every other time, while a checkpoint lies half written.
        wait_until(process, lambda rows=rows: len(folder.rows()) > rows + 2)
        if moment % 2:
            wait_until(process, folder.staging.exists)
        time.sleep(chance.random() * (0.01 if moment % 2 else 0.1))
        during_a_save += folder.staging.exists()
        process.kill()
        process.join()
        assert process.exitcode in (-signal.SIGKILL, 0), read_errors(process, tmp_path)
    assert during_a_save, "no kill fell into a save"
    process = start(config, out)
    process.join(timeout=300)
    assert process.exitcode == 0, read_errors(process, tmp_path)
    assert curve(folder) == curve(whole)
    ours, theirs = (load_file(f.final / "model.safetensors") for f in (folder, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
