"""Closed forms: FLOPs as torch counts them, the paper's tables, whole runs, plans of clusters."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import TINY
from torch.utils.flop_counter import FlopCounterMode

import layermem
from layermem.models.registry import list_variants, lookup
from layermem_bench import cli, presets
from layermem_bench.config.devices import get_device
from layermem_bench.config.run import Compute, Data, Optim, Run
from layermem_bench.costs.closed_forms import cost
from layermem_bench.costs.plan import RATIOS, plan
from layermem_bench.studies.costs import plan_arms

ROOT = Path(__file__).parents[2]
H100 = get_device("h100")


def cost_of(name, fields, tokens, counting="honest"):
    """Return the cost of a variant with these fields of its config."""
    entry = lookup(name)
    return cost(entry.config(**fields), entry.variant, tokens, counting)


@pytest.mark.parametrize(
    ("preset", "paper", "honest", "parameters", "flops"),
    [
        # Table 8.
        ("paper-1b-gqa", ["+0.00%", "+0.08%"], ["+0.00%", "+0.10%"], 1.07607, 2.7615),
        ("paper-1b-full", ["+0.01%", "+1.22%"], ["+0.01%", "+1.42%"], 1.17674, 2.9679),
    ],
)
def test_the_papers_table(preset, paper, honest, parameters, flops):
    """Billions of parameters to five digits; teraFLOPs to what norms and rope may add."""
    sizes = presets.get_preset(preset).model.sizes()
    for counting, expected in (("honest", honest), ("paper", paper)):
        plain, lime = (cost_of(name, sizes, 2048, counting) for name in ("plain", "lime"))
        assert [f"{share:+.2%}" for share in lime.overhead(plain)] == expected
        assert lime.training == 3 * lime.forward
    assert plain.parameters / 1e9 == pytest.approx(parameters, abs=1e-5)
    assert plain.forward / 1e12 == pytest.approx(flops, rel=5e-3)


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


SMALL = Run(
    model=replace(presets.get_preset("tiny-lm").model, vocab_size=300, num_key_value_heads=4),
    data=Data(tokenizer="bytes", block_size=64),
    optim=Optim(batch_size=16),
    compute=Compute(micro_batch=4, precision="float32", loss_chunk=0),
)


@pytest.mark.parametrize("variant", ["plain", "lime"])
def test_a_plan_counts_what_autograd_keeps(variant):
    """Unchunked logits are kept once as log-probabilities; their gradients come later."""
    model = layermem.build(variant, **SMALL.model.sizes())
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and tensor.is_floating_point():
            kept[storage.data_ptr()] = storage
        return tensor

    ids = torch.randint(300, (4, 64))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    memory = plan(replace(SMALL, variant=variant), {}, H100, 1, 0.4).memory
    counted = memory["activations"] + memory["slots"] + memory["logits and loss"] / 3
    assert sum(s.nbytes() for s in kept.values()) == pytest.approx(counted, rel=0.1)
    assert loss.requires_grad


def test_every_arm_is_planned_and_options_change_what_they_say():
    arms = "plain,value_residual,mudd,recipe+mudd,hyper_connections"
    plans = plan_arms("paper-150m", arms, H100, 16, 0.4, {})
    assert list(plans) == arms.split(",")
    plain = plans["plain"]
    assert all(p.memory["slots"] > 0 for arm, p in plans.items() if arm != "plain")
    assert plain.memory["weights"] == 4 * plain.parameters and plain.fits
    assert plain.seconds == pytest.approx(20_000 * max(plain.arithmetic, plain.network))

    def changed(**changes):
        return plan_arms("paper-150m", "plain", H100, 16, 0.4, changes)["plain"]

    sharded, again = changed(shard=True), changed(checkpoint_activations=True)
    assert sharded.memory["optimiser"] == plain.memory["optimiser"] / 16
    assert sharded.network > plain.network and sharded.arithmetic == plain.arithmetic
    assert again.memory["activations"] < plain.memory["activations"]
    assert again.arithmetic == pytest.approx(4 / 3 * plain.arithmetic)
    assert changed(micro_batch=8).micro_batches == 8
    assert plan_arms("paper-1b-full", "plain", get_device("rtx4090"), 8, 0.4, {})["plain"].fits is (
        False
    )


def test_the_measured_ratio_is_the_recorded_one():
    record = json.loads((ROOT / "benchmarks/results/nvidia-h200_one_group.json").read_text())
    ratios = record["sections"]["compiled"]["rows"]["150M"]["ratios"]
    measured = ratios["lime deferred"] / ratios["plain"]
    assert {("lime", 12, 768): round(measured, 2)} == RATIOS
    plans = plan_arms("paper-150m", "plain,lime", H100, 64, 0.4, {})
    assert plans["lime"].arithmetic == pytest.approx(1.25 * plans["plain"].arithmetic)


def test_the_page_has_the_tables_of_its_command(capsys):
    spec = importlib.util.spec_from_file_location("scale", ROOT / "docs" / "scale_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    for table in (module.paper_table(), module.plans_table()):
        assert f"\n{table}\n" in page, "run python docs/scale_tables.py"
    cli.main(["costs", "paper-1b-gqa", "--gpus", "1", "--device", "rtx4090"])
    assert "does not fit" in capsys.readouterr().out
