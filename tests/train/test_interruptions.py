"""Interrupted runs go on as if never stopped: after a kill, a signal, a full disk, a divergence."""

import os
import signal
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load_file
from small_run import Interrupted, a_run, assert_same_end, interrupt, rewound, stop_at

from layermem_bench.results.run_folder import RunFolder
from layermem_bench.train.run import train
from layermem_bench.train.stopping import NotFiniteError
from layermem_bench.train.trainer import Trainer


@pytest.mark.parametrize("step", [1, 2, 3, 5, 8])
def test_a_killed_run_goes_on_as_if_nothing_had_been(step, run, whole, tmp_path, monkeypatch):
    out = tmp_path / "killed"
    with monkeypatch.context() as patch:
        stop_at(patch, step, interrupt)
        with pytest.raises(Interrupted):
            train(run, out)
    folder = train(run, out, resume=True)
    assert_same_end(folder, whole)


def test_a_kill_while_saving_leaves_the_checkpoint_before(run, whole, tmp_path, monkeypatch):
    out = tmp_path / "killed"
    save = Trainer._save_rng_state

    def torn(self, output_dir):
        if self.state.global_step == 4:
            raise Interrupted
        save(self, output_dir)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_save_rng_state", torn)
        with pytest.raises(Interrupted):
            train(run, out)
    assert RunFolder(out).latest_checkpoint().name == "checkpoint-2"
    assert_same_end(train(run, out, resume=True), whole)


def test_a_full_disk_leaves_the_checkpoint_before(run, whole, tmp_path, monkeypatch):
    out = tmp_path / "full"
    save = Trainer._save_rng_state

    def full(self, output_dir):
        if self.state.global_step == 6:
            raise OSError(28, "No space left on device", output_dir)
        save(self, output_dir)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_save_rng_state", full)
        with pytest.raises(OSError, match="No space left"):
            train(run, out)
    assert RunFolder(out).latest_checkpoint().name == "checkpoint-4"
    assert_same_end(train(run, out, resume=True), whole)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_asked_to_stop_it_saves_and_stops(name, run, whole, tmp_path, monkeypatch, interruptible):
    out = tmp_path / "stopped"
    raised = pytest.raises(KeyboardInterrupt) if name == "SIGINT" else nullcontext()
    with monkeypatch.context() as patch, raised:
        stop_at(patch, 4, lambda: os.kill(os.getpid(), signal.Signals[name]))
        train(run, out)
    folder = RunFolder(out)
    # Asked for while step 4 was written down: it ends with the step after, when no save is due.
    assert folder.latest_checkpoint().name == "checkpoint-5" and not folder.final.exists()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    assert_same_end(train(run, out, resume=True), whole)


def interrupt_twice():
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)


def test_a_second_ctrl_c_stops_at_once(run, tmp_path, monkeypatch, interruptible):
    stop_at(monkeypatch, 3, interrupt_twice)
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "stopped")
    assert RunFolder(tmp_path / "stopped").latest_checkpoint().name == "checkpoint-2"
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_a_ctrl_c_that_is_ignored_stays_so(run, tmp_path, monkeypatch, interruptible):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop_at(monkeypatch, 3, interrupt_twice)
    assert train(run, tmp_path / "ignoring").final.exists()


def test_a_run_that_has_ended_is_left_alone(run, whole, monkeypatch):
    monkeypatch.setattr(Trainer, "train_from", None)
    assert train(run, whole.path, resume=True).path == whole.path


def test_resuming_from_nothing_begins(run, whole, tmp_path):
    assert_same_end(train(run, tmp_path / "new", resume=True), whole)


def test_a_damaged_checkpoint(run, whole, tmp_path):
    folder = rewound(whole.path, tmp_path / "damaged")
    path = folder.latest_checkpoint() / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="damaged; delete .*checkpoint-4 to go on from"):
        train(run, folder.path, resume=True)


def test_a_loss_that_is_not_finite_stops_the_run_and_nothing_is_lost(
    run, place, tmp_path, monkeypatch
):
    out = tmp_path / "burst"
    compute = Trainer.compute_loss

    def burst(self, model, *args, **kwargs):
        loss = compute(self, model, *args, **kwargs)
        return loss * torch.nan if model.training and self.state.global_step == 4 else loss

    monkeypatch.setattr(Trainer, "compute_loss", burst)
    with pytest.raises(
        NotFiniteError, match="not finite at step 5; .*checkpoint-4.* Lower optim.lr"
    ):
        train(run, out)
    folder = RunFolder(out)
    assert folder.latest_checkpoint().name == "checkpoint-4" and not folder.final.exists()
    assert [row["step"] for row in folder.rows() if "loss" in row] == [1, 2, 3, 4]
    state = load_file(folder.latest_checkpoint() / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in state.values())
    # What a study goes by.
    noted = folder.divergence(run.id)
    assert noted["step"] == 5 and "not finite at step 5" in noted["message"]
    assert folder.divergence(a_run(place, seed=1).id) is None
    # Whoever goes on past it, by whatever means, has not diverged.
    monkeypatch.undo()
    train(run, out, resume=True)
    assert folder.final.exists() and not folder.diverged.exists()


def test_a_failure_that_is_no_divergence_leaves_no_record_of_one(run, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(Trainer, "compute_loss", full)
    with pytest.raises(RuntimeError, match="out of memory"):
        train(run, tmp_path / "full")
    assert not RunFolder(tmp_path / "full").diverged.exists()
