"""What Slurm is asked for, by a made-up sbatch; how jobs end, without one."""

import os
import signal
import time
from types import SimpleNamespace

import pytest
from recorded import SIZES, record
from submitit.core.utils import cloudpickle_dump

from layermem_bench.config.run import Run
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.study.launchers import slurm_array
from layermem_bench.study.launchers.launcher import Launching
from layermem_bench.study.launchers.run_process import RemoteRun
from layermem_bench.study.launchers.slurm_array import LOGS, ArrayRun, SlurmArray, parameters
from layermem_bench.study.launching import train_missing

RUN = Run(preset="made-up", max_steps=40, model=SIZES)
COMMANDS = {
    "sbatch": 'cat "$1" > "$FAKE/script"; echo "Submitted batch job 77"',
    "srun": "",
    "sacct": 'cat "$FAKE/states"',
    "scancel": 'echo "$@" >> "$FAKE/cancelled"',
}


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Commands of Slurm that note what they are asked; sacct says what is in a file."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, does in COMMANDS.items():
        (folder / name).write_text(f"#!/bin/sh\n{does}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("FAKE", str(folder))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    states(folder, {})
    yield folder
    from submitit.slurm.slurm import SlurmJob

    SlurmJob.watcher.clear()
    SlurmJob.watcher._registered.clear()


def states(folder, of_jobs):
    lines = [f"{job}|{state}|node" for job, state in of_jobs.items()]
    (folder / "states").write_text("\n".join(["JobID|State|NodeList", *lines]) + "\n")


def seen_now():
    """Have submitit ask sacct again, which it does seldom."""
    from submitit.slurm.slurm import SlurmJob

    SlurmJob.watcher._last_status_check = float("-inf")


def launch(launcher, folder, *names):
    work = {name: (RUN, RunFolder(folder / "board" / name)) for name in names}
    for _, run_folder in work.values():
        run_folder.create()
    launcher.launch(work)
    return work


def test_many_runs_are_one_array(slurm, tmp_path):
    options = {"partition": "gpu", "hours": 1.5, "gpus": 1, "cpus": 6, "memory_gb": 12.0}
    asked = Launching(launcher="slurm", jobs=2, slurm=("account=physics", "--qos=low"), **options)
    launcher = SlurmArray(asked)
    assert launcher.room() >= 1000
    launch(launcher, tmp_path, "a", "b", "c")
    asked_for = (slurm / "script").read_text()
    for line in (
        *("array=0-2%2", "partition=gpu", "time=90", "gpus-per-node=1", "cpus-per-task=6"),
        *("mem=12GB", "account=physics", "qos=low", "job-name=layermem", "open-mode=append"),
    ):
        assert f"#SBATCH --{line}\n" in asked_for, line
    assert "#SBATCH --requeue\n" in asked_for
    assert len(list(tmp_path.glob(f"board/{LOGS}/77_*_submitted.pkl"))) == 3
    # One array at a time.
    assert launcher.room() == 0 and launcher.ended() == {}
    launcher.withdraw()
    launcher.stop()
    assert (slurm / "cancelled").read_text().splitlines() == ["--state=PENDING 77", "77"]
    assert launcher.room() >= 1000


def test_a_worker_that_raises_is_one_failure(slurm, tmp_path):
    launcher = SlurmArray(Launching(launcher="slurm"))
    work = launch(launcher, tmp_path, "raises", "runs")
    logs = tmp_path / "board" / LOGS
    raised = "Traceback (most recent call last):\nFileNotFoundError: no /venv/bin/python\n"
    cloudpickle_dump(("error", raised), logs / "77_0_0_result.pkl")
    states(slurm, {"77_1": "RUNNING"})
    seen_now()
    assert launcher.ended() == {"raises": 1}
    said = (work["raises"][1].path / "error.txt").read_text()
    assert "the worker of Slurm's job 77_0 failed: FileNotFoundError: no /venv/bin/python" in said
    assert not (slurm / "cancelled").exists()


def test_how_jobs_end(slurm, tmp_path):
    launcher = SlurmArray(Launching(launcher="slurm", retries=1))
    work = launch(launcher, tmp_path, "ends", "fails", "cancelled", "dies", "runs")
    logs = tmp_path / "board" / LOGS
    cloudpickle_dump(("success", (0, "")), logs / "77_0_0_result.pkl")
    cloudpickle_dump(("success", (1, "no such folder")), logs / "77_1_0_result.pkl")
    states(slurm, {"77_2": "CANCELLED by 0", "77_3": "NODE_FAIL", "77_4": "RUNNING"})
    seen_now()
    assert launcher.ended() == {"ends": 0, "fails": 1, "cancelled": 0}
    assert "no such folder" in (work["fails"][1].path / "error.txt").read_text()
    assert not (logs / "77_0_0_result.pkl").exists() and (logs / "77_1_0_result.pkl").exists()
    # The one whose machine died is a new job, and dies again: it has had its retries.
    assert (logs / "77_submitted.pkl").exists()
    states(slurm, {"77": "NODE_FAIL", "77_4": "PREEMPTED"})
    (logs / "77_0_log.err").write_text("slurmstepd: node went away\n")
    seen_now()
    assert launcher.ended() == {"dies": 1}
    said = (work["dies"][1].path / "error.txt").read_text()
    assert "job 77 is NODE_FAIL: slurmstepd: node went away" in said
    # The one that was preempted for good is a new job too.
    assert launcher._tried == {**dict.fromkeys(work, 0), "dies": 1, "runs": 1}


def test_what_sbatch_refuses_is_one_line(slurm, tmp_path):
    (slurm / "sbatch").write_text("#!/bin/sh\necho 'invalid partition: x' >&2; exit 1\n")
    launcher = SlurmArray(Launching(launcher="slurm", partition="x"))
    with pytest.raises(ValueError, match="refused an array of 2 runs: .*invalid partition: x"):
        train_missing({"a": RUN, "b": RUN}, tmp_path / "out", launcher)


@pytest.mark.parametrize("option", ["account", "=physics", ""])
def test_an_option_of_sbatch_is_key_and_value(option):
    with pytest.raises(ValueError, match=f"KEY=VALUE .*, got {option!r}"):
        parameters(Launching(launcher="slurm", slurm=(option,)))


def waiting(folder, seconds=60):
    """Return a run whose process only waits, and of which no more is needed."""
    RunFolder(folder).create()
    (folder / "asked.yaml").touch()
    return RemoteRun(
        command=("sleep", str(seconds)), folder=folder, directory=folder, environment={}
    )


def test_a_job_begun_too_often_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    code, said = ArrayRun(run=waiting(tmp_path), retries=2)()
    assert code == 1 and "3 times" in said
    assert ArrayRun(run=waiting(tmp_path, 0), retries=3)() == (0, "")


def test_before_a_requeue_the_training_has_ended(tmp_path):
    """As submitit calls it, in the handler of a signal."""
    run, asked_again = ArrayRun(run=waiting(tmp_path)), []

    def requeue(*_):
        asked_again.append(run.checkpoint())
        raise SystemExit

    before = signal.signal(signal.SIGALRM, requeue)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    started = time.monotonic()
    try:
        with pytest.raises(SystemExit):
            run()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - started < 30
    (delayed,) = asked_again
    assert delayed.function.run == waiting(tmp_path) and signal.getsignal(signal.SIGTERM) != run


def test_after_sigterm_a_job_waits_for_slurm_unless_the_run_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_array, "_UNTIL_TAKEN", 0.1)
    slept = []
    monkeypatch.setattr(
        slurm_array, "time", SimpleNamespace(monotonic=time.monotonic, sleep=slept.append)
    )
    run = ArrayRun(run=waiting(tmp_path))
    run._save_and_wait()
    assert slept
    slept.clear()
    record(tmp_path, run=RUN)
    run._save_and_wait()
    assert not slept
