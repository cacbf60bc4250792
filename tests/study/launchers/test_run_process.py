"""A run's process beside its worker: it ends with it, and is told where it cannot begin."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from recorded import SIZES

from layermem_bench.config.run import Run
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.study.launchers import tethered
from layermem_bench.study.launchers.launcher import Launching
from layermem_bench.study.launchers.run_process import RemoteRun, remote_run

RUN = Run(preset="made-up", max_steps=40, model=SIZES)


def test_what_a_worker_is_sent(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERMEM_PLUGINS", "mine")
    monkeypatch.setenv("SECRET", "no")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.chdir(tmp_path)
    folder = RunFolder("out/one")
    folder.create()
    sent = remote_run(RUN, folder, Launching(launcher="ray", cpus=3))
    assert sent.folder == tmp_path / "out" / "one" and sent.directory == tmp_path
    assert sent.environment["LAYERMEM_PLUGINS"] == "mine" and "SECRET" not in sent.environment
    assert sent.environment["OMP_NUM_THREADS"] == "3"
    tethered_train = ("-m", "layermem_bench.study.launchers.tethered", "layermem", "train")
    assert sent.command[1:5] == tethered_train
    assert str(sent.folder) in sent.command and "--resume" in sent.command
    # Several GPUs of one machine take as many processes.
    several = remote_run(RUN, folder, Launching(launcher="slurm", gpus=4)).command
    run = ("torch.distributed.run", "--standalone", "--nproc-per-node=4", "-m", "layermem", "train")
    assert several[3:9] == run


def test_a_machine_that_does_not_see_the_folder_says_so(tmp_path):
    lost = RemoteRun(command=("true",), folder=tmp_path, directory=tmp_path, environment={})
    code, said = lost()
    assert code == 1 and f"does not see {tmp_path}" in said and "share" in said


def test_a_worker_can_be_interrupted_that_was_started_in_the_background(tmp_path):
    """There a shell has SIGINT ignored, by which clusters cancel: its run would train on."""
    (tmp_path / "asked.yaml").touch()
    run = RemoteRun(command=("true",), folder=tmp_path, directory=tmp_path, environment={})
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run() == (0, "")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_process_ends_with_its_worker(tmp_path):
    """A module that stands for a training writes down that it was asked to end."""
    told = tmp_path / "told"
    (tmp_path / "waiting.py").write_text(
        "import pathlib, signal, sys, time\n"
        "def tell(number, _):\n"
        "    pathlib.Path(sys.argv[1]).write_text(f'{number} {__name__}'); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, tell)\n"
        "print('ready', flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, Path(tethered.__file__), "waiting", told]
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(tmp_path)},
    ) as process:  # fmt: skip
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.2)
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(30) == 3
    assert told.read_text() == f"{int(signal.SIGTERM)} __main__"
