"""torchrun starts the processes of a run again when one of them dies, and the run goes on."""

import os
import subprocess
import sys

import pytest
import yaml
from small_run import a_run, curve

from layermem_bench.config.run import to_dict
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.train.run import train

# The second process is killed once, in its fifth step, when two checkpoints are there.
SCRIPT = """
import os, signal, sys
from layermem_bench import cli
from layermem_bench.train.trainer import Trainer

step = Trainer.training_step

def killed(self, *args, **kwargs):
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first and os.environ["RANK"] == "1" and self.state.global_step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, *args, **kwargs)

Trainer.training_step = killed
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
    assert "going on from" in done.stderr and "checkpoint-4" in done.stderr
    part = RunFolder(tmp_path / "part")
    assert part.final.exists()
    for ours, theirs in zip(curve(part), curve(whole), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)
