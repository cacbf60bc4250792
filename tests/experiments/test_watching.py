"""What is shown of many runs: bars in a terminal, lines in a pipe."""

import io
import logging

from rich.console import Console

from layermem.experiments import watching
from layermem.experiments.watching import Watch


def test_bars_in_a_terminal():
    out = io.StringIO()
    watch = Watch(2, Console(file=out, force_terminal=True, width=100))
    watch.begin("plain-s0", 40)
    watch.update("plain-s0", {"step": 30, "loss": 1.25})
    watch._progress.refresh()
    watch.end("plain-s0")
    watch.close()
    shown = out.getvalue()
    assert "plain-s0" in shown and "30/40" in shown and "loss 1.250" in shown and "1/2" in shown


def test_lines_in_a_pipe_now_and_then(caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    now = [100.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: now[0])
    watch = Watch(2, Console(file=io.StringIO()))
    watch.begin("a", 40)
    watch.begin("b", 40)
    watch.update("a", {"step": 3, "loss": 1.25})
    assert not caplog.messages
    now[0] += 31
    watch.update("b", {})
    assert caplog.messages == ["a: step 3/40 loss 1.250; b: step 0/40"]
    watch.update("b", {})
    assert len(caplog.messages) == 1
    watch.end("a")
    now[0] += 31
    watch.update("b", {"step": 40, "val_loss": 0.5})
    watch.close()
    assert caplog.messages[-1] == "b: step 40/40 loss 0.500"
