"""Processes wait for each other beyond a group's time-out, and one that fails ends the others."""

import json
import os
import subprocess
import sys

import pytest
import yaml
from small_run import a_run

from layermem_bench.config.run import to_dict
from layermem_bench.results.run_folder import RunFolder

# A group whose collectives end after two seconds; what a process does is in its own words.
BEGIN = """
import os, sys, time
from datetime import timedelta
from pathlib import Path
from torch import distributed
from layermem_bench.train.processes import wait_for_all

folder = Path(sys.argv[1])
rank = int(os.environ["RANK"])
distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2,
    timeout=timedelta(seconds=2),
)
"""
TURNS = """
for turn in range(2):
    with wait_for_all():
        time.sleep(4 if rank == turn else 0)
        (folder / f"{turn}{rank}").touch()
    assert len(list(folder.glob(f"{turn}?"))) == 2
distributed.barrier()
print("both turns done", file=sys.stderr)
with wait_for_all():
    if rank == 0:
        raise ValueError("the first process refuses")
"""
TRAINING = """
from layermem_bench.config.run import run_from_dict
from layermem_bench.data.shards import Shards
from layermem_bench.train.run import train
from layermem_bench.train.run_config import load_run

write = Shards.write

def slow(*args):
    with (folder / "made").open("a") as file:
        file.write("once\\n")
    time.sleep(4)
    write(*args)

Shards.write = slow
train(load_run(folder / "run.yaml"), folder / "run")
"""


def in_two_processes(code, folder):
    """Return the exit status and the errors of each."""
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", BEGIN + code, str(folder)],
            env={
                **os.environ,
                **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
                **{"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"},
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=200)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, text) for process, text in zip(started, said, strict=True)]


@pytest.mark.slow
def test_processes_wait_beyond_the_time_out_of_the_group_but_not_for_one_that_failed(tmp_path):
    """A long preparation is waited for, and made once; then each is late in turn."""
    run = a_run(tmp_path, max_steps=2, eval_every=2, save_every=0)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(to_dict(run)))))
    (first, refused), (second, told) = in_two_processes(TRAINING + TURNS, tmp_path)
    assert "both turns done" in refused and "both turns done" in told, refused + told
    assert (tmp_path / "made").read_text() == "once\n"
    assert RunFolder(tmp_path / "run").final.exists()
    assert first and "ValueError: the first process refuses" in refused
    assert second and "RuntimeError: another process of this run failed" in told
