"""Runs of the same seeds form arms; others do not."""

import logging

import pytest
from recorded import record

from layermem_bench.config.host import VARIANT
from layermem_bench.config.run import Host, Model, Optim
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


def test_pretrained_models_are_named_by_their_ways_and_by_rates_where_one_has_several(run_of):
    def host(name, seed, lr, router_lr=None, **fields):
        optim = Optim(lr=lr, router_lr=router_lr)
        asked = {"variant": VARIANT, "model": Model(), "seed": seed, "optim": optim}
        return run_of(f"{name}{seed}", host=Host(model="tokenizer", **fields), **asked)

    plain = {"memory": "none", "train": "all"}
    opened = [
        each
        for seed in (0, 1)
        for each in (
            host("p", seed, 1e-3, **plain),
            host("l", seed, 2e-3, memory="none", train="lora"),
            host("r", seed, 5e-5, 3e-3),
            host("s", seed, 5e-5, 2e-3, shares_kv=False),
            host("a", seed, 1e-4, 3e-3, train="all"),
            host("b", seed, 1e-4, 3e-3, train="all", shares_kv=False),
            host("w", seed, 1e-4, 3e-3, memory="last", window=2),
        )
    ]
    names = {
        **{"plain": "p", "lora": "l", "routers": "r", "apart": "s", "all": "a"},
        **{"all:shares_kv=False": "b", "routers:memory=last:window=2": "w"},
    }
    assert arms_of(opened) == {arm: (f"{x}0", f"{x}1") for arm, x in names.items()}
    opened += [host("q", seed, 2e-3, **plain) for seed in (0, 1)]
    arms = arms_of(opened)
    assert arms["plain:lr=0.001"] == ("p0", "p1")
    assert arms["plain:lr=0.002"] == ("q0", "q1")
