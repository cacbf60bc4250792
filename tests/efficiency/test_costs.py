"""Tests of closed-form costs against the paper's table and against torch's FLOP counter."""

import pytest
import torch
from tiny import TINY
from torch.utils.flop_counter import FlopCounterMode

import layermem
from layermem.models.registry import list_variants, lookup
from layermem_bench import presets
from layermem_bench.efficiency.costs import cost


def cost_of(name, fields, tokens, counting="honest"):
    """Return the cost of a variant with these fields of its config."""
    entry = lookup(name)
    return cost(entry.config(**fields), entry.variant, tokens, counting)


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
    sizes = presets.get_preset(preset).model.sizes()
    plain, lime = (cost_of(name, sizes, 2048, counting) for name in ("plain", "lime"))
    assert [f"{share:+.2%}" for share in lime.overhead(plain)] == [parameters, flops]
    assert lime.training == 3 * lime.forward


def test_the_papers_absolute_figures():
    """Billions of parameters to five digits; teraFLOPs to what norms and rope may add."""
    for preset, parameters, flops in (
        ("paper-1b-gqa", 1.07607, 2.7615),
        ("paper-1b-full", 1.17674, 2.9679),
    ):
        sizes = presets.get_preset(preset).model.sizes()
        costs = cost_of("plain", sizes, 2048, "paper")
        assert costs.parameters / 1e9 == pytest.approx(parameters, abs=1e-5)
        assert costs.forward / 1e12 == pytest.approx(flops, rel=5e-3)


@pytest.mark.parametrize("name", list_variants())
def test_the_closed_form_equals_torchs_flop_counter(name):
    """The counter counts attention to all keys, from which the causal half is subtracted here."""
    tokens = 12
    model = layermem.build(name, **TINY, attn_implementation="eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.ones(1, tokens, dtype=torch.long), use_cache=False)
    heads, width = TINY["num_attention_heads"], TINY["hidden_size"] // TINY["num_attention_heads"]
    attention = TINY["num_hidden_layers"] * heads * 4 * width * tokens**2
    honest = counter.get_total_flops() - attention * (tokens - 1) / (2 * tokens)
    counted = cost_of(name, TINY, tokens)
    assert counted.forward == pytest.approx(honest)
    assert counted.parameters == model.num_parameters()


def test_the_overhead_of_routers_grows_with_depth():
    def share(depth):
        fields = {**TINY, "num_hidden_layers": depth}
        return cost_of("lime", fields, 64).overhead(cost_of("plain", fields, 64))[1]

    assert share(64) > 6 * share(8) > 0


def test_an_unknown_counting_and_zero_tokens_are_refused():
    with pytest.raises(ValueError, match="counting must be one of honest, paper, got 'Honest'"):
        cost_of("plain", TINY, 8, "Honest")
    with pytest.raises(ValueError, match="tokens must be at least 1, got 0"):
        cost_of("plain", TINY, 0)
