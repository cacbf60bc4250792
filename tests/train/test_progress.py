"""The progress display: bars in a terminal, lines in a pipe, for one run and for many."""

import io
import logging
import re
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from layermem_bench.train import progress
from layermem_bench.train.progress import RunProgress, RunsProgress

ROW = {"loss": 1.25, "lr": 1e-3, "grad_norm": 0.5, "tokens_per_second": 2048.0}
VALIDATION = {"val_loss": 0.5, "val_perplexity": 1.65, "val_accuracy": 0.75, "tokens": 4096}
TRAINING_LINE = "loss 1.2500  lr 1.0e-03  gradient 0.50  2,048 tokens/s"
VALIDATION_LINE = "validation loss 0.5000, perplexity 1.65, 75.0% solved after 4,096 tokens"


def at_step(step, *, first=True):
    return SimpleNamespace(global_step=step, is_world_process_zero=first)


@pytest.fixture
def now(monkeypatch):
    seconds = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    return seconds


def test_a_bar_of_one_run_in_a_terminal():
    out = io.StringIO()
    shown = RunProgress(40, Console(file=out, force_terminal=True, width=120, color_system=None))
    shown.on_train_begin(None, at_step(10), None)
    shown.on_log(None, at_step(30), None, ROW)
    shown._display.bars.refresh()
    shown.on_log(None, at_step(30), None, VALIDATION)
    shown.on_train_end(None, at_step(40), None)
    assert "30/40" in out.getvalue() and TRAINING_LINE in out.getvalue()
    assert VALIDATION_LINE in out.getvalue()


def test_lines_of_one_run_in_a_pipe_now_and_then(now):
    out = io.StringIO()
    shown = RunProgress(40, Console(file=out, width=120))
    shown.on_train_begin(None, at_step(0), None)
    shown.on_log(None, at_step(1), None, ROW)
    shown.on_log(None, at_step(2), None, ROW)
    shown.on_log(None, at_step(2), None, VALIDATION)
    now[0] += 16
    shown.on_log(None, at_step(3), None, ROW)
    shown.on_log(None, at_step(4, first=False), None, VALIDATION)
    shown.on_log(None, at_step(5), None, {})
    shown.on_train_end(None, at_step(40), None)
    assert out.getvalue().splitlines() == [
        f"step 1/40  {TRAINING_LINE}",
        f"step 2/40  {VALIDATION_LINE}",
        f"step 3/40  {TRAINING_LINE}",
    ]


def test_bars_of_many_runs_in_a_terminal():
    out = io.StringIO()
    shown = RunsProgress(2, Console(file=out, force_terminal=True, width=100))
    shown.begin("plain-s0", 40)
    shown.update("plain-s0", {"step": 30, "loss": 1.25})
    shown._display.bars.refresh()
    shown.end("plain-s0")
    shown.close()
    text = out.getvalue()
    assert "plain-s0" in text and "30/40" in text and "loss 1.250" in text and "1/2" in text


@pytest.mark.parametrize("name", ["layermem.some", "another.library"])
def test_what_is_logged_stands_above_the_bars(name, monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    logger, handler = logging.getLogger(name), logging.StreamHandler()
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "propagate", False)
    shown = RunsProgress(1, Console(stderr=True, force_terminal=True, width=60))
    shown.begin("lime", 40)
    shown.update("lime", {"step": 40, "loss": 0.275})
    logger.warning("lime: validation loss 0.27")
    shown._display.bars.refresh()
    shown.end("lime")
    shown.close()
    logger.warning("all runs have ended")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue().replace("\x1b[1A", "\n"))
    lines = [line.strip() for line in re.split(r"[\r\n]", plain)]
    assert lines.count("lime: validation loss 0.27") == 1
    assert lines.count("all runs have ended") == 1
    assert handler.stream is terminal


def test_lines_of_many_runs_in_a_pipe_now_and_then(caplog, now):
    caplog.set_level(logging.INFO)
    shown = RunsProgress(2, Console(file=io.StringIO()))
    shown.begin("a", 40)
    shown.begin("b", 40)
    shown.update("a", {"step": 3, "loss": 1.25})
    assert not caplog.messages
    now[0] += 31
    shown.update("b", {})
    assert caplog.messages == ["a: step 3/40 loss 1.250; b: step 0/40"]
    shown.update("b", {})
    assert len(caplog.messages) == 1
    shown.end("a")
    now[0] += 31
    shown.update("b", {"step": 40, "val_loss": 0.5})
    shown.close()
    assert caplog.messages[-1] == "b: step 40/40 loss 0.500"
