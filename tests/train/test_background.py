"""Checkpoints written while training goes on: the same files, whole or absent."""

import threading
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from single_runs import layout_run
from small_run import (
    Interrupted,
    a_run,
    assert_alike,
    assert_same_end,
    interrupt,
    rewound,
    stop_at,
)

from layermem_bench.results.run_folder import RunFolder
from layermem_bench.train.background import copy_to_cpu
from layermem_bench.train.run import train
from layermem_bench.train.trainer import Trainer


def behind(run):
    """The same run with checkpoints in the background."""
    return replace(run, compute=replace(run.compute, async_checkpoints=True))


def written_late(monkeypatch):
    """Have weights written in the background once the last step's row is there."""
    save = Trainer._save

    def late(self, output_dir=None, state_dict=None):
        if threading.current_thread() is not threading.main_thread():
            while self.folder.last_row()["step"] < 8:
                time.sleep(0.01)
        save(self, output_dir, state_dict)

    monkeypatch.setattr(Trainer, "_save", late)


def files(checkpoint):
    return {str(p.relative_to(checkpoint)) for p in checkpoint.rglob("*") if p.is_file()}


def waiting(monkeypatch):
    """Have every checkpoint waited for, however fast steps are."""
    monkeypatch.setattr("layermem_bench.train.background.any_process", lambda busy, args: False)


@pytest.mark.slow
@pytest.mark.parametrize("change", [{}, {"model": {"tie_word_embeddings": True}}])
def test_the_files_are_those_of_a_checkpoint_that_is_waited_for(
    change, place, tmp_path, monkeypatch
):
    waiting(monkeypatch)
    run = a_run(place, keep=9, **change)
    whole, folder = train(run, tmp_path / "whole"), train(behind(run), tmp_path / "behind")
    assert_same_end(folder, whole)
    for ours, theirs in zip(
        folder.complete_checkpoints(), whole.complete_checkpoints(), strict=True
    ):
        assert ours.name == theirs.name and files(ours) == files(theirs)
        weights = load_file(ours / "model.safetensors"), load_file(theirs / "model.safetensors")
        assert weights[0].keys() == weights[1].keys()
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
        moments = [torch.load(c / "optimizer.pt", weights_only=True) for c in (ours, theirs)]
        for number, state in moments[1]["state"].items():
            assert all(torch.equal(moments[0]["state"][number][n], t) for n, t in state.items())


@pytest.mark.parametrize("step", [3, 6])
def test_a_killed_run_goes_on_as_if_nothing_had_been(step, run, whole, tmp_path, monkeypatch):
    waiting(monkeypatch)
    out = tmp_path / "killed"
    with monkeypatch.context() as patch:
        stop_at(patch, step, interrupt)
        with pytest.raises(Interrupted):
            train(behind(run), out)
    assert_same_end(train(behind(run), out, resume=True), whole)


def test_training_goes_on_while_a_checkpoint_is_written(run, whole, tmp_path, monkeypatch, caplog):
    """Eight steps and four saves, of which the first takes longer than all steps."""
    written_late(monkeypatch)
    folder = train(behind(run), tmp_path / "behind")
    # That of step 2 did not end before step 8; the last one was waited for.
    assert [path.name for path in folder.complete_checkpoints()] == ["checkpoint-2", "checkpoint-8"]
    assert caplog.text.count("still being written; raise save_every") == 2
    assert_same_end(folder, whole)


def test_what_is_written_is_the_state_of_its_step(run, whole, tmp_path, monkeypatch):
    """Not that of the steps that were trained while it was written."""
    written_late(monkeypatch)
    folder = train(behind(run), tmp_path / "behind")
    again = rewound(folder.path, tmp_path / "again", 2)
    assert_same_end(train(run, again.path, resume=True), whole)


def test_an_error_while_writing_stops_the_run(run, whole, tmp_path, monkeypatch):
    waiting(monkeypatch)
    save = Trainer._save

    def full(self, output_dir=None, state_dict=None):
        if self.folder.complete_checkpoints() and "staging" in str(output_dir):
            raise OSError(28, "No space left on device", output_dir)
        save(self, output_dir, state_dict)

    out = tmp_path / "full"
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_save", full)
        with pytest.raises(OSError, match="No space left .* disk is full, make room"):
            train(behind(run), out)
    folder = RunFolder(out)
    assert folder.latest_checkpoint().name == "checkpoint-2" and not folder.staging.exists()
    assert_same_end(train(behind(run), out, resume=True), whole)


def test_copies_share_what_the_tensors_share():
    weight = torch.ones(3)
    copied = copy_to_cpu({"a": weight, "b": weight, "c": [torch.ones(3), 1]})
    weight.zero_()
    assert copied["a"] is copied["b"] and copied["a"] is not copied["c"][0]
    assert copied["a"].tolist() == [1.0] * 3 and copied["c"][1] == 1


@pytest.mark.slow
@pytest.mark.parametrize("begun", ["ddp", "fsdp"])
def test_two_processes_write_in_the_background_too(begun, two_processes, tmp_path):
    """Begun by two processes, resumed by one, by two with copies and by two that share."""
    whole = RunFolder(two_processes / "layouts" / "one")
    folder = RunFolder(two_processes / "background" / begun)
    names = [f"checkpoint-{step}" for step in (2, 4, 6, 8)]
    assert [path.name for path in folder.complete_checkpoints()] == names
    for checkpoint in folder.complete_checkpoints():
        parts = list((checkpoint / "sharded").glob("*.distcp"))
        assert len(parts) == (2 if begun == "fsdp" else 0)
    run = layout_run(two_processes)
    ways = [RunFolder(two_processes / "background" / f"{begun}-{way}") for way in ("ddp", "fsdp")]
    one = train(run, rewound(folder.path, tmp_path / f"{begun}-one").path, resume=True)
    for resumed in (folder, *ways, one):
        assert_alike(resumed, whole, sharded="fsdp" in resumed.path.name)
