"""Runs that stop go on as if never stopped: after a kill, a signal, a full disk, a divergence."""

import os
import resource
import shutil
import signal
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_run import (
    Interrupted,
    a_run,
    assert_alike,
    assert_same_end,
    curve,
    interrupt,
    rewound,
    stop_at,
)

from layermem_bench.run import checkpoints
from layermem_bench.run.folder import RunFolder, load_run
from layermem_bench.run.loop import Loop
from layermem_bench.run.processes import NotFiniteError
from layermem_bench.run.training import train


@pytest.mark.parametrize("step", [1, 3, 8])
def test_a_killed_run_goes_on_as_if_nothing_had_been(step, run, whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        stop_at(patch, step, interrupt)
        train(run, tmp_path / "killed")
    assert_same_end(train(run, tmp_path / "killed", resume=True), whole)


@pytest.mark.parametrize(
    "changes",
    # Rows of three steps each, where checkpoints are of two; random numbers in each step.
    [{"log_every": 3}, {"model": {"options": ("attention_dropout=0.2",)}}],
    ids=str,
)
def test_a_run_goes_on_within_a_row_and_draws_what_it_would_have_drawn(changes, tmp_path):
    run = a_run(tmp_path, keep=9, **changes)
    whole = train(run, tmp_path / "whole")
    folder = rewound(whole.path, tmp_path / "begun")
    assert_same_end(train(run, folder.path, resume=True), whole)


def test_a_save_that_is_cut_short_leaves_the_checkpoint_before(run, whole, tmp_path, monkeypatch):
    save = checkpoints.save_training

    def torn(checkpoint, run, moments, progress, random):
        if progress["step"] == 4:
            raise Interrupted
        save(checkpoint, run, moments, progress, random)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(checkpoints, "save_training", torn)
        train(run, tmp_path / "torn")
    folder = RunFolder(tmp_path / "torn")
    assert folder.latest_checkpoint().name == "checkpoint-2" and not folder.staging.exists()
    assert_same_end(train(run, folder.path, resume=True), whole)


def test_a_run_that_has_ended_is_left_alone_and_from_nothing_one_begins(
    run, whole, tmp_path, monkeypatch
):
    assert_same_end(train(run, tmp_path / "new", resume=True), whole)
    monkeypatch.setattr(Loop, "train", None)
    assert train(run, whole.path, resume=True).path == whole.path


# --- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_step_and_saves(number, run, whole, tmp_path, monkeypatch):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    out = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        stop_at(patch, 3, lambda: os.kill(os.getpid(), number))
        if number == signal.SIGINT:
            with pytest.raises(KeyboardInterrupt):
                train(run, out)
        else:
            assert not train(run, out).final.exists()
    # The row of step 3 is written after the step has looked for a signal.
    assert RunFolder(out).latest_checkpoint().name == "checkpoint-4"
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    assert_same_end(train(run, out, resume=True), whole)


def test_a_second_ctrl_c_stops_immediately(run, tmp_path, monkeypatch):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stop_at(monkeypatch, 3, lambda: [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)])
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "stopped")
    assert RunFolder(tmp_path / "stopped").latest_checkpoint().name == "checkpoint-2"


# --- what a run does not go on from


def drop_a_weight(checkpoint):
    state = load_file(checkpoint / "model.safetensors")
    del state["model.norm.weight"]
    save_file(state, checkpoint / "model.safetensors", metadata={"format": "pt"})


def spoil_a_moment(checkpoint):
    state = torch.load(checkpoint / "training.pt", weights_only=True)
    state["moments"][0]["exp_avg"].fill_(torch.nan)
    torch.save(state, checkpoint / "training.pt")


@pytest.mark.parametrize(
    ("damage", "error"), [(drop_a_weight, ValueError), (spoil_a_moment, NotFiniteError)]
)
def test_a_checkpoint_that_holds_something_else(damage, error, run, whole, tmp_path):
    folder = rewound(whole.path, tmp_path / "damaged")
    damage(folder.latest_checkpoint())
    with pytest.raises(error):
        train(run, folder.path, resume=True)


def test_a_checkpoint_of_another_run(run, whole, tmp_path):
    other = train(replace(run, seed=3), tmp_path / "other")
    folder = rewound(whole.path, tmp_path / "begun")
    shutil.rmtree(folder.latest_checkpoint())
    shutil.copytree(other.checkpoints / "checkpoint-4", folder.checkpoints / "checkpoint-4")
    with pytest.raises(ValueError, match=load_run(other.config).id):
        train(run, folder.path, resume=True)


def test_other_data(tmp_path):
    run = a_run(tmp_path, keep=9, max_steps=4)
    folder = rewound(train(run, tmp_path / "whole").path, tmp_path / "begun", 2)
    before, source = folder.metrics.read_text(), tmp_path / "words.jsonl"
    text = source.read_text()
    # As many tokens, and other ones.
    source.write_text(text.replace("w1", "w2"))
    with pytest.raises(ValueError, match="other data"):
        train(run, folder.path, resume=True)
    assert folder.metrics.read_text() == before
    source.write_text(text)
    train(run, folder.path, resume=True)
    assert curve(folder) == curve(RunFolder(tmp_path / "whole"))


