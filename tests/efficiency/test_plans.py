"""What a run takes on a cluster: FLOPs against torch's counter, traffic, time, mends."""

import re
from dataclasses import replace

import pytest
import torch
from tiny import TINY
from torch.utils.flop_counter import FlopCounterMode

import layermem
from layermem.models.registry import lookup
from layermem_bench import cli
from layermem_bench.config.devices import DEVICES, get_device
from layermem_bench.efficiency.memory import Step
from layermem_bench.efficiency.plans import (
    Cluster,
    copy_traffic,
    mends,
    plan_run,
    shard_traffic,
    step_flops,
)
from layermem_bench.presets import get_preset
from layermem_bench.study.plans import plan_arms

H100 = DEVICES["h100"]


@pytest.fixture
def run():
    return replace(get_preset("paper-1b-gqa"), variant="lime")


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("name", ["plain", "lime"])
def test_flops_of_a_step_equal_torchs_counter(name, checkpointed):
    """The counter counts attention to all keys, from which the causal half is subtracted here."""
    tokens, sequences = 12, 2
    model = layermem.build(name, **TINY, attn_implementation="eager").train()
    if checkpointed:
        model.activation_checkpointing_enable({"use_reentrant": False})
    ids = torch.ones(sequences, tokens, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    heads, width = TINY["num_attention_heads"], TINY["hidden_size"] // TINY["num_attention_heads"]
    attention = TINY["num_hidden_layers"] * heads * 4 * width * tokens**2 * sequences
    forwards = 4 if checkpointed else 3
    honest = counter.get_total_flops() - forwards * attention * (tokens - 1) / (2 * tokens)
    entry = lookup(name)
    step = Step(sequences=sequences, tokens=tokens, checkpointed=checkpointed)
    counted = step_flops(entry.config(**TINY), entry.variant, step)
    assert counted == pytest.approx(honest, rel=0.01)


def test_traffic_of_copies_and_of_shards():
    config = lookup("plain").config(**TINY)
    parameters = layermem.build("plain", **TINY).num_parameters()
    of_ring = 3 / 4
    step = Step(sequences=1, tokens=8, processes=4, micro_batches=2)
    assert copy_traffic(config, None, step) == 2 * of_ring * 4 * parameters
    assert shard_traffic(config, None, step) == 0
    shards = replace(step, shard=True)
    whole = replace(shards, keep_whole="all")
    embeddings = 2 * TINY["vocab_size"] * TINY["hidden_size"]
    once = of_ring * (4 * parameters + 4 * parameters)
    # Kept whole: weights are gathered once and gradients scattered once.
    assert shard_traffic(config, None, whole) == pytest.approx(once)
    assert shard_traffic(config, None, shards) > 2 * once - of_ring * 8 * embeddings
    assert copy_traffic(config, None, shards) == 0
    assert copy_traffic(config, None, replace(step, processes=1)) == 0
    # Two copies over two processes each: rings of two, and half of the gradients in each.
    both = replace(whole, replicas=2)
    assert both.shards == 2
    assert shard_traffic(config, None, both) == pytest.approx(once * (1 / 2) / of_ring)
    assert copy_traffic(config, None, both) == pytest.approx(2 * (1 / 2) * 4 * parameters / 2)


def test_a_plan_adds_up(run):
    cluster = Cluster(device=H100, gpus=64)
    plan = plan_run(run, {}, cluster)
    assert plan.fits and plan.peak == sum(plan.memory.values())
    assert plan.step_seconds == plan.seconds[plan.bound] == max(plan.seconds.values())
    tokens = run.max_steps * run.optim.batch_size * 2048
    assert plan.tokens_per_second * plan.total_seconds == pytest.approx(tokens)
    assert plan.gpu_hours == pytest.approx(64 * plan.total_seconds / 3600)
    half = plan_run(run, {}, replace(cluster, utilisation=0.2))
    assert half.seconds["compute"] == pytest.approx(2 * plan.seconds["compute"])


def test_the_network_beyond_a_machine_is_the_slower_of_both():
    slow = DEVICES["a100-80gb"]
    cluster = Cluster(device=slow, gpus=16)
    assert cluster.link(8) == slow.link
    assert cluster.link(16) == 8 * slow.network < slow.link


def test_what_makes_a_run_fit(run):
    cluster = Cluster(device=get_device("l40s"), gpus=8)
    plan = plan_run(replace(run, compute=replace(run.compute, micro_batch=16)), {}, cluster)
    assert not plan.fits
    found = dict(mends(plan, {}))
    assert {"--micro-batch 4", "--checkpoint-activations"} <= found.keys()
    assert all(changed.fits for changed in found.values())
    assert not list(mends(plan, {}))[0][1].run.compute.shard


def test_what_is_not_counted_is_refused(run):
    cluster = Cluster(device=H100, gpus=1)
    some = replace(run.compute, checkpoint_activations=True, checkpoint_every=4)
    with pytest.raises(ValueError, match="checkpoint_every=4: activations that some layers keep"):
        plan_run(replace(run, compute=some), {}, cluster)
    with pytest.raises(ValueError, match="precision=float32"):
        plan_run(replace(run, compute=replace(run.compute, precision="float32")), {}, cluster)
    with pytest.raises(ValueError, match="1024.* must be a multiple of .* processes \\(48\\)"):
        plan_run(run, {}, replace(cluster, gpus=48))
    with pytest.raises(ValueError, match="unknown device 'h10'; did you mean h100"):
        get_device("h10")
    with pytest.raises(ValueError, match="not counted in closed form"):
        plan_run(replace(run, variant="mudd"), {}, cluster)


def test_an_arm_that_is_not_counted_is_left_out_alone():
    cluster = Cluster(device=H100, gpus=64)
    planned = plan_arms("paper-1b-gqa", "plain,recipe+mudd,value_residual", cluster, {})
    assert list(planned) == ["plain"]
    with pytest.raises(ValueError, match="not counted in closed form"):
        plan_arms("paper-1b-gqa", "mudd", cluster, {})


def test_the_options_that_make_a_run_fit_are_those_of_the_command(capsys):
    asked = ["costs", "paper-1b-gqa", "--gpus", "8", "--device", "rtx4090"]
    cli.main(asked)
    named = re.findall(r"(--[a-z].*?) \(", " ".join(capsys.readouterr().out.split()))
    assert {"--shard", "--shard --checkpoint-activations"} <= set(named)
    for options in named:
        cli.main([*asked, *options.split(": ")[-1].split()])
        assert "does not fit" not in capsys.readouterr().out
