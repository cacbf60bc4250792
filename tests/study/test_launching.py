"""Many runs: what has ended is left alone, what fails is told, what others train is waited for."""

import math
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest
import yaml
from launchers import InThisProcess, MadeUp
from recorded import SIZES, record
from small_run import a_run, curve, rewound

from layermem_bench.config.run import Compute, Run, to_dict
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.study import launching
from layermem_bench.study.launchers import local_processes
from layermem_bench.study.launchers.local_processes import LocalProcesses
from layermem_bench.study.launching import train_missing
from layermem_bench.study.records import read_divergence, recorded_about
from layermem_bench.train.run import train
from layermem_bench.train.run_config import load_run

RUN = Run(preset="made-up", max_steps=40, model=SIZES)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run of 8 steps that was trained here, with its checkpoints."""
    path = tmp_path_factory.mktemp("alone")
    run = a_run(path)
    return run, train(run, path / "run")


@pytest.mark.slow
def test_a_run_goes_on_in_a_process_of_its_own(alone, tmp_path):
    run, whole = alone
    rewound(whole.path, tmp_path / "one")
    folder = train_missing({"one": run}, tmp_path, LocalProcesses())["one"]
    losses = [[row["loss"] for row in curve(f) if "loss" in row] for f in (folder, whole)]
    # Its threads may be others.
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and len(losses[0]) == 8
    assert to_dict(load_run(folder.config)) == to_dict(run)
    assert not (folder.path / "error.txt").exists()
    again = InThisProcess()
    assert train_missing({"one": run}, tmp_path, launcher=again)["one"].path == folder.path
    assert not again.begun


def test_a_process_that_fails_leaves_its_error(tmp_path, monkeypatch):
    """Tried again it is killed, as by the system: what it said before is kept."""
    fails = "import sys; sys.exit(\"unknown variant 'lame'\")"
    # It does not end by itself before it is killed.
    waits = "import time; time.sleep(600)"

    class Killed(LocalProcesses):
        def launch(self, runs):
            super().launch(runs)
            for _, process in self._processes.values():
                process.kill()

    runs = {"bad": a_run(tmp_path, variant="lame")}
    for launcher, code, how in (
        (LocalProcesses(), fails, "exit code 1: .*'lame'"),
        (Killed(), waits, "by signal 9"),
    ):
        command = [sys.executable, "-S", "-c", code]
        monkeypatch.setattr(local_processes, "command_of", lambda *_, command=command: command)
        with pytest.raises(RuntimeError, match=rf"1 of 1 runs failed: bad .*{how}.*bad/error.txt"):
            train_missing(runs, tmp_path / "out", launcher=launcher)
    said = (tmp_path / "out" / "bad" / "error.txt").read_text()
    both = r"(?s)begun at .*'lame'.*exit code 1\n.*begun at .*killed by signal 9"
    assert re.search(both, said)


@pytest.mark.slow
def test_a_command_asked_to_stop_stops_its_runs(tmp_path):
    run = a_run(tmp_path, max_steps=100_000, eval_every=100_000)
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(to_dict(run)))
    code = (
        "import sys; from pathlib import Path\n"
        "from layermem_bench.study.launchers.local_processes import LocalProcesses\n"
        "from layermem_bench.study.launching import train_missing\n"
        "from layermem_bench.train.run_config import load_run\n"
        "train_missing({'one': load_run(sys.argv[1])}, Path(sys.argv[2]), LocalProcesses())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(config), str(tmp_path / "out")], start_new_session=True
    )
    folder = RunFolder(tmp_path / "out" / "one")
    end = time.monotonic() + 120
    while len(folder.rows()) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    # As a batch system does: to all that it has started.
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    # The run has saved and left.
    assert folder.latest_checkpoint() is not None
    with folder.locked():
        assert not folder.final.exists()


def test_ctrl_c_stops_processes_and_reaches_them_through_this_command_alone(tmp_path, monkeypatch):
    """A process that stands for a training writes down which signal it was sent."""
    ready, told = tmp_path / "ready", tmp_path / "told"
    code = (
        "import pathlib, signal, sys, time\n"
        "def tell(number, _):\n"
        f"    pathlib.Path({str(told)!r}).write_text(str(number)); sys.exit()\n"
        "for each in (signal.SIGTERM, signal.SIGINT): signal.signal(each, tell)\n"
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(60)\n"
    )
    monkeypatch.setattr(
        local_processes, "command_of", lambda *_: [sys.executable, "-S", "-c", code]
    )
    real_sleep, groups = time.sleep, []

    def nap(_):
        if ready.exists() and not groups:
            groups.append(os.getpgid(launcher._processes["one"][1].pid))
            signal.raise_signal(signal.SIGINT)
        real_sleep(0.01)

    monkeypatch.setattr(launching.time, "sleep", nap)
    # A shell that runs the tests in the background has it ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    launcher = LocalProcesses()
    try:
        with pytest.raises(KeyboardInterrupt):
            train_missing({"one": RUN}, tmp_path, launcher=launcher)
    finally:
        signal.signal(signal.SIGINT, before)
    # It has ended, as it was asked to, and is in no group that a terminal sends Ctrl-C to.
    assert told.read_text() == str(int(signal.SIGTERM)) and launcher.room() == 1
    assert groups[0] != os.getpgid(0)
    assert "stopped, as this command was" in (tmp_path / "one" / "error.txt").read_text()


def test_runs_take_turns_on_several_gpus(monkeypatch):
    def gpus():
        return [
            local_processes.gpu_environment(slot).get("CUDA_VISIBLE_DEVICES") for slot in range(3)
        ]

    monkeypatch.setattr(local_processes.torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus() == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert gpus() == ["3", "5", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert gpus() == [None] * 3


def test_processes_share_slots_and_threads(tmp_path, monkeypatch):
    """The slot of a process that has ended is free again."""
    asked = []

    class Process:
        def __init__(self, command, env, **_):
            asked.append((env["CUDA_VISIBLE_DEVICES"], env["OMP_NUM_THREADS"]))
            self.code = None

        def poll(self):
            return self.code

    monkeypatch.setattr(local_processes.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(local_processes.subprocess, "Popen", Process)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    launcher = LocalProcesses(jobs=3)

    def launch(*names):
        for name in names:
            RunFolder(tmp_path / name).create()
        launcher.launch({name: (RUN, RunFolder(tmp_path / name)) for name in names})

    launch("a", "b", "c")
    assert launcher.room() == 0 and launcher.ended() == {}
    launcher._processes["b"][1].code = -9
    assert launcher.ended() == {"b": -9} and launcher.ended() == {}
    launch("d")
    assert asked == [("0", "2"), ("1", "2"), ("2", "2"), ("1", "2")] and launcher.room() == 0


def here_trained(folder):
    return train(a_run(folder, seed=9, max_steps=1), folder / "other").final


def test_a_failed_run_is_told_and_the_others_go_on(tmp_path):
    bad, good = replace(RUN, seed=1), RUN
    made_up = MadeUp()
    for last in ("no text", "no disk"):
        made_up.does = lambda run, last=last: "ends" if run.seed == 0 else f"ValueError: {last}"
        said = rf"1 of 2 runs failed: bad ended with exit code 1: ValueError: {last}; see .*bad/err"
        with pytest.raises(RuntimeError, match=said):
            train_missing({"bad": bad, "good": good}, tmp_path, launcher=made_up)
    assert made_up.begun == ["bad", "good", "bad"] and (tmp_path / "good" / "final").exists()
    # Of an earlier attempt everything is kept until the run has ended.
    error = tmp_path / "bad" / "error.txt"
    assert re.search(r"(?s)begun at .*no text\n.*exit code 1\n.*begun at .*disk", error.read_text())
    made_up.does = lambda run: "ends"
    train_missing({"bad": bad, "good": good}, tmp_path, launcher=made_up)
    assert not error.exists()


def test_after_two_equal_failures_no_run_is_begun(tmp_path):
    runs = {f"bad {i}": replace(RUN, seed=i) for i in range(4)}
    made_up = MadeUp(does=lambda run: "ValueError: unknown variant 'lame'")
    said = "2 of 4 runs failed: bad 0, bad 1 ended with .*'lame'.*; 2 were not begun"
    with pytest.raises(RuntimeError, match=said):
        train_missing(runs, tmp_path, launcher=made_up)
    assert made_up.begun == ["bad 0", "bad 1"] and not (tmp_path / "bad 2").exists()
    # What runs do not say themselves does not tell that the others would fail alike.
    made_up = MadeUp(does=lambda run: "")
    with pytest.raises(RuntimeError, match="4 of 4 runs failed"):
        train_missing(runs, tmp_path, launcher=made_up)


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (-9, r"was killed by signal 9 \(SIGKILL; was there too little memory\?\)"),
        (-11, r"was killed by signal 11 \(SIGSEGV\)"),
        (3, "ended with exit code 3"),
        (0, "stopped before its last step: it was asked to"),
    ],
)
def test_how_a_run_ended_is_told_by_its_exit_code(code, how, tmp_path):
    launcher = MadeUp()
    launcher.train = lambda run, folder: code
    with pytest.raises(RuntimeError, match=rf"1 of 1 runs failed: one {how}; see"):
        train_missing({"one": RUN}, tmp_path, launcher=launcher)
    assert re.search(how, (tmp_path / "one" / "error.txt").read_text())
    assert not RunFolder(tmp_path / "one").diverged.exists()


def test_a_folder_that_holds_another_run_is_not_taken_for_this_one(tmp_path):
    made_up = MadeUp()
    record(tmp_path / "one", run=RUN)
    # How it is carried out may differ.
    train_missing({"one": replace(RUN, log_every=2)}, tmp_path, launcher=made_up)
    for changes, said in (
        ({"max_steps": 80}, "max_steps was 40, is 80"),
        ({"seed": 3}, "seed was 0, is 3"),
    ):
        with pytest.raises(ValueError, match=f"one was begun with another config: {said}"):
            train_missing({"new": RUN, "one": replace(RUN, **changes)}, tmp_path, launcher=made_up)
    # Said before anything is run.
    assert not made_up.begun


def test_a_divergence_is_told_and_is_of_its_own_config(tmp_path):
    made_up = MadeUp(does=lambda run: "ends" if run.compute.precision == "float32" else "diverges")
    runs = {"one": replace(RUN, compute=Compute(precision="bfloat16"))}
    for _ in range(2):
        folder = train_missing(runs, tmp_path, launcher=made_up)["one"]
        # It would diverge again, and is not begun.
        assert made_up.begun == ["one"] and "step 5" in read_divergence(folder, runs["one"].id)
    again = {"one": replace(RUN, compute=Compute(precision="float32"))}
    with pytest.raises(ValueError, match="compute.precision was 'bfloat16', is 'float32'"):
        train_missing(again, tmp_path, launcher=made_up)
    # A folder without rows is free.
    (tmp_path / "one" / "metrics.jsonl").unlink()
    assert train_missing(again, tmp_path, launcher=made_up)["one"].final.exists()


def test_what_has_lost_its_records_is_said_before_anything_is_run(tmp_path):
    made_up = MadeUp()
    whole, part = record(tmp_path / "whole", run=RUN), record(tmp_path / "part", run=RUN)
    for lost in (part, whole):
        kept = (lost / "metrics.jsonl").read_text().splitlines(keepends=True)
        (lost / "metrics.jsonl").write_text("".join(kept[:-2] if lost == whole else []))
        with pytest.raises(ValueError, match="metrics.jsonl lacks .* 40"):
            train_missing({lost.name: RUN, "new": RUN}, tmp_path, launcher=made_up)
    (whole / "config.yaml").unlink()
    for read in (
        lambda: train_missing({"whole": RUN, "new": RUN}, tmp_path, launcher=made_up),
        lambda: recorded_about(RunFolder(whole)),
    ):
        with pytest.raises(FileNotFoundError, match=f"{whole} .* no config.yaml"):
            read()
    assert not made_up.begun


@pytest.mark.parametrize("row", ['{"val_loss": 1.0}', '{"step": 40, "val_loss": null}', "12"])
def test_a_damaged_row_is_named_with_its_folder(row, tmp_path):
    path, made_up = record(tmp_path / "one", run=RUN), MadeUp()
    with (path / "metrics.jsonl").open("a") as file:
        file.write(f"{row}\n")
    with pytest.raises(ValueError, match=rf"metrics.jsonl .*; delete {path} to run it"):
        train_missing({"one": RUN}, tmp_path, launcher=made_up)
    assert not made_up.begun


def test_what_another_process_trains_is_waited_for(tmp_path, monkeypatch):
    folders = {name: RunFolder(tmp_path / name) for name in ("ends", "given-up")}
    made_up, hands = MadeUp(), ExitStack()

    def nap(_):
        # Whoever has them ends one, and leaves the other.
        assert not made_up.begun
        record(folders["ends"].path, run=RUN)
        hands.close()

    monkeypatch.setattr(launching.time, "sleep", nap)
    for folder in folders.values():
        folder.create()
        hands.enter_context(folder.locked())
    with hands:
        done = train_missing(dict.fromkeys(folders, RUN), tmp_path, launcher=made_up)
    assert done.keys() == folders.keys() and made_up.begun == ["given-up"]


def test_a_run_that_another_command_was_quicker_to_begin_is_waited_for(tmp_path, monkeypatch):
    folder, hands, naps = RunFolder(tmp_path / "one"), ExitStack(), []

    class Late(MadeUp):
        def train(self, run, folder):
            # Between the look at the lock and the process: it finds the folder taken, and fails.
            hands.enter_context(folder.locked())
            return 1

    def nap(_):
        naps.append(_)
        if len(naps) == 3:
            record(folder.path, run=RUN)
            hands.close()

    folder.create()
    monkeypatch.setattr(launching.time, "sleep", nap)
    late = Late()
    with hands:
        assert train_missing({"one": RUN}, tmp_path, launcher=late)["one"].final.exists()
    assert late.begun == ["one"] and len(naps) == 3


def test_a_launcher_with_room_gets_all_runs_at_once(tmp_path):
    """As an array of jobs of a cluster would be."""
    batches = []

    class Cluster(MadeUp):
        def room(self):
            return 100

        def launch(self, runs):
            batches.append(list(runs))
            super().launch(runs)

    runs = {f"s{seed}": replace(RUN, seed=seed) for seed in range(5)}
    train_missing(runs, tmp_path, launcher=Cluster())
    assert batches == [list(runs)]


def test_a_loss_that_is_not_finite_is_a_divergence(tmp_path):
    """As of a run whose last validation alone saw it."""
    record(tmp_path / "one", run=RUN, final=math.nan)
    (folder,) = train_missing({"one": RUN}, tmp_path, launcher=MadeUp()).values()
    assert read_divergence(folder, RUN.id) == "step 40: the validation loss is nan"
