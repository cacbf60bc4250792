"""Checkpoints that are runs of several seeds form arms; others do not."""

import logging

import pytest
from recorded import record

from layermem.analysis.checkpoints import Checkpoint
from layermem.experiments.eval import arms_of
from layermem.runs import RunFolder
from layermem.train.run_config import recorded_run


@pytest.fixture
def checkpoint(tmp_path):
    def make(name, **changes):
        folder = RunFolder(record(tmp_path / name, **changes))
        run = recorded_run(folder)
        return Checkpoint(name=name, location=folder.final, tokenizer=None, run=run, folder=folder)

    return make


def test_runs_that_differ_in_the_seed_are_an_arm_by_seed(checkpoint):
    opened = [
        checkpoint("b1", variant="lime", seed=1),
        checkpoint("a1", variant="plain", seed=1),
        checkpoint("a0", variant="plain", seed=0),
        checkpoint("b0", variant="lime", seed=0),
    ]
    assert arms_of(opened) == {"lime": ("b0", "b1"), "plain": ("a0", "a1")}


def test_other_seeds_make_no_arms_and_that_is_said(checkpoint, caplog):
    opened = [
        checkpoint("a0", variant="plain", seed=0),
        checkpoint("a1", variant="plain", seed=1),
        checkpoint("b2", variant="lime", seed=2),
        checkpoint("b1", variant="lime", seed=1),
    ]
    with caplog.at_level(logging.WARNING):
        assert arms_of(opened) == {}
    assert "plain 0, 1; lime 1, 2" in caplog.text


def test_two_runs_of_one_arm_and_seed_are_compared_without_means(checkpoint, caplog):
    opened = [checkpoint("a0"), checkpoint("b0", log_every=3)]
    with caplog.at_level(logging.WARNING):
        assert arms_of(opened) == {}
    assert "are both seed 0 of lime" in caplog.text


def test_what_is_no_run_or_of_other_data_makes_no_arms(checkpoint):
    first = checkpoint("a0", variant="plain", seed=0)
    loose = Checkpoint(name="x", location="x", tokenizer=None, run=None)
    assert arms_of([first, loose]) == {}
    assert arms_of([first, checkpoint("t0", variant="lime", seed=0, right=0.5)]) == {}
