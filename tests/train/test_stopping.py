"""Being ended from outside: by a job's time limit, and by a disk that is full."""

import resource
import signal
import socket
import time

import pytest
import yaml
from forked import read_errors, start_fork
from small_run import a_run, curve

from layermem_bench import cli
from layermem_bench.config.run import to_dict
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.train.run import train


def test_a_job_about_to_end_saves_and_ends_well(tmp_path):
    """As srun starts processes, without torchrun: each gets the signal, and all end with 0."""
    run = a_run(tmp_path, max_steps=5000, eval_every=5000, save_every=5000, optim={"batch_size": 8})
    config, out = tmp_path / "run.yaml", tmp_path / "job"
    config.write_text(yaml.safe_dump(to_dict(run)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = ["train", "--config", str(config), "--out", str(out)]
    processes = [
        start_fork(cli.main, command, folder=tmp_path, RANK=rank, LOCAL_RANK=rank, **shared)
        for rank in "01"
    ]
    folder, end = RunFolder(out), time.monotonic() + 120
    while len(folder.rows()) < 3 and time.monotonic() < end:
        assert all(process.exitcode is None for process in processes)
        time.sleep(0.05)
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(timeout=60)
    said = [read_errors(process, tmp_path) for process in processes]
    assert [process.exitcode for process in processes] == [0, 0], said
    assert f"stopped at step {int(folder.latest_checkpoint().name.rpartition('-')[2])}" in said[0]
    assert not folder.final.exists() and not folder.staging.exists()


@pytest.fixture
def small_disk():
    """A limit that a file cannot outgrow: what a full disk is like, from a number of bytes on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.parametrize("save_every", [2, 0])
def test_a_full_disk_is_said_and_leaves_nothing_half(
    save_every, place, whole, tmp_path, monkeypatch, small_disk
):
    run, out = a_run(place, save_every=save_every), tmp_path / "full"
    append = RunFolder.append_row

    def filling(self, row):
        append(self, row)
        small_disk(40_000) if row["step"] == 3 else None

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append_row", filling)
        what = "a checkpoint in .*/full/checkpoints could not be written"
        with pytest.raises(OSError, match=f"{what} .*make room, and --resume"):
            train(run, out)
    small_disk(resource.RLIM_INFINITY)
    folder = RunFolder(out)
    assert not folder.staging.exists() and not (out / ".final").exists()
    assert [path.name for path in folder.complete_checkpoints()] == (
        ["checkpoint-2"] if save_every else []
    )
    assert curve(train(run, out, resume=True)) == curve(whole)


def test_a_final_model_that_cannot_be_written_costs_no_training(
    place, whole, tmp_path, monkeypatch, small_disk
):
    """Also of a run that asks for no checkpoints."""
    run, out = a_run(place, save_every=0), tmp_path / "full"
    with monkeypatch.context() as patch:
        # The last that is done before the final model is written.
        patch.setattr("layermem_bench.train.run.merge_lora", lambda _: small_disk(20_000))
        what = "the final model, .*final, could not be written"
        with pytest.raises(OSError, match=f"{what} .*make room, and --resume"):
            train(run, out)
    small_disk(resource.RLIM_INFINITY)
    assert not (out / ".final").exists() and not (out / "final").exists()
    monkeypatch.setattr("layermem_bench.train.trainer.Trainer.training_step", None)
    folder = train(run, out, resume=True)
    assert folder.final.exists() and curve(folder) == curve(whole)
    assert not folder.complete_checkpoints()
