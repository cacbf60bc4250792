"""Two processes, copied and sharded: their curves, what they share, a start anew by torchrun."""

import json
import os
import subprocess
import sys

import pytest
import yaml
from small_run import a_run, curve

from layermem_bench.config.run import to_dict
from layermem_bench.run.folder import RunFolder
from layermem_bench.run.training import train


@pytest.fixture
def seen(two_processes):
    """What two processes saw."""
    return json.loads((two_processes / "probes.json").read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["copied", "sharded"])
@pytest.mark.parametrize(
    ("precision", "tolerance"),
    # In bfloat16 gradients of a slot are added in another order; its rounding is 4e-3.
    [("float32", 1e-6), ("bfloat16", 5e-4)],
)
def test_each_precision_is_that_of_one_process(precision, tolerance, way, seen, two_processes):
    alone = json.loads((two_processes / "alone.json").read_text(encoding="utf-8"))[precision]
    for ours, theirs in zip(seen["precisions"][f"{precision} {way}"], alone, strict=True):
        shared = {name: theirs[name] for name in ours}
        assert ours == pytest.approx(shared, rel=tolerance, abs=1e-6)


@pytest.mark.slow
def test_a_sharded_model_solves_problems(seen):
    assert sum("val_accuracy" in row for row in seen["solving"]) == 2


# The second process is killed once, in its fifth step, when two checkpoints are there.
SCRIPT = """
import os, signal, sys
from layermem_bench import cli
from layermem_bench.run.loop import Loop

step = Loop.train_step

def killed(self, batches):
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first and os.environ["RANK"] == "1" and self.step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, batches)

Loop.train_step = killed
cli.main(["train", "--config", sys.argv[1], "--out", sys.argv[2]])
"""


@pytest.mark.slow
def test_a_run_goes_on_when_torchrun_starts_its_processes_again(tmp_path):
    run = a_run(tmp_path)
    whole = train(run, tmp_path / "whole")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(to_dict(run)), encoding="utf-8")
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", "2", "--max-restarts", "1"]
    done = subprocess.run(
        [*torchrun, *(str(tmp_path / name) for name in ("script.py", "run.yaml", "part"))],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "checkpoint-4" in done.stderr
    part = RunFolder(tmp_path / "part")
    assert part.final.exists()
    for ours, theirs in zip(curve(part), curve(whole), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)
