"""Sweeps: what has ended is left alone, what fails is told, arms and rates."""

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest
import yaml
from small_run import a_run, curve

from layermem.config import to_dict
from layermem.experiments import comparison, sweep
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
    with pytest.raises(RuntimeError, match="1 of 2 runs failed; see .*bad/error.txt"):
        sweep.complete({"bad": bad, "good": good}, tmp_path / "out")
    assert (tmp_path / "out" / "good" / "final").exists()
    assert "unknown variant 'lame'" in (tmp_path / "out" / "bad" / "error.txt").read_text()


@pytest.mark.parametrize(("asked", "code_of"), [(signal.SIGTERM, 143), (signal.SIGINT, -2)])
def test_a_sweep_asked_to_stop_stops_its_runs(asked, code_of, tmp_path):
    run = a_run(tmp_path, max_steps=100_000, eval_every=100_000)
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(to_dict(run)))
    code = (
        "import sys; from pathlib import Path; from layermem.experiments.sweep import complete\n"
        "from layermem.train.run import load_run\n"
        "complete({'one': load_run(sys.argv[1])}, Path(sys.argv[2]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(config), str(tmp_path / "out")], start_new_session=True
    )
    folder = RunFolder(tmp_path / "out" / "one")
    end = time.monotonic() + 120
    while len(folder.rows()) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    # As a terminal does: to all that it has started.
    os.killpg(process.pid, asked)
    assert process.wait(timeout=60) == code_of
    # The run has saved and left.
    assert folder.latest() is not None
    with folder.locked():
        assert not folder.final.exists()


def test_a_folder_that_holds_another_run_is_not_taken_for_this_one(tmp_path):
    run = a_run(tmp_path, max_steps=2, save_every=0)
    train(run, tmp_path / "out" / "one")
    # How it is carried out may differ.
    sweep.complete({"one": replace(run, log_every=2)}, tmp_path / "out")
    longer = replace(run, max_steps=4)
    with pytest.raises(
        ValueError, match="one was begun with another config: max_steps was 2, is 4"
    ):
        sweep.complete({"new": run, "one": longer}, tmp_path / "out")
    # Said before anything is run.
    assert not (tmp_path / "out" / "new").exists()


def test_what_another_process_trains_is_waited_for(tmp_path, monkeypatch):
    run, out = a_run(tmp_path, max_steps=2, save_every=0), tmp_path / "out"
    folders = {name: RunFolder(out / name) for name in ("ends", "given-up")}
    begun: list[str] = []
    hands = ExitStack()

    def nap(_: float) -> None:
        # Whoever has them ends one, and leaves the other.
        assert not begun
        train(run, tmp_path / "alone")
        shutil.copytree(tmp_path / "alone", folders["ends"].path, dirs_exist_ok=True)
        hands.close()
        monkeypatch.setattr(sweep.time, "sleep", lambda _: time_sleep(0.05))

    def start(run, folder, jobs, slot):
        begun.append(folder.path.name)
        return subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import shutil, sys; shutil.copytree(*sys.argv[1:], dirs_exist_ok=True)",
            ]
            + [str(tmp_path / "alone"), str(folder.path)]
        )

    time_sleep = time.sleep
    monkeypatch.setattr(sweep.time, "sleep", nap)
    monkeypatch.setattr(sweep, "_start", start)
    for folder in folders.values():
        folder.create()
        hands.enter_context(folder.locked())
    with hands:
        assert sweep.complete(dict.fromkeys(folders, run), out).keys() == folders.keys()
    assert begun == ["given-up"]


def test_runs_take_turns_on_several_gpus(monkeypatch):
    monkeypatch.setattr(sweep.torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [sweep._device(slot)["CUDA_VISIBLE_DEVICES"] for slot in range(3)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert [sweep._device(slot)["CUDA_VISIBLE_DEVICES"] for slot in range(2)] == ["3", "5"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert sweep._device(0) == {}


def test_each_arm_takes_its_best_rate(tmp_path, monkeypatch):
    run, done = a_run(tmp_path), []

    def complete(runs, out, jobs, *, tolerant=False):
        done.append((out, tolerant, {name: (r.optim.lr, r.seed) for name, r in runs.items()}))
        folders = {}
        for name, one in runs.items():
            if one.optim.lr == 1.0:
                continue
            folders[name] = RunFolder(out / name)
            folders[name].path.mkdir(parents=True)
            # Plain is best at 0.01, LIMe at 0.001.
            away = abs(math.log10(one.optim.lr) + (2 if one.variant == "plain" else 3))
            folders[name].append({"step": 1, "val_loss": 1 + away})
        return folders

    monkeypatch.setattr(comparison, "complete", complete)
    names, rates = "plain,lime:router_init=identity", (0.001, 0.01, 1.0)
    tried = comparison.choose(run, names, rates, tmp_path, 1)
    assert tried == {
        "plain": {0.001: 2.0, 0.01: 1.0, 1.0: math.inf},
        "lime:router_init=identity": {0.001: 1.0, 0.01: 2.0, 1.0: math.inf},
    }
    out, tolerant, choosing = done[0]
    assert out == tmp_path / "rates" and tolerant
    assert choosing["lime-router_init=identity-lr0.01-s1000"] == (0.01, 1000)
    taken = {arm: comparison.best(losses) for arm, losses in tried.items()}
    folders = comparison.compare(run, names, [0, 1], tmp_path, 1, taken)
    assert [folder.path.name for folder in folders] == [
        "plain-lr0.01-s0",
        "plain-lr0.01-s1",
        "lime-router_init=identity-lr0.001-s0",
        "lime-router_init=identity-lr0.001-s1",
    ]
    assert done[1][2]["plain-lr0.01-s1"] == (0.01, 1)
    with pytest.raises(RuntimeError, match="no rate let plain end; see .*rates/plain-lr1-s1000"):
        comparison.choose(run, "plain", (1.0,), tmp_path, 1)


def test_arms():
    assert comparison.arms("plain, lime:router=last:router_window=4") == {
        "plain": ("plain", ()),
        "lime:router=last:router_window=4": ("lime", ("router=last", "router_window=4")),
    }
    sources = "lime:router_sources=[[],[0]]"
    assert list(comparison.arms(f"{sources},plain")) == [sources, "plain"]
    with pytest.raises(ValueError, match="a bracket is open or closed too often"):
        comparison.arms("plain,lime:router_sources=[[0]")
