"""Costs of presets: whole runs in closed form, measurements shared and extrapolated."""

import pytest

from layermem.models.registry import lookup
from layermem_bench import cli, presets
from layermem_bench.efficiency import measuring
from layermem_bench.efficiency.costs import cost
from layermem_bench.efficiency.measuring import Measurement
from layermem_bench.efficiency.model_sizes import model_sizes
from layermem_bench.efficiency.run_costs import measure_runs, run_cost


@pytest.fixture(scope="module")
def costs():
    """What each preset costs."""
    return {name: run_cost(presets.get_preset(name)) for name in presets.names()}


@pytest.fixture
def measured(monkeypatch):
    """Have nothing trained: a step takes a second for each 10 sequences, LIMe's twice that."""
    steps = []

    def measure(models, shape, repeats):
        steps.append((shape, models["plain"][1]))
        seconds = {"plain": shape.batch / 10, "lime": shape.batch / 5}
        return {
            name: Measurement(seconds=seconds[name], low=0.0, high=9.0, peak=2_000_000)
            for name in models
        }

    monkeypatch.setattr(measuring, "measure", measure)
    monkeypatch.setattr(measuring.torch.cuda, "is_available", lambda: False)
    return steps


def test_costs_are_those_of_the_whole_run(costs):
    tiny = costs["tiny-lm"]
    assert tiny.tokens == 400 * 16 * 128
    # Sequences of a task differ in length: their mean is no whole number of tokens.
    expressions = costs["tiny-aet-4"]
    assert expressions.tokens == round(expressions.sequences * expressions.mean_tokens)
    assert expressions.tokens == pytest.approx(5_425_992, rel=2e-3)
    assert tiny.flops == pytest.approx(tiny.tokens * tiny.flops_per_token)
    large = costs["paper-1b-gqa"]
    assert (large.micro_batch, large.sequences) == (large.run.compute.micro_batch, 20_000 * 1024)
    assert large.micro_batch < large.run.optim.batch_size


def test_costs_without_a_config_class_are_those_of_the_plain_variant(costs):
    plain = lookup("plain")
    for each in costs.values():
        fields, length = model_sizes(each.run)
        step = cost(plain.config(**fields), plain.variant, round(length))
        assert each.parameters == step.parameters
        assert each.flops_per_token == step.training / round(length)


def test_equal_steps_are_measured_once_and_what_is_too_large_is_not(costs, measured):
    found = dict(zip(costs, measure_runs([*costs.values()]), strict=True))
    assert {costs[name].micro_batch for name in ("tiny-lm", "tiny-aet-4")} == {16, 64}
    assert found["tiny-lm"]["plain"].seconds == 16 / 10
    assert found["tiny-lm"]["lime"].seconds == 16 / 5
    assert found["tiny-aet-4"]["plain"].seconds == 64 / 10
    assert found["paper-1b-gqa"] is None and found["small-30m"] is None
    # They differ in the number of steps alone.
    assert found["paper-aet-6"] is found["small-aet-6"]
    different = {(shape.batch, shape.tokens, *sorted(fields.items())) for shape, fields in measured}
    assert len(measured) == len(different) < len(costs)
    assert {shape.precision for shape, _ in measured} == {"float32"}
    assert {shape.batch for shape, _ in measured} > {16, 64}


def test_the_command_prints_both_tables(measured, capsys):
    cli.main(["list", "presets", "--measure"])
    printed = capsys.readouterr().out
    assert "too large for this machine" in printed and "2MB" in printed
    assert "11 min" in printed and "21 min" in printed
    assert "1 thread" in printed
    cli.main(["list", "presets"])
    assert "too large" not in capsys.readouterr().out
