"""Two processes, copied and sharded: how they are set up, what they send, what they share."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_run import a_run, curve

from layermem.runs import RunFolder
from layermem.train.run import train
from layermem.train.trainer import arguments

TESTS = Path(__file__).parents[1]


def probe(name, folder):
    """Have two processes run a function of processes.py; return what it saw."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [*launch, str(TESTS / "train" / "processes.py"), name, str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / f"{name}.json").read_text())


def test_a_copied_run_looks_for_no_unused_parameters_and_has_its_timeout(tmp_path):
    run = a_run(tmp_path, max_steps=2, eval_every=2, save_every=0)
    expected = curve(train(run, tmp_path / "alone"))
    seen = probe("copied", tmp_path)
    assert seen["kind"] == "DistributedDataParallel"
    assert not seen["looks for unused parameters"]
    assert seen["timeout"] == 77
    for ours, theirs in zip(seen["curve"], expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)


def test_a_timeout_must_be_positive(tmp_path):
    assert arguments(a_run(tmp_path), RunFolder(tmp_path), validates=True).ddp_timeout == 1800
    with pytest.raises(ValueError, match="compute.ddp_timeout must be at least 1, got 0"):
        a_run(tmp_path, compute={"ddp_timeout": 0})
