"""Executors: processes here, submitit's jobs, tasks of Ray; killed or stopped, a run goes on."""

import os
import signal
import sys
import threading
import time

import pytest
from recorded import SIZES
from small_run import a_run, assert_same_end

from layermem_bench.config.run import Run
from layermem_bench.run.folder import RunFolder
from layermem_bench.run.training import train
from layermem_bench.studies import executors
from layermem_bench.studies.carrying_out import train_missing
from layermem_bench.studies.executors import (
    Command,
    Launching,
    LocalProcesses,
    RayTasks,
    SlurmArray,
    command_of,
    executor_of,
)

RUN = Run(preset="made-up", max_steps=40, model=SIZES)
# Of libraries that are not ours: sockets and pipes that they leave to the interpreter.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray.*"),
]


def on_ray():
    return RayTasks(Launching(launcher="ray"))


def on_slurm():
    return SlurmArray(Launching(launcher="slurm"), cluster="local")


def test_a_run_on_several_gpus_of_a_cluster_is_as_many_processes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = RunFolder("out/one")
    folder.create()
    command = command_of(RUN, folder, Launching(launcher="slurm", gpus=4))
    assert "--nproc-per-node=4" in command.arguments and command.arguments[-1] == "--resume"
    assert command.folder == tmp_path / "out" / "one" and command.directory == tmp_path
    alone = command_of(RUN, folder, Launching()).arguments
    assert alone[1:4] == ("-m", "layermem", "train")


def test_slurm_has_one_array_at_a_time(tmp_path):
    """Each runs as many at once as are asked for."""
    pytest.importorskip("submitit")
    executor = on_slurm()
    assert executor.room() == executors._LONGEST_ARRAY
    executor._running["one"] = None, tmp_path
    assert executor.room() == 0


@pytest.mark.parametrize("launcher", ["slurm", "ray"])
def test_what_a_launcher_needs_is_named(launcher, monkeypatch):
    monkeypatch.setitem(sys.modules, {"slurm": "submitit"}.get(launcher, launcher), None)
    with pytest.raises(ValueError, match="scale"):
        executor_of(Launching(launcher=launcher))


def test_processes_share_threads_and_take_turns_on_gpus(tmp_path, monkeypatch):
    """The slot of a process that has ended is free again."""
    asked = []

    class Process:
        code = None

        def __init__(self, command, env, **_):
            asked.append((env.get("CUDA_VISIBLE_DEVICES"), env["OMP_NUM_THREADS"]))

        def poll(self):
            return self.code

    monkeypatch.setattr(executors.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(executors.subprocess, "Popen", Process)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    executor = LocalProcesses(Launching(jobs=3))
    command = {"arguments": ("true",), "folder": tmp_path, "directory": tmp_path}
    executor.start({name: Command(**command) for name in "abc"})
    assert executor.room() == 0 and executor.ended() == {}
    executor._running["b"][0].code = -9
    assert executor.ended() == {"b": -9} and executor.ended() == {}
    executor.start({"d": Command(**command)})
    assert asked == [("0", "2"), ("1", "2"), ("2", "2"), ("1", "2")]


def test_a_command_ends_when_its_worker_is_interrupted(tmp_path):
    """A module that stands for a training writes down that it was asked to end."""
    told, ready = tmp_path / "told", tmp_path / "ready"
    code = (
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n"
        f"    pathlib.Path({str(told)!r}).touch(); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\n"
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(60)\n"
    )
    arguments = (sys.executable, "-S", "-c", code)
    command = Command(arguments=arguments, folder=tmp_path, directory=tmp_path)

    def interrupt():
        while not ready.exists():
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    # As in a worker that a shell has started in the background.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt):
            command()
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert told.exists()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run that was trained here; long enough to be killed in its middle."""
    folder = tmp_path_factory.mktemp("alone")
    run = a_run(folder, max_steps=200, eval_every=200, save_every=40)
    return run, train(run, folder / "run")


def training_in(folder):
    """Return the id of the process that trains in a folder, and those that lead to it."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
                words = file.read().split("\0")
        except OSError:
            continue
        if str(folder) in words and "train" in words:
            found = [int(pid)]
            while found[-1] > 1:
                with open(f"/proc/{found[-1]}/stat", encoding="utf-8") as file:
                    found.append(int(file.read().rpartition(")")[2].split()[1]))
            return found
    raise AssertionError(f"no process trains in {folder}")


def when_saved(folder, act):
    """Call ``act`` with the training process and its parents once there is a checkpoint."""

    def watch():
        end = time.monotonic() + 120
        while folder.latest_checkpoint() is None and time.monotonic() < end:
            time.sleep(0.02)
        act(training_in(folder.path))

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def stop_the_study(pids):
    signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)


def preempt(pids):
    """As Slurm does before it takes a machine away."""
    os.kill(pids[1], signal.SIGUSR2)


def kill_the_run(pids):
    os.kill(pids[0], signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("executor", "act", "raised"),
    [
        (LocalProcesses, stop_the_study, SystemExit),
        (on_slurm, preempt, None),
        (on_slurm, kill_the_run, RuntimeError),
        (on_ray, kill_the_run, RuntimeError),
        (on_ray, stop_the_study, SystemExit),
    ],
)
def test_what_was_killed_or_stopped_goes_on_to_the_same_end(
    executor, act, raised, alone, ray, tmp_path
):
    run, whole = alone
    folder = RunFolder(tmp_path / "out" / "one")
    watcher = when_saved(folder, act)
    if raised:
        with pytest.raises(raised) as ended:
            train_missing({"one": run}, tmp_path / "out", executor())
        assert raised is RuntimeError or ended.value.code == 143
        assert not folder.final.exists() and folder.latest_checkpoint() is not None
    train_missing({"one": run}, tmp_path / "out", executor())
    watcher.join()
    assert_same_end(folder, whole)
    assert [row["step"] for row in folder.rows() if "loss" in row] == list(range(1, 201))
    assert not (folder.path / "error.txt").exists()


@pytest.mark.slow
@pytest.mark.parametrize("executor", [on_slurm, on_ray])
def test_a_run_that_fails_by_itself_is_tried_once_and_told(executor, ray, tmp_path):
    """One that diverges beside it is tried once too, and is no failure."""
    bad = a_run(tmp_path, variant="lame")
    steep = a_run(tmp_path, optim={"lr": 1e30, "warmup_steps": 0, "clip": 0.0})
    with pytest.raises(RuntimeError, match="1 of 2 runs failed: bad .*'lame'"):
        train_missing({"bad": bad, "steep": steep}, tmp_path / "out", executor())
    assert (tmp_path / "out" / "bad" / "error.txt").read_text().count("'lame'") == 1
    diverged = RunFolder(tmp_path / "out" / "steep")
    assert diverged.divergence(steep.id) and not diverged.final.exists()
