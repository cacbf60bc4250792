"""The examples run as a user starts them, at tiny sizes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
TINY = {
    "train_and_compare.py": ["--seeds=1", "--steps=2", "--problems=4", "--out=runs"],
    "add_memory_to_llama.py": ["--steps=2", "--out=runs"],
    "look_inside.py": ["--sequences=2", "--length=16"],
}
OUTPUT = {
    "train_and_compare.py": r"seed 0: plain \d+.\d% solved, LIMe \d+.\d%",
    "add_memory_to_llama.py": r"largest change of a logit before training: \d.\de(\+00|-0[6-9])",
    "look_inside.py": r"\[\[1\. +0\. +0\. +0\. +\]",
}


def start(script, options, folder):
    return subprocess.run(
        [sys.executable, "-W", "ignore", str(EXAMPLES / script), *options],
        capture_output=True,
        text=True,
        cwd=folder,
    )


def test_there_are_three():
    assert sorted(path.name for path in EXAMPLES.iterdir() if path.suffix) == sorted(TINY)


@pytest.mark.parametrize(
    "script", ["look_inside.py", *(pytest.param(n, marks=pytest.mark.slow) for n in [*TINY][:2])]
)
def test_an_example_runs(script, tmp_path):
    done = start(script, TINY[script], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(OUTPUT[script], done.stdout)
    # Nothing is written but where the options say.
    assert {path.name for path in tmp_path.iterdir()} <= {"runs"}


@pytest.mark.slow
def test_what_one_example_saves_another_reads(tmp_path):
    start("add_memory_to_llama.py", TINY["add_memory_to_llama.py"], tmp_path)
    done = start("look_inside.py", ["--model=runs", *TINY["look_inside.py"]], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "share that layer i (row) reads" in done.stdout