# --- numbers that are not finite


def spoil_a_row_nobody_reads(loop):
    """The loss stays finite: no text holds the token."""
    loop.model.model.embed_tokens.weight.data[-2] = torch.inf


def spoil_moments(loop):
    next(iter(loop.optimizer.state.values()))["exp_avg_sq"].flatten()[0] = torch.inf


@pytest.mark.parametrize(
    ("spoil", "save_every"), [(spoil_a_row_nobody_reads, 2), (spoil_moments, 2), (spoil_moments, 0)]
)
def test_nothing_that_is_not_finite_is_saved(spoil, save_every, tmp_path, monkeypatch):
    step = Loop.train_step

    def spoilt(self, batches):
        step(self, batches)
        if self.step == 5:
            spoil(self)

    monkeypatch.setattr(Loop, "train_step", spoilt)
    run = a_run(tmp_path, log_every=10, eval_every=100, save_every=save_every)
    with pytest.raises(NotFiniteError):
        train(run, tmp_path / "spoilt")
    folder = RunFolder(tmp_path / "spoilt")
    assert not folder.final.exists()
    assert folder.divergence(run.id)["step"] == (6 if save_every else 8)
    saved = [path.name for path in folder.complete_checkpoints()]
    assert saved == (["checkpoint-2", "checkpoint-4"] if save_every else [])


def test_a_loss_that_is_not_finite_stops_the_run_and_nothing_is_lost(
    run, place, tmp_path, monkeypatch
):
    out, compute = tmp_path / "burst", Loop.compute_loss

    def burst(self, *args):
        return compute(self, *args) * (torch.nan if self.step == 4 else 1.0)

    monkeypatch.setattr(Loop, "compute_loss", burst)
    with pytest.raises(NotFiniteError, match="checkpoint-4"):
        train(run, out)
    folder = RunFolder(out)
    assert folder.latest_checkpoint().name == "checkpoint-4" and not folder.final.exists()
    assert [row["step"] for row in folder.rows() if "loss" in row] == [1, 2, 3, 4]
    # What a study goes by.
    assert folder.divergence(run.id)["step"] == 5
    assert folder.divergence(a_run(place, seed=1).id) is None
    # Whoever goes on past it, by whatever means, has not diverged.
    monkeypatch.undo()
    train(run, out, resume=True)
    assert folder.final.exists() and not folder.diverged.exists()


def test_a_validation_loss_that_is_not_finite_is_in_no_row(tmp_path, monkeypatch):
    judge = Loop._judge
    monkeypatch.setattr(Loop, "_judge", lambda self: judge(self) * torch.nan)
    with pytest.raises(NotFiniteError, match="validation loss"):
        train(a_run(tmp_path), tmp_path / "burst")
    assert not [row for row in RunFolder(tmp_path / "burst").rows() if "val_loss" in row]


# --- a full disk


@pytest.fixture
def small_disk():
    """A limit that a file cannot outgrow: what a full disk is like, from a number of bytes on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.parametrize("save_every", [2, 0])
def test_a_full_disk_costs_no_training(save_every, place, whole, tmp_path, monkeypatch, small_disk):
    """Neither while a checkpoint is written nor while the final model is."""
    run, out = a_run(place, save_every=save_every), tmp_path / "full"
    with monkeypatch.context() as patch, pytest.raises(OSError, match="--resume"):
        # The last that is done before the final model is written.
        if save_every:
            stop_at(patch, 3, lambda: small_disk(40_000))
        else:
            patch.setattr("layermem_bench.run.training.whole_weights", lambda _: small_disk(20_000))
        train(run, out)
    small_disk(resource.RLIM_INFINITY)
    folder = RunFolder(out)
    assert not folder.staging.exists() and not (out / ".final").exists()
    assert not folder.final.exists() and len(folder.complete_checkpoints()) == 1
    assert curve(train(run, out, resume=True)) == curve(whole)


# --- other processes


@pytest.mark.slow
def test_any_checkpoint_goes_on_under_any_processes(two_processes, tmp_path):
    """One process, two with copies, two that share: from each to each, one curve."""
    folder = two_processes / "layouts"
    run = load_run(folder / "one" / "config.yaml")
    whole = RunFolder(folder / "one")
    for begun in ("ddp", "fsdp"):
        sharded = begun == "fsdp"
        assert_alike(RunFolder(folder / begun), whole, sharded=sharded)
        path = rewound(folder / begun, tmp_path / f"{begun}-one").path
        assert_alike(train(run, path, resume=True), whole, sharded=sharded)
    resumed = sorted(path for path in folder.glob("*-*") if path.is_dir())
    assert len(resumed) == 5
    for path in resumed:
        assert_alike(RunFolder(path), whole, sharded="fsdp" in path.name)
