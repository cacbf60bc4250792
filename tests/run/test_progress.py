"""How runs are shown: bars in a terminal, lines in a pipe, trackers; whose peak a speed is of."""

import io
import logging
import re
import sys
from dataclasses import replace

import pytest
from accelerate import tracking
from accelerate.utils import LoggerType
from rich.console import Console
from small_run import Interrupted, a_run, interrupt, stop_at

from layermem_bench.config.computing import peak_flops_of
from layermem_bench.run import progress
from layermem_bench.run.progress import RunsProgress
from layermem_bench.run.training import train

ROW = {"loss": 1.25, "tokens_per_second": 2048.0}
VALIDATION = {"val_loss": 0.5, "val_accuracy": 0.75}
TRAINING_LINE = "loss 1.2500  2,048 tokens/s"
VALIDATION_LINE = "validation loss 0.5000, 75.0% solved"


@pytest.fixture
def now(monkeypatch):
    seconds = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    return seconds


def test_lines_in_a_pipe_now_and_then(now):
    out = io.StringIO()
    shown = RunsProgress(2, Console(file=out, width=120))
    shown.begin("a", 40)
    shown.begin("b", 40)
    shown.update("b", {})
    shown.update("a", {"step": 1, **ROW})
    shown.update("a", {"step": 2, **ROW})
    # As often as it is looked at.
    for _ in range(2):
        shown.update("a", {"step": 2, **VALIDATION})
    now[0] += 16
    shown.update("b", {"step": 3, **ROW})
    shown.close()
    assert out.getvalue().splitlines() == [
        f"a: step 1  {TRAINING_LINE}",
        f"a: step 2  {VALIDATION_LINE}",
        f"b: step 3  {TRAINING_LINE}",
    ]


def test_what_is_logged_stands_above_the_bars(monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    # That of the command: it writes to what stderr is at each line.
    handler = logging.lastResort
    logger = logging.Logger("layermem.some")
    logger.addHandler(handler)
    shown = RunsProgress(1, Console(stderr=True, force_terminal=True, width=80))
    shown.begin("lime", 40)
    shown.update("lime", {"step": 40, "loss": 0.275})
    logger.warning("lime: validation loss 0.27")
    shown.bars.refresh()
    shown.close()
    logger.warning("all runs have ended")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue().replace("\x1b[1A", "\n"))
    lines = [line.strip() for line in re.split(r"[\r\n]", plain)]
    assert "40/40" in plain and "loss 0.2750" in plain
    assert lines.count("lime: validation loss 0.27") == lines.count("all runs have ended") == 1


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
    ],
)
def test_each_card_has_its_own_peak(name, peak):
    assert peak_flops_of(name) == peak


def test_a_resumed_run_goes_on_with_its_own_record(tmp_path, monkeypatch):
    """Weights & Biases stands in here."""
    begun, logged = [], []

    class Tracker:
        name, requires_logging_directory = "wandb", False

        def __init__(self, project, **settings):
            begun.append({"project": project, **settings})

        start = finish = lambda self: None

        def log(self, row, step, **_):
            logged.append((begun[-1]["id"], step))
            assert {"loss", "val_loss"} & row.keys()

    available = [LoggerType.WANDB]
    for module in ("accelerate.tracking", "layermem_bench.run.progress"):
        monkeypatch.setattr(f"{module}.get_available_trackers", lambda: available)
    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "wandb", Tracker)
    run = a_run(tmp_path, track=("wandb",))
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        stop_at(patch, 5, interrupt)
        train(run, tmp_path / "a")
    train(run, tmp_path / "a", resume=True)
    train(replace(run, max_steps=1), tmp_path / "b")
    first, second, other = begun
    assert first["id"] == second["id"] != other["id"]
    assert [(each["project"], each["name"]) for each in begun] == [
        (tmp_path.name, n) for n in "aab"
    ]
    assert {step for name, step in logged if name == first["id"]} == set(range(1, 9))
    available.clear()
    with pytest.raises(ValueError, match="track=wandb"):
        train(run, tmp_path / "c")
