"""Each arm takes the best of what it tries; what is equal under a condition."""

import math
from dataclasses import replace

import pytest
from launchers import MadeUp
from recorded import SIZES

from layermem.models.registry import list_variants
from layermem_bench.config.run import HOST, Data, Host, Labels, Model, Run
from layermem_bench.costs.model_sizes import unknown_size
from layermem_bench.presets import get_preset
from layermem_bench.run.folder import load_run
from layermem_bench.studies.boards import board_of, study_of_variants
from layermem_bench.studies.carrying_out import carry_out
from layermem_bench.studies.planning import (
    at_equal_parameters,
    at_equal_time,
    parameters,
    plain_parameters,
    tried_rates,
)

RUN = Run(preset="made-up", max_steps=40, model=SIZES)


def loss(run):
    """Plain is best at 0.01, LIMe at 0.001; its routers at 0.01."""
    best = 2 if run.variant == "plain" else 3
    return (
        1 + abs(math.log10(run.optim.lr) + best) + abs(math.log10(run.optim.router_lr or 1e-2) + 2)
    )


def study(variants, rates, seeds=(0, 1)):
    return study_of_variants([board_of(RUN, variants, rates)], seeds, ("tokens",))


def test_each_arm_takes_its_best_rate(tmp_path):
    made_up = MadeUp(loss, lambda run: "diverges" if run.optim.lr == 1.0 else "ends")
    asked = study("plain,lime", (0.001, 0.01, 1.0), seeds=(3,))
    result, failure = carry_out(asked, tmp_path, launcher=made_up)
    tried = {each.arm: each for each in result.boards[0].tried}
    assert failure is None and [each.chosen for each in tried.values()] == [0.01, 0.001]
    assert tried["plain"].losses == (pytest.approx(2), pytest.approx(1), None)
    assert made_up.begun[6:] == ["made-up/plain-lr0.01-s3", "made-up/lime-lr0.001-s3"]
    for name, expected, conditions in (
        ("plain-lr0.01-s3", (0.01, 3), ("tokens",)),
        ("rates/plain-lr0.01-s1000", (0.01, 1000), ()),
    ):
        run = load_run(tmp_path / "made-up" / name / "config.yaml")
        assert (run.optim.lr, run.seed) == expected
        assert run.labels == Labels(board="made-up", conditions=conditions, arm="plain")
    # What chose a rate is in no mean; what diverged would do so again, and is not run again.
    assert {run.name for run in result.runs if not run.conditions} == {*made_up.begun[:6]}
    made_up.begun.clear()
    again, _ = carry_out(asked, tmp_path, launcher=made_up)
    assert again == result and not made_up.begun


def test_the_best_finite_loss_is_chosen():
    tries = (0.01, 0.1, 1.0, 2.0)
    told = tried_rates("plain", tries, [2.0, 1.5, math.inf, math.nan])
    assert (told.chosen, told.losses) == (0.1, (2.0, 1.5, None, None))
    assert tried_rates("plain", tries[:2], [math.inf, math.nan]).chosen is None


def test_a_run_that_failed_decides_no_choice_and_is_tried_again(tmp_path):
    bad = "made-up/rates/plain-lr0.01-s1000"
    made_up = MadeUp(loss, lambda run: "ends")
    made_up.does = lambda run: "" if (run.variant, run.optim.lr) == ("plain", 0.01) else "ends"
    asked = study("plain,lime", (0.001, 0.01))
    # By what is left plain would take 0.001, which is worse.
    with pytest.raises(RuntimeError, match=bad):
        carry_out(asked, tmp_path, launcher=made_up)
    assert len(made_up.begun) == 4
    made_up.begun.clear()
    made_up.does = lambda run: "ends"
    result, _ = carry_out(asked, tmp_path, launcher=made_up)
    assert made_up.begun[0] == bad and result.boards[0].tried[0].chosen == 0.01
    assert len(made_up.begun) == 1 + 4


@pytest.mark.parametrize(
    ("ratio", "steps"),
    [(0.5, 800), (0.995, 400), (1.0, 400), (1.009, 400), (1.02, 392), (1.25, 320), (900, 1)],
)
def test_slower_steps_are_fewer(ratio, steps):
    """Beyond what two timings of the same steps differ by."""
    assert at_equal_time(replace(RUN, max_steps=400), ratio).max_steps == steps


@pytest.mark.parametrize("variant", [name for name in list_variants() if name != "plain"])
def test_every_variant_can_have_the_plain_decoders_parameters(variant):
    base = get_preset("tiny-aet-4")
    base = replace(base, model=replace(base.model, vocab_size=100))
    run = at_equal_parameters(replace(base, variant=variant), base)
    plain = plain_parameters(base)
    assert parameters(run) == pytest.approx(plain, rel=0.005)
    # Nothing but the mlp is changed, and it only where there is more than the tolerance.
    same = replace(run, model=replace(run.model, intermediate_size=base.model.intermediate_size))
    assert same == replace(base, variant=variant)
    assert (run.model == base.model) == (abs(parameters(same) / plain - 1) <= 0.005)


def test_what_cannot_be_made_equal_is_refused_before_any_training(tmp_path):
    tiny = replace(RUN, model=replace(SIZES, hidden_size=4, intermediate_size=1))
    asked = study_of_variants([board_of(tiny, "plain,hyper_connections")], (0,), ("parameters",))
    with pytest.raises(ValueError, match="hyper_connections"):
        carry_out(asked, tmp_path, launcher=(made_up := MadeUp()))
    # Of a model that has its sizes there are no others; of one that is not here none are known.
    host = replace(RUN, variant=HOST, host=Host(model="some/model", train="all"), model=Model())
    with pytest.raises(ValueError, match="some/model"):
        at_equal_parameters(host, host)
    run = replace(RUN, data=Data(tokenizer="org/small"), model=replace(SIZES, vocab_size=None))
    asked = study_of_variants([board_of(run, "plain,lime")], (0,), ("parameters",))
    assert unknown_size(run) == "org/small"
    with pytest.raises(ValueError, match="org/small"):
        carry_out(asked, tmp_path, launcher=made_up)
    assert not made_up.begun
