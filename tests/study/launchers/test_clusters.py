"""Runs on clusters: Ray embedded, and submitit's jobs as processes; the records are local ones."""

import os
import signal
import threading
import time

import pytest
from small_run import a_run, assert_same_end

from layermem_bench.results.run_folder import RunFolder
from layermem_bench.study.launchers.launcher import Launching
from layermem_bench.study.launchers.local_processes import LocalProcesses
from layermem_bench.study.launchers.slurm_array import LOGS, SlurmArray
from layermem_bench.study.launching import train_missing
from layermem_bench.train.run import train

# Of libraries that are not ours: sockets and pipes that they leave to the interpreter.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray.*"),
]


def on_ray(**options):
    from layermem_bench.study.launchers.ray_tasks import RayTasks

    return RayTasks(Launching(launcher="ray", **options))


def on_slurm(**options):
    return SlurmArray(Launching(launcher="slurm", **options), cluster="local")


LAUNCHERS = pytest.mark.parametrize("launcher", [on_slurm, on_ray])


def two_runs(folder):
    return {f"board/{name}-s0": a_run(folder, variant=name) for name in ("plain", "lime")}


@pytest.fixture(scope="module")
def locally(tmp_path_factory):
    """The records that every launcher has to give."""
    folder = tmp_path_factory.mktemp("locally")
    runs = two_runs(folder)
    return folder, train_missing(runs, folder / "out", LocalProcesses(jobs=2))


@LAUNCHERS
def test_runs_are_recorded_as_by_local_processes(launcher, locally, ray, tmp_path):
    folder, expected = locally
    runs = two_runs(folder)
    there = train_missing(runs, tmp_path, launcher())
    assert there.keys() == expected.keys()
    for name, of_cluster in there.items():
        assert_same_end(of_cluster, expected[name])
        assert not (of_cluster.path / "error.txt").exists()
        assert len(of_cluster.rows()) == len(expected[name].rows())
    # Nothing is left to do, and nothing of submitit's for each run.
    before = {name: of_cluster.metrics.stat().st_mtime_ns for name, of_cluster in there.items()}
    again = train_missing(runs, tmp_path, launcher())
    assert before == {name: each.metrics.stat().st_mtime_ns for name, each in again.items()}
    assert not list(tmp_path.glob(f"board/{LOGS}/*.pkl"))


def parents(pid):
    """Return the processes that lead to one, the nearest first."""
    found = []
    while pid > 1:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


def training_in(folder):
    """Return the id of the process that trains in a folder, None where there is none."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
                words = file.read().split("\0")
        except OSError:
            continue
        if str(folder) in words and "train" in words:
            return int(pid)
    return None


def newest_step(folder):
    """Return the step of the newest checkpoint, 0 where there is none."""
    checkpoint = folder.latest_checkpoint()
    return int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0


def when_begun(folder, act, step=0):
    """Call ``act`` with the id of the training process once there is a checkpoint after a step."""

    def watch():
        end = time.monotonic() + 120
        while newest_step(folder) <= step and time.monotonic() < end:
            time.sleep(0.02)
        act(training_in(folder.path))

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


# Long enough that what is to come in the middle comes before the end, on a busy machine too.
LONG = {"max_steps": 200, "eval_every": 100, "save_every": 10}


def kill_machine(pid):
    """Kill a run's worker, and submitit's controller of it, as a machine that dies would."""
    worker, controller, *_ = parents(pid)
    with open(f"/proc/{controller}/cmdline", encoding="utf-8") as file:
        is_controller = "submitit" in file.read()
    for each in (controller,) * is_controller + (worker,):
        os.kill(each, signal.SIGKILL)


def preempt(pid):
    os.kill(parents(pid)[0], signal.SIGUSR2)


@pytest.mark.parametrize(
    ("launcher", "act"), [(on_slurm, kill_machine), (on_slurm, preempt), (on_ray, kill_machine)]
)
def test_a_run_whose_worker_dies_ends_as_if_it_had_not(launcher, act, ray, tmp_path):
    run = a_run(tmp_path, **LONG)
    alone = train(run, tmp_path / "alone")
    folder = RunFolder(tmp_path / "out" / "one")
    watcher = when_begun(folder, act)
    there = train_missing({"one": run}, tmp_path / "out", launcher())["one"]
    watcher.join()
    assert_same_end(there, alone)
    assert [row["step"] for row in there.rows() if "loss" in row] == list(range(1, 201))


@LAUNCHERS
def test_a_run_that_fails_by_itself_is_tried_once_and_told(launcher, ray, tmp_path):
    """One that diverges beside it is tried once too, and is no failure."""
    bad = a_run(tmp_path, variant="lame")
    steep = a_run(tmp_path, optim={"lr": 1e30, "warmup_steps": 0, "clip": 0.0})
    said = r"1 of 2 runs failed: bad ended with exit code 1: .*'lame'.*bad/error.txt"
    with pytest.raises(RuntimeError, match=said):
        train_missing({"bad": bad, "steep": steep}, tmp_path / "out", launcher())
    assert (tmp_path / "out" / "bad" / "error.txt").read_text().count("'lame'") == 1
    diverged = RunFolder(tmp_path / "out" / "steep")
    assert diverged.divergence(steep.id) and not diverged.final.exists()


@LAUNCHERS
def test_what_is_stopped_has_saved_and_goes_on(launcher, ray, tmp_path, monkeypatch):
    # So many steps that it is told before its end, however long that takes.
    steps = 100_000
    run = a_run(tmp_path, max_steps=steps, eval_every=steps, save_every=10)
    folder = RunFolder(tmp_path / "out" / "one")
    this = threading.main_thread().ident

    def tell(_):
        signal.pthread_kill(this, signal.SIGTERM)

    ends = [0]
    for _ in range(2):
        watcher = when_begun(folder, tell, ends[-1])
        with pytest.raises(SystemExit):
            train_missing({"one": run}, tmp_path / "out", launcher())
        watcher.join()
        with folder.locked():
            ends.append(newest_step(folder))
        assert folder.rows()[-1]["step"] == ends[-1], "it saved where it stopped"
    # The second start went on where the first had stopped.
    assert 0 < ends[1] < ends[2] < steps
    assert [row["step"] for row in folder.rows()] == list(range(1, ends[2] + 1))
