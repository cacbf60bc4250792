"""Each arm takes the best of the rates and decays that it tries; divergence is a result."""

import math
from dataclasses import replace

import pytest
from launchers import MadeUp
from recorded import SIZES, record

from layermem_bench.config.run import Optim, Run
from layermem_bench.report.study_tables import rates_table
from layermem_bench.results.study import TriedRates
from layermem_bench.study.boards import board_of, study_of_variants
from layermem_bench.study.carrying_out import carry_out
from layermem_bench.study.planning import Tried, choices_of, tried_rates
from layermem_bench.train.run_config import load_run

RUN = Run(preset="made-up", max_steps=40, model=SIZES)


def loss(run):
    """Plain is best at 0.01, LIMe at 0.001."""
    return 1 + abs(math.log10(run.optim.lr) + (2 if run.variant == "plain" else 3))


def study(variants, rates, decays=(), seeds=(0, 1)):
    return study_of_variants([board_of(RUN, variants, rates, decays)], seeds, ("tokens",))


def test_each_arm_takes_its_best_rate(tmp_path):
    made_up = MadeUp(loss, lambda run: "diverges" if run.optim.lr == 1.0 else "ends")
    asked = study("plain,lime:router_init=identity", (0.001, 0.01, 1.0))
    result, failure = carry_out(asked, tmp_path, launcher=made_up)
    rates = (0.001, 0.01, 1.0)
    assert failure is None and result.boards[0].tried == (
        TriedRates(arm="plain", rates=rates, losses=(2.0, 1.0, None), chosen=0.01),
        TriedRates(
            arm="lime:router_init=identity", rates=rates, losses=(1.0, 2.0, None), chosen=0.001
        ),
    )
    assert made_up.begun[:2] == [f"made-up/rates/plain-lr{rate}-s1000" for rate in (0.001, 0.01)]
    assert made_up.begun[6:] == [
        "made-up/plain-lr0.01-s0",
        "made-up/lime-router_init=identity-lr0.001-s0",
        "made-up/plain-lr0.01-s1",
        "made-up/lime-router_init=identity-lr0.001-s1",
    ]
    for name, expected in (
        ("rates/plain-lr0.01-s1000", (0.01, 1000, "plain")),
        ("plain-lr0.01-s1", (0.01, 1, "plain")),
    ):
        run = load_run(tmp_path / "made-up" / name / "config.yaml")
        assert (run.optim.lr, run.seed, run.variant) == expected
    # What chose a rate is in no mean; what diverged would do so again, and is not run again.
    assert {run.name for run in result.runs if not run.conditions} == {*made_up.begun[:6]}
    made_up.begun.clear()
    again, _ = carry_out(asked, tmp_path, launcher=made_up)
    assert again == result and not made_up.begun


def test_each_arm_has_as_many_trials(tmp_path):
    """Plain of rates alone; LIMe of rates and another of its routers with each."""

    def with_own(run):
        return loss(run) + abs(math.log10(run.optim.router_lr or 1e-2) + 2)

    made_up = MadeUp(with_own)
    board = board_of(RUN, "plain,lime", (1e-4, 1e-2), trials=5)
    asked = study_of_variants([board], (0,), ("tokens",))
    result, _ = carry_out(asked, tmp_path, launcher=made_up)
    plain, lime = result.boards[0].tried
    assert plain.rates == lime.rates == (1e-4, 3.2e-4, 1e-3, 3.2e-3, 1e-2)
    # Every fifth of the range once, and neither rising nor falling with the rate.
    assert plain.own_rates == () and lime.own_rates == (0.013, 0.0023, 0.03, 0.0055, 0.001)
    assert (plain.chosen, plain.own_chosen) == (1e-2, None)
    best = min(range(5), key=lambda i: lime.losses[i])
    assert (lime.chosen, lime.own_chosen) == (lime.rates[best], lime.own_rates[best])
    name = f"lime-lr{lime.chosen:g}-own{lime.own_chosen:g}-s0"
    assert made_up.begun[10:] == ["made-up/plain-lr0.01-s0", f"made-up/{name}"]
    run = load_run(tmp_path / "made-up" / name / "config.yaml")
    assert (run.optim.lr, run.optim.router_lr) == (lime.chosen, lime.own_chosen)
    (_, of_lime) = rates_table(result.boards[0]).texts()
    assert of_lime[1].endswith(" (own 0.013)") and of_lime[-1].endswith(f"own {lime.own_chosen:g}")


@pytest.mark.parametrize(
    ("rates", "changes", "message"),
    [
        ((1e-3,), {}, "lowest and the highest of --rates"),
        ((), {}, "lowest and the highest of --rates"),
        ((1e-3, 1e-2), {"decays": (0.0,)}, "leave --decays out"),
        ((1e-3, 1e-2), {"trials": 1}, "trials must be at least 2, got 1"),
        ((1e-3, 1e-2), {"own_rates": (1e-2, 1e-3)}, "got 0.01 0.001"),
        ((1e-3, 1.2e-3), {"trials": 6}, "equal rates after rounding to two digits.*wider --rates"),
        ((1e-3, 1e-2), {"own_rates": (1e-3, 1.1e-3)}, "equal rates.*wider --own-rates"),
    ],
)
def test_trials_that_cannot_be_are_refused(rates, changes, message):
    with pytest.raises(ValueError, match=message):
        board_of(RUN, "plain,lime", rates, **{"trials": 4, **changes})


def test_rates_of_trials_without_trials_are_refused():
    """They would not be tried."""
    with pytest.raises(ValueError, match=r"--own-rates 0.05 0.5 are tried in --trials"):
        board_of(RUN, "plain,lime", own_rates=(0.05, 0.5))


