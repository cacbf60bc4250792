"""Many runs: what has ended is left alone, what fails is told, what others train is waited for."""

import re
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest
from launchers import MadeUp
from recorded import SIZES, record

from layermem_bench.config.run import Compute, Run
from layermem_bench.run.folder import RunFolder
from layermem_bench.studies import carrying_out
from layermem_bench.studies.carrying_out import train_missing
from layermem_bench.studies.executors import Command, LocalProcesses
from layermem_bench.studies.records import read_record

RUN = Run(preset="made-up", max_steps=40, model=SIZES)


def standing_in(code):
    """Return what puts a process that runs some code in the place of a training."""

    def command_of(run, folder, asked):
        arguments = (sys.executable, "-S", "-c", code)
        return Command(arguments=arguments, folder=folder.path, directory=folder.path)

    return command_of


def test_what_failed_is_tried_again_and_what_it_said_is_kept(tmp_path, monkeypatch):
    """The second time it is killed, as by the system."""

    class Killed(LocalProcesses):
        def start(self, commands):
            super().start(commands)
            for process, _ in self._running.values():
                process.kill()

    for executor, code, how in (
        (LocalProcesses(), "import sys; sys.exit('no such text')", "exit code 1: .*no such text"),
        (Killed(), "import time; time.sleep(600)", "signal 9"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(carrying_out, "command_of", standing_in(code))
            fails = pytest.raises(
                RuntimeError, match=f"1 of 1 runs failed: bad .*{how}.*bad/error.txt"
            )
            with fails:
                train_missing({"bad": RUN}, tmp_path, executor)
    said = (tmp_path / "bad" / "error.txt").read_text()
    assert re.search(r"(?s)begun at .*no such text\n.*exit code 1\n.*begun at .*signal 9", said)
    train_missing({"bad": RUN}, tmp_path, MadeUp())
    assert not (tmp_path / "bad" / "error.txt").exists()


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
    monkeypatch.setattr(carrying_out, "command_of", standing_in(code))
    real_sleep, naps = time.sleep, []

    def nap(_):
        naps.extend([1] if ready.exists() else [])
        if len(naps) == 1:
            signal.raise_signal(signal.SIGINT)
        real_sleep(0.01)

    monkeypatch.setattr(carrying_out.time, "sleep", nap)
    executor = LocalProcesses()
    with pytest.raises(KeyboardInterrupt):
        train_missing({"one": RUN}, tmp_path, executor)
    assert told.read_text() == str(int(signal.SIGTERM)) and executor.room() == 1


def test_where_the_first_two_runs_fail_no_other_is_begun(tmp_path):
    runs = {f"bad{i}": replace(RUN, seed=i) for i in range(4)}
    made_up = MadeUp(does=lambda run: "ValueError: unknown variant")
    with pytest.raises(RuntimeError, match="2 of 4 runs failed.*2 were not begun"):
        train_missing(runs, tmp_path, made_up)
    assert made_up.begun == ["bad0", "bad1"] and not (tmp_path / "bad2").exists()


@pytest.mark.parametrize("code", [-9, -11, 3, 0])
def test_how_a_run_ended_is_told_by_its_exit_code(code, tmp_path):
    made_up = MadeUp()
    made_up.train = lambda run, folder: code
    with pytest.raises(
        RuntimeError, match=f"signal {-code}" if code < 0 else str(code or "stopped")
    ):
        train_missing({"one": RUN}, tmp_path, made_up)
    assert not RunFolder(tmp_path / "one").diverged.exists()


def test_a_folder_that_holds_another_run_is_refused_before_the_first_step(tmp_path):
    made_up = MadeUp()
    record(tmp_path / "one", run=RUN)
    # How it is carried out may differ.
    train_missing({"one": replace(RUN, log_every=2)}, tmp_path, made_up)
    with pytest.raises(ValueError, match="max_steps"):
        train_missing({"new": RUN, "one": replace(RUN, max_steps=80)}, tmp_path, made_up)
    assert not made_up.begun


@pytest.mark.parametrize("lost", ["metrics.jsonl", "config.yaml"])
def test_what_has_lost_its_records_is_refused_before_the_first_step(lost, tmp_path):
    path, made_up = record(tmp_path / "one", run=RUN), MadeUp()
    (path / lost).unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=str(path)):
        train_missing({"one": RUN, "new": RUN}, tmp_path, made_up)
    assert not made_up.begun


def test_a_run_that_diverged_is_not_tried_again(tmp_path):
    made_up = MadeUp(does=lambda run: "diverges")
    run = replace(RUN, compute=Compute(precision="bfloat16"))
    for _ in range(2):
        train_missing({"one": run}, tmp_path, made_up)
        assert made_up.begun == ["one"]
        assert "step 5" in read_record("one", run, RunFolder(tmp_path / "one")).note


def test_what_another_process_trains_is_waited_for(tmp_path, monkeypatch):
    folders = {name: RunFolder(tmp_path / name) for name in ("ends", "given-up")}
    made_up, hands = MadeUp(), ExitStack()

    def nap(_):
        # Whoever has them ends one, and leaves the other.
        assert not made_up.begun
        record(folders["ends"].path, run=RUN)
        hands.close()

    monkeypatch.setattr(carrying_out.time, "sleep", nap)
    for folder in folders.values():
        folder.create()
        hands.enter_context(folder.locked())
    with hands:
        train_missing(dict.fromkeys(folders, RUN), tmp_path, made_up)
    assert made_up.begun == ["given-up"]


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
    monkeypatch.setattr(carrying_out.time, "sleep", nap)
    late = Late()
    with hands:
        train_missing({"one": RUN}, tmp_path, late)
    assert folder.final.exists() and late.begun == ["one"] and len(naps) == 3
