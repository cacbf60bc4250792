"""Tests of closed-form costs against the paper's table and against torch's FLOP counter."""

import pytest
import torch
from tiny import TINY
from torch.utils.flop_counter import FlopCounterMode

import layermem
from layermem import presets
from layermem.efficiency.costs import count_costs
from layermem.models.registry import variants


@pytest.mark.parametrize(
    ("preset", "counting", "parameters", "flops"),
    [
        # Table 8.
        ("paper-1b-gqa", "paper", "+0.00%", "+0.08%"),
        ("paper-1b-full", "paper", "+0.01%", "+1.22%"),
        ("paper-1b-gqa", "honest", "+0.00%", "+0.10%"),
        ("paper-1b-full", "honest", "+0.01%", "+1.42%"),
    ],
)
def test_the_papers_table(preset, counting, parameters, flops):
    costs = count_costs(["plain", "lime"], presets.get_preset(preset).model.sizes(), 2048, counting)
    overheads = costs["lime"].overhead(costs["plain"])
    assert [f"{share:+.2%}" for share in overheads] == [parameters, flops]
    assert costs["lime"].training == 3 * costs["lime"].forward


def test_the_papers_absolute_figures():
    """Billions of parameters to five digits; teraFLOPs to what norms and rope may add."""
    for preset, parameters, flops in (
        ("paper-1b-gqa", 1.07607, 2.7615),
        ("paper-1b-full", 1.17674, 2.9679),
    ):
        sizes = presets.get_preset(preset).model.sizes()
        costs = count_costs(["plain"], sizes, 2048, "paper")["plain"]
        assert costs.parameters / 1e9 == pytest.approx(parameters, abs=1e-5)
        assert costs.forward / 1e12 == pytest.approx(flops, rel=5e-3)


@pytest.mark.parametrize("name", variants())
def test_the_closed_form_equals_torchs_flop_counter(name):
    """The counter counts attention to all keys, from which the causal half is subtracted here."""
    tokens = 12
    model = layermem.build(name, **TINY, attn_implementation="eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.ones(1, tokens, dtype=torch.long), use_cache=False)
    heads, width = TINY["num_attention_heads"], TINY["hidden_size"] // TINY["num_attention_heads"]
    attention = TINY["num_hidden_layers"] * heads * 4 * width * tokens**2
    honest = counter.get_total_flops() - attention * (tokens - 1) / (2 * tokens)
    assert count_costs([name], TINY, tokens)[name].forward == pytest.approx(honest)
    assert count_costs([name], TINY, tokens)[name].parameters == model.num_parameters()


def test_the_overhead_of_routers_grows_with_depth():
    def share(depth):
        costs = count_costs(["plain", "lime"], {**TINY, "num_hidden_layers": depth}, 64)
        return costs["lime"].overhead(costs["plain"])[1]

    assert share(64) > 6 * share(8) > 0


def test_an_unknown_counting_is_refused():
    with pytest.raises(ValueError, match="counting must be one of honest, paper, got 'Honest'"):
        count_costs(["plain"], TINY, 8, "Honest")


def test_zero_tokens_are_refused():
    with pytest.raises(ValueError, match="tokens must be at least 1, got 0"):
        count_costs(["plain"], TINY, 0)
