"""kill -9 at moments nobody chose, several of them during a save: the end is the same."""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
import yaml
from safetensors.torch import load_file
from small_run import a_run, curve

from layermem_bench.config.run import to_dict
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.train.run import train

MOMENTS = 20


def start(config, out):
    command = [sys.executable, "-m", "layermem", "train", "--config", str(config), "--resume"]
    return subprocess.Popen(
        [*command, "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_until(process, true, seconds=120.0):
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        if true():
            return
        time.sleep(0.001)


@pytest.mark.slow
@pytest.mark.parametrize("moments", [2, MOMENTS], ids=["few", "many"])
def test_killed_again_and_again_it_ends_alike(moments, tmp_path):
    run = replace(a_run(tmp_path), max_steps=10 * moments, save_every=1, eval_every=50)
    whole = train(run, tmp_path / "whole")
    config, out = tmp_path / "config.yaml", tmp_path / "killed"
    config.write_text(yaml.safe_dump(to_dict(run)))
    folder, chance = RunFolder(out), random.Random(0)
    during_a_save = 0
    for moment in range(moments):
        process = start(config, out)
        rows = len(folder.rows())
        # Well into training; every other time, while a checkpoint lies half written.
        wait_until(process, lambda rows=rows: len(folder.rows()) > rows + 2)
        if moment % 2:
            wait_until(process, folder.staging.exists)
        time.sleep(chance.random() * (0.01 if moment % 2 else 0.1))
        during_a_save += folder.staging.exists()
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        assert process.returncode in (-signal.SIGKILL, 0), errors.decode()
    assert during_a_save, "no kill fell into a save"
    process = start(config, out)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()
    assert curve(folder) == curve(whole)
    ours, theirs = (load_file(f.final / "model.safetensors") for f in (folder, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
