"""Parameter groups and rates, against the rules written out."""

import math

import pytest
import torch
from tiny import TINY

import layermem
from layermem.config import Optim
from layermem.train.groups import parameter_groups, schedule


def groups_of(variant, optim=None, **fields):
    model = layermem.build(variant, **{**TINY, **fields})
    groups = parameter_groups(model, model.variant.overrides, optim or Optim())
    names = {id(p): name for name, p in model.named_parameters()}
    return {g["name"]: ({names[id(p)] for p in g["params"]}, g) for g in groups}, model


@pytest.mark.parametrize("tied", [False, True])
def test_every_parameter_is_in_one_group_by_the_rules(tied):
    found, model = groups_of("lime", tie_word_embeddings=tied, attention_bias=True)
    everything = [name for names, _ in found.values() for name in names]
    assert sorted(everything) == sorted(name for name, _ in model.named_parameters())
    decayed, plain = found.pop("decayed"), found.pop("plain")
    ((routers, own),) = found.values()
    assert all("memory" in name for name in routers) and len(routers) == 3
    assert (own["lr"], own["weight_decay"]) == (1e-2, 0.0)
    assert (plain[1]["lr"], plain[1]["weight_decay"]) == (1e-3, 0.0)
    assert (decayed[1]["lr"], decayed[1]["weight_decay"]) == (1e-3, 0.1)
    assert all("norm" in n or "embed" in n or n.endswith("bias") for n in plain[0])
    assert ("lm_head.weight" in decayed[0]) is not tied


def test_no_groups_without_members_and_a_rate_for_routers():
    assert set(groups_of("plain")[0]) == {"decayed", "plain"}
    found, _ = groups_of("lime", Optim(router_lr=3e-3))
    assert {g["lr"] for _, g in found.values()} == {1e-3, 3e-3}
    frozen, _ = groups_of("lime", Optim(router_lr=0.0))
    assert {g["lr"] for _, g in frozen.values()} == {1e-3, 0.0}


def test_frozen_parameters_are_left_out():
    model = layermem.build("plain", **TINY)
    model.model.layers.requires_grad_(False)
    groups = parameter_groups(model, (), Optim())
    assert sum(len(g["params"]) for g in groups) == 3


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_every_group_ends_at_one_absolute_floor(kind):
    optim = Optim(schedule=kind, min_lr=1e-6, warmup_steps=10)
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(3)]
    peaks = [1e-3, 1e-2, 1e-7]
    optimizer = torch.optim.AdamW(
        [{"params": [w], "lr": lr} for w, lr in zip(weights, peaks, strict=True)]
    )
    steps = 200
    rates = schedule(optimizer, optim, steps)
    seen = []
    for _ in range(steps):
        seen.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        rates.step()
    for column, peak in zip(zip(*seen, strict=True), peaks, strict=True):
        floor = min(1e-6, peak)
        assert column[-1] == pytest.approx(floor, rel=1e-9)
        assert max(column) == pytest.approx(peak) and column[10] == pytest.approx(peak)
        assert column[0] == pytest.approx(peak / 11) and column[9] == pytest.approx(peak * 10 / 11)
        progress = (100 - 10) / (steps - 1 - 10)
        share = (1 + math.cos(math.pi * progress)) / 2 if kind == "cosine" else 1 - progress
        assert column[100] == pytest.approx(floor + (peak - floor) * share)


def test_the_warm_up_is_a_tenth_of_a_short_run_at_most():
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    factor = schedule(optimizer, Optim(warmup_steps=200), 50).lr_lambdas[0]
    assert factor(5) == 1.0 and factor(4) < 1.0
    assert schedule(optimizer, Optim(schedule="constant"), 50).lr_lambdas[0](49) == 1.0
