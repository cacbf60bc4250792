"""Costs of presets: whole runs in closed form."""

import pytest

from layermem.models.registry import lookup
from layermem_bench import presets
from layermem_bench.efficiency.costs import cost
from layermem_bench.efficiency.model_sizes import model_sizes
from layermem_bench.efficiency.run_costs import run_cost


@pytest.fixture(scope="module")
def costs():
    """What each preset costs."""
    return {name: run_cost(presets.get_preset(name)) for name in presets.names()}


def test_costs_are_those_of_the_whole_run(costs):
    tiny = costs["tiny-lm"]
    assert tiny.tokens == 400 * 16 * 128
    # Sequences of a task differ in length: their mean is no whole number of tokens.
    expressions = costs["tiny-aet-4"]
    assert expressions.tokens == round(expressions.sequences * expressions.mean_tokens)
    assert expressions.tokens == pytest.approx(5_425_992, rel=2e-3)
    assert tiny.flops == pytest.approx(tiny.tokens * tiny.flops_per_token)
    large = costs["paper-1b-gqa"]
    assert large.sequences == 20_000 * 1024


def test_costs_without_a_config_class_are_those_of_the_plain_variant(costs):
    plain = lookup("plain")
    for each in costs.values():
        fields, length = model_sizes(each.run)
        step = cost(plain.config(**fields), plain.variant, round(length))
        assert each.parameters == step.parameters
        assert each.flops_per_token == step.training / round(length)