def test_trials_try_the_routers_rate_themselves():
    run = replace(RUN, optim=replace(RUN.optim, router_lr=1e-2))
    with pytest.raises(ValueError, match=r"leave --optim\.router-lr out"):
        board_of(run, "plain,lime", (1e-3, 1e-2), trials=4)


def test_each_arm_takes_its_best_rate_and_decay(tmp_path):
    def with_decay(run):
        return loss(run) + abs(run.optim.weight_decay - (0.1 if run.variant == "lime" else 0.0))

    made_up = MadeUp(with_decay, lambda run: "diverges" if run.optim.lr == 1.0 else "ends")
    asked = study("plain,lime", (0.001, 0.01, 1.0), (0.0, 0.1), seeds=(3,))
    result, _ = carry_out(asked, tmp_path, launcher=made_up)
    tried = {(each.arm, each.decay): each for each in result.boards[0].tried}
    assert {key: each.chosen for key, each in tried.items()} == {
        ("plain", 0.0): 0.01,
        ("plain", 0.1): None,
        ("lime", 0.0): None,
        ("lime", 0.1): 0.001,
    }
    assert tried["plain", 0.1].losses == (pytest.approx(2.1), pytest.approx(1.1), None)
    assert made_up.begun[12:] == ["made-up/plain-lr0.01-wd0-s3", "made-up/lime-lr0.001-wd0.1-s3"]
    run = load_run(tmp_path / "made-up" / "plain-lr0.01-wd0-s3" / "config.yaml")
    assert (run.optim.lr, run.optim.weight_decay, run.seed) == (0.01, 0.0, 3)
    run = load_run(tmp_path / "made-up/rates/lime-lr0.01-wd0.1-s1000/config.yaml")
    assert (run.optim.lr, run.optim.weight_decay, run.seed) == (0.01, 0.1, 1000)


def tries(losses, decay=None):
    return {Tried(rate, decay): loss for rate, loss in losses.items()}


def test_the_best_of_all_pairs_is_taken():
    pairs = {
        **tries({0.01: 2.0, 0.1: 1.5}, 0.0),
        **tries({0.01: 1.25, 0.1: math.inf}, 0.1),
        **tries({0.01: math.inf, 0.1: math.inf}, 0.5),
    }
    told = tried_rates("plain", pairs)
    assert [(each.decay, each.chosen) for each in told] == [(0.0, None), (0.1, 0.01), (0.5, None)]
    assert told[2].losses == (None, None)
    board = board_of(RUN, "plain", (0.01, 0.1), (0.0, 0.1, 0.5))
    assert choices_of(board, told) == ({"plain": Tried(0.01, 0.1)}, frozenset())


def test_a_loss_that_is_not_finite_is_never_the_best():
    for losses, best in (
        ({0.1: math.nan, 0.01: 2.0, 0.001: 3.0}, 0.01),
        ({0.1: 2.0, 0.01: math.nan}, 0.1),
        ({0.1: math.nan, 0.01: math.inf}, None),
    ):
        (told,) = tried_rates("lime", tries(losses))
        assert told.chosen == best
    board = board_of(RUN, "lime", (0.1, 0.01))
    assert choices_of(board, [told]) == ({}, frozenset({"lime"}))


def test_a_single_rate_is_taken_without_a_run_that_chooses_it(tmp_path):
    made_up = MadeUp()
    result, _ = carry_out(study("plain,lime", (0.02,)), tmp_path, launcher=made_up)
    assert made_up.begun == [
        f"made-up/{arm}-lr0.02-s{seed}" for seed in (0, 1) for arm in ("plain", "lime")
    ]
    assert result.boards[0].tried == ()
    run = load_run(tmp_path / "made-up/lime-lr0.02-s1/config.yaml")
    assert run.optim.lr == 0.02


def test_a_run_that_failed_decides_no_choice_and_is_tried_again(tmp_path):
    bad = "made-up/rates/plain-lr0.01-s1000"
    made_up = MadeUp(loss, lambda run: "ends")
    made_up.does = lambda run: "" if (run.variant, run.optim.lr) == ("plain", 0.01) else "ends"
    asked = study("plain,lime", (0.001, 0.01))
    # By what is left plain would take 0.001, which is worse.
    with pytest.raises(RuntimeError, match=f"1 of 4 runs failed: {bad} .*exit code 1"):
        carry_out(asked, tmp_path, launcher=made_up)
    assert len(made_up.begun) == 4 and not (tmp_path / "studies").exists()
    made_up.begun.clear()
    made_up.does = lambda run: "ends"
    result, _ = carry_out(asked, tmp_path, launcher=made_up)
    assert made_up.begun[0] == bad and result.boards[0].tried[0].chosen == 0.01
    assert len(made_up.begun) == 1 + 4


def test_a_record_that_ended_with_nan_has_diverged(tmp_path):
    base = replace(RUN, variant="plain", seed=1000)
    for rate, final in ((1.0, math.nan), (2.0, math.inf)):
        run = replace(base, optim=Optim(lr=rate))
        record(tmp_path / "made-up/rates" / f"plain-lr{rate:g}-s1000", run=run, final=final)
    made_up = MadeUp(loss)
    result, _ = carry_out(study("plain", (1.0, 2.0, 0.01)), tmp_path, launcher=made_up)
    (tried,) = result.boards[0].tried
    assert (tried.losses, tried.chosen) == ((None, None, 1.0), 0.01)
    assert made_up.begun[0] == "made-up/rates/plain-lr0.01-s1000" and len(made_up.begun) == 3
