"""Sweeps: what has ended is left alone, what fails is told, and the experiment prints its table."""

import subprocess
import sys
import time
from dataclasses import replace

import pytest
import yaml
from small_run import a_run, curve

from layermem.config import to_dict
from layermem.experiments import presets, sweep
from layermem.experiments.router_init import RouterInit, main
from layermem.runs import RunFolder
from layermem.train.run import load_run, train


def test_runs_end_as_alone_and_are_not_run_again(tmp_path, monkeypatch):
    runs = {f"s{seed}": a_run(tmp_path, seed=seed, max_steps=3) for seed in (0, 1)}
    folders = sweep.complete(runs, tmp_path / "out", jobs=2)
    alone = train(runs["s1"], tmp_path / "alone")
    assert [row["loss"] for row in curve(folders["s1"]) if "loss" in row] == pytest.approx(
        [row["loss"] for row in curve(alone) if "loss" in row], rel=1e-5
    )
    assert to_dict(load_run(folders["s0"].config)) == to_dict(runs["s0"])
    assert not (folders["s0"].path / "error.txt").exists()
    monkeypatch.setattr(sweep, "_start", None)
    assert sweep.complete(runs, tmp_path / "out").keys() == runs.keys()


def test_a_failed_run_is_told_and_the_others_go_on(tmp_path):
    good, bad = a_run(tmp_path, max_steps=2), a_run(tmp_path, variant="lame")
    with pytest.raises(RuntimeError, match="1 runs failed; see .*bad/error.txt"):
        sweep.complete({"bad": bad, "good": good}, tmp_path / "out")
    assert (tmp_path / "out" / "good" / "final").exists()
    assert "unknown variant 'lame'" in (tmp_path / "out" / "bad" / "error.txt").read_text()


def test_a_sweep_asked_to_stop_stops_its_runs(tmp_path):
    run = a_run(tmp_path, max_steps=100_000, eval_every=100_000)
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(to_dict(run)))
    code = (
        "import sys; from pathlib import Path; from layermem.experiments.sweep import complete\n"
        "from layermem.train.run import load_run\n"
        "complete({'one': load_run(sys.argv[1])}, Path(sys.argv[2]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(config), str(tmp_path / "out")])
    folder = RunFolder(tmp_path / "out" / "one")
    end = time.monotonic() + 120
    while len(folder.rows()) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    process.terminate()
    assert process.wait(timeout=60) == 143
    # The run has saved and left.
    assert folder.latest() is not None
    with folder.locked():
        assert not folder.final.exists()


def test_router_init_prints_three_arms(tmp_path, monkeypatch, capsys):
    run = a_run(tmp_path, max_steps=2, save_every=0)
    monkeypatch.setitem(presets._PRESETS, "tiny-lm", lambda: replace(run))
    # In this process: starting one for each takes longer than training.
    monkeypatch.setattr(
        "layermem.experiments.router_init.complete",
        lambda runs, out, jobs: {n: train(r, out / n, resume=True) for n, r in runs.items()},
    )
    monkeypatch.setenv("COLUMNS", "160")
    main(RouterInit(out=tmp_path / "out", source=run.data.source, seeds=2, rates=(1e-3, 1e-2)))
    shown = capsys.readouterr().out
    assert all(arm in shown for arm in ("plain", "paper", "identity"))
    assert shown.count("perplexity") == 2 and "2 paired seeds" in shown
    assert len(list((tmp_path / "out").iterdir())) == 3 * (2 + 2)
