"""A run with a stable phase goes on to more steps as if it had them from the start."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from small_run import Interrupted, a_run, assert_same_end, curve

from layermem_bench import cli
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.train import extending
from layermem_bench.train.run import train

# Warmed up over two steps; rates fall after the fifth.
STABLE = {"schedule": "warmup_stable_decay", "decay_steps": 3, "warmup_steps": 2}


@pytest.fixture(scope="session")
def short(place):
    """Eight steps, of which no checkpoint is asked for."""
    return a_run(place, optim=STABLE, save_every=0)


@pytest.fixture(scope="session")
def longer(short, place):
    """The folder of twelve steps from the start."""
    return train(replace(short, max_steps=12), place / "stable-longer")


@pytest.fixture(scope="session")
def ended(short, place):
    return train(short, place / "stable-ended")


@pytest.fixture
def copied(ended, tmp_path):
    return RunFolder(shutil.copytree(ended.path, tmp_path / "copy"))


def test_rates_rise_stay_and_fall(ended):
    rates = [row["lr"] for row in ended.rows() if "loss" in row]
    shares = [1 / 3, 2 / 3, 1, 1, 1, 2 / 3, 1 / 3, 1e-4]
    assert rates == pytest.approx([1e-2 * share for share in shares], rel=1e-3)


def test_an_ended_run_goes_on_as_if_it_had_more_steps_from_the_start(short, longer, ended, copied):
    assert [path.name for path in copied.complete_checkpoints()] == ["checkpoint-5"]
    cli.main(["train", str(copied.path), "--resume", "--max-steps", "12"])
    assert_same_end(copied, longer)
    about = yaml.safe_load(copied.config.read_text())["about"]
    assert about["run_id"] == replace(short, max_steps=12).id
    # The model of eight steps is not lost.
    weights = (copied.path / "final-8" / "model.safetensors").read_bytes()
    assert weights == (ended.final / "model.safetensors").read_bytes()


def test_what_the_shorter_run_recorded_stays_with_its_model(short, ended, copied):
    train(replace(short, max_steps=10), copied.path, resume=True)
    assert (copied.path / "final-8" / "metrics.jsonl").read_bytes() == ended.metrics.read_bytes()


def test_a_run_is_left_as_it_was_where_its_text_is_another_now(tmp_path):
    run = a_run(tmp_path, optim=STABLE, save_every=0)
    folder = train(run, tmp_path / "run")
    before = {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()}
    with Path(run.data.source).open("a", encoding="utf-8") as text:
        text.write('{"text": "one more"}\n')
    with pytest.raises(ValueError, match=r"go on to max_steps=12: its data are others now"):
        train(replace(run, max_steps=12), folder.path, resume=True)
    assert {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()} == before


def test_a_kill_while_a_run_is_taken_back_changes_nothing(short, longer, copied, monkeypatch):
    def torn(*_):
        raise Interrupted

    run = replace(short, max_steps=12)
    with monkeypatch.context() as patch:
        patch.setattr(extending.os, "replace", torn)
        with pytest.raises(Interrupted):
            train(run, copied.path, resume=True)
    assert_same_end(train(run, copied.path, resume=True), longer)


def test_the_newest_checkpoint_before_the_decay_is_the_one(short, longer, place, tmp_path):
    """With checkpoints at other steps and of the decay itself, and extended twice."""
    run = replace(short, save_every=2, keep=1)
    folder = train(run, tmp_path / "run")
    names = [path.name for path in folder.complete_checkpoints()]
    assert names == ["checkpoint-5", "checkpoint-8"]
    train(replace(run, max_steps=10), folder.path, resume=True)
    assert_same_end(train(replace(run, max_steps=12), folder.path, resume=True), longer)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_steps": 6}, "max_steps was 8, is 6"),
        ({"max_steps": 12, "seed": 1}, "seed was 0, is 1; max_steps was 8, is 12"),
    ],
    ids=["fewer steps", "another seed too"],
)
def test_other_changes_are_refused(changes, message, short, copied):
    before = curve(copied)
    with pytest.raises(ValueError, match=message):
        train(replace(short, **changes), copied.path, resume=True)
    assert curve(copied) == before and copied.final.exists()


def test_a_run_without_a_stable_phase_is_not_extended(run, whole):
    with pytest.raises(ValueError, match="max_steps was 8, is 12"):
        train(replace(run, max_steps=12), whole.path, resume=True)


def test_a_run_that_kept_nothing_from_before_the_decay_is_refused(short, copied):
    copied.delete_checkpoint(5)
    message = r"begun with 8, its learning rates fall after step 5, and no .* \(there are none\)"
    with pytest.raises(ValueError, match=message):
        train(replace(short, max_steps=12), copied.path, resume=True)
    assert copied.final.exists()


def test_what_has_no_room_or_no_effect_is_refused(place):
    with pytest.raises(ValueError, match="max_steps=8 has no room for optim.warmup_steps=6 and 3"):
        a_run(place, optim=STABLE | {"warmup_steps": 6})
    with pytest.raises(ValueError, match="optim.decay_steps=3 has no effect with .*=cosine"):
        a_run(place, optim={"decay_steps": 3})
