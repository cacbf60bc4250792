"""Runs of the same seeds form arms; others do not."""

import logging

import pytest
from recorded import record

from layermem_bench.results.run_folder import RunFolder
from layermem_bench.study.run_folders import arms_of_same_seeds
from layermem_bench.train.run_config import recorded_run


def arms_of(opened):
    return arms_of_same_seeds(dict(opened))


@pytest.fixture
def run_of(tmp_path):
    def make(name, **changes):
        folder = RunFolder(record(tmp_path / name, **changes))
        return name, (recorded_run(folder), folder)

    return make


def test_runs_that_differ_in_the_seed_are_an_arm_by_seed(run_of):
    opened = [
        run_of("b1", variant="lime", seed=1),
        run_of("a1", variant="plain", seed=1),
        run_of("a0", variant="plain", seed=0),
        run_of("b0", variant="lime", seed=0),
    ]
    assert arms_of(opened) == {"lime": ("b0", "b1"), "plain": ("a0", "a1")}


def test_other_seeds_make_no_arms_and_that_is_said(run_of, caplog):
    opened = [
        run_of("a0", variant="plain", seed=0),
        run_of("a1", variant="plain", seed=1),
        run_of("b2", variant="lime", seed=2),
        run_of("b1", variant="lime", seed=1),
    ]
    with caplog.at_level(logging.WARNING):
        assert arms_of(opened) == {}
    assert "plain 0, 1; lime 1, 2" in caplog.text


def test_two_runs_of_one_arm_and_seed_are_compared_without_means(run_of, caplog):
    opened = [run_of("a0"), run_of("b0", log_every=3)]
    with caplog.at_level(logging.WARNING):
        assert arms_of(opened) == {}
    assert "are both seed 0 of lime" in caplog.text


def test_one_run_or_runs_on_other_data_make_no_arms(run_of):
    first = run_of("a0", variant="plain", seed=0)
    assert arms_of([first]) == {}
    assert arms_of([first, run_of("t0", variant="lime", seed=0, right=0.5)]) == {}
