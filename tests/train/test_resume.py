"""Going on: under other processes, between two logs, after an edit, from what is damaged."""

import json
import logging
import shutil
from dataclasses import replace

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from small_run import a_run, assert_alike, curve, rewound

from layermem_bench.results.run_folder import RunFolder
from layermem_bench.train.run import train
from layermem_bench.train.run_config import load_run, recorded_run
from layermem_bench.train.trainer import Trainer


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


def test_the_rate_in_a_row_is_the_one_the_optimizer_used(run, whole, tmp_path, monkeypatch):
    created = Trainer.create_optimizer

    def halving(self, *args):
        optimizer = created(self, *args)
        # What a formula over steps would never say.
        optimizer.register_step_pre_hook(halve)
        return optimizer

    def halve(optimizer, *_):
        (group,) = (g for g in optimizer.param_groups if g["name"] == "decayed")
        group["lr"] *= 0.5
        used.append(group["lr"])

    used = []
    monkeypatch.setattr(Trainer, "create_optimizer", halving)
    rows = [row for row in train(run, tmp_path / "halved").rows() if "loss" in row]
    assert [row["lr"] for row in rows] == used
    usual = [row["lr"] for row in whole.rows() if "loss" in row]
    assert [row["lr"] * 2 for row in rows] == pytest.approx(usual)


def drop_a_weight(checkpoint):
    path = checkpoint / "model.safetensors"
    weights = load_file(path)
    del weights["model.norm.weight"]
    save_file(weights, path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c: (c / "optimizer.pt").unlink(), "holds no optimizer state"),
        (
            lambda c: torch.save({"last_epoch": 0, "base_lrs": []}, c / "scheduler.pt"),
            "is of step 4, its schedule of step 0",
        ),
        (drop_a_weight, r"missing are \['model.norm.weight'\]"),
    ],
    ids=["no optimizer", "another schedule", "a weight less"],
)
def test_a_checkpoint_that_lost_its_optimizer_or_schedule(
    damage, message, run, whole, tmp_path, monkeypatch
):
    folder = rewound(whole.path, tmp_path / "damaged")
    damage(folder.latest_checkpoint())
    monkeypatch.setattr("layermem_bench.results.run_folder.check_complete", lambda checkpoint: None)
    with pytest.raises(ValueError, match=message):
        train(run, folder.path, resume=True)


def test_the_first_row_after_a_kill_has_all_of_its_steps(place, tmp_path):
    """Rows are of three steps each, checkpoints of two."""
    run = a_run(place, keep=9, log_every=3)
    whole = train(run, tmp_path / "whole")
    for step in (2, 4, 6):
        killed = rewound(whole.path, tmp_path / f"killed-{step}", step)
        assert curve(train(run, killed.path, resume=True)) == curve(whole), step


def test_going_on_says_nothing_of_a_best_checkpoint_in_staging(run, whole, tmp_path, caplog):
    folder = rewound(whole.path, tmp_path / "killed")
    with caplog.at_level(logging.WARNING):
        train(run, folder.path, resume=True)
    assert "best checkpoint" not in caplog.text
    state = json.loads((folder.latest_checkpoint() / "trainer_state.json").read_text())
    assert state["best_global_step"] == 8 and state["best_model_checkpoint"] is None


@pytest.mark.parametrize("ended", [False, True], ids=["going on", "ended"])
def test_an_edited_config_is_refused(ended, run, whole, tmp_path):
    folder = RunFolder(shutil.copytree(whole.path, tmp_path / "ended"))
    if not ended:
        folder = rewound(folder.path, tmp_path / "killed")
    text = folder.config.read_text()
    folder.config.write_text(text.replace("lr: 0.01", "lr: 0.02"))
    edited = load_run(folder.config)
    assert edited == replace(run, optim=replace(run.optim, lr=0.02))
    for asked in (edited, run):
        with pytest.raises(ValueError, match="config.yaml was edited after the run wrote it"):
            train(asked, folder.path, resume=True)
    folder.config.write_text(text)
    assert recorded_run(folder) == run
    train(run, folder.path, resume=True)
    # A config written by hand has no digest.
    values = yaml.safe_load(text)
    del values["about"]["digest"], values["compute"]["shard"]
    folder.config.write_text(yaml.safe_dump(values))
    assert recorded_run(folder) == run


def test_an_edited_config_trains_elsewhere(whole, tmp_path):
    folder = RunFolder(shutil.copytree(whole.path, tmp_path / "first"))
    folder.config.write_text(folder.config.read_text().replace("max_steps: 8", "max_steps: 2"))
    run = load_run(folder.config)
    again = train(run, tmp_path / "second")
    assert recorded_run(again) == run
    about = yaml.safe_load(again.config.read_text())["about"]
    assert about["run_id"] == run.id


def test_other_micro_batches_round_otherwise_and_change_nothing_else(run, whole, tmp_path):
    other = replace(run, compute=replace(run.compute, micro_batch=8))
    folder = train(other, rewound(whole.path, tmp_path / "other").path, resume=True)
    assert_alike(folder, whole, sharded=False)


def test_dropout_goes_on_only_as_it_was_begun(place, tmp_path):
    run = a_run(place, keep=9, model={"options": ("attention_dropout=0.1",)})
    whole = train(run, tmp_path / "whole")
    again = train(run, rewound(whole.path, tmp_path / "same").path, resume=True)
    assert curve(again) == curve(whole)
    other = replace(run, compute=replace(run.compute, micro_batch=8))
    with pytest.raises(ValueError, match="by 1 processes .* 4 sequences, .* 1 with 8: attention"):
        train(other, rewound(whole.path, tmp_path / "other").path, resume=True)


def test_a_save_longer_than_torchrun_waits_is_said(place, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setattr("layermem_bench.train.stopping._SHUTDOWN_SECONDS", 0.0)
    with caplog.at_level(logging.WARNING):
        train(a_run(place, max_steps=2), tmp_path / "slow")
    assert "torchrun kills its processes 0 seconds after SIGTERM" in caplog.text
