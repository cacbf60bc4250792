"""Parameter groups and rates, against the rules written out; which of them a row shows."""

import copy
import math

import pytest
import torch
import transformers as hf
from tiny import TINY, is_own

import layermem
from layermem.models.lime_router import LimeRouter
from layermem.retrofit import Host, attach, router_parameters
from layermem_bench.config.run import Optim
from layermem_bench.run.checkpoints import load_moments, whole_moments
from layermem_bench.run.optimizer import (
    build_optimizer,
    overrides_of,
    parameter_groups,
    set_learning_rates,
)
from layermem_bench.run.progress import training_row, variant_metrics


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


def rates(optim, peaks, steps):
    """Return the learning rate of each step, for groups of these peaks."""
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "initial_lr": p} for p in peaks]
    optimizer, seen = torch.optim.AdamW(groups), []
    for step in range(steps):
        set_learning_rates(optimizer, optim, steps, step)
        seen.append([group["lr"] for group in optimizer.param_groups])
    return list(zip(*seen, strict=True))


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
def test_every_group_ends_at_one_absolute_floor(kind):
    peaks, steps = [1e-3, 1e-2, 1e-7], 200
    found = rates(Optim(schedule=kind, min_lr=1e-6, warmup_steps=10), peaks, steps)
    for column, peak in zip(found, peaks, strict=True):
        floor = min(1e-6, peak)
        assert column[-1] == pytest.approx(peak if kind == "constant" else floor, rel=1e-9)
        assert max(column) == pytest.approx(peak) and column[10] == pytest.approx(peak)
        assert column[0] == pytest.approx(peak / 11) and column[9] == pytest.approx(peak * 10 / 11)
        progress = (100 - 10) / (steps - 1 - 10)
        shares = {"cosine": (1 + math.cos(math.pi * progress)) / 2, "linear": 1 - progress}
        assert column[100] == pytest.approx(floor + (peak - floor) * shares.get(kind, 1.0))
    # The warm-up is a tenth of a short run at most.
    (column,) = rates(Optim(warmup_steps=200), [1.0], 50)
    assert column[5] == 1.0 and column[4] < 1.0


CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def stepped(device, steps, ids, state=None):
    """Return a small model and its optimizer after some steps, gone on with from a state."""
    torch.manual_seed(0)
    model = layermem.build("lime", **TINY)
    optimizer = build_optimizer(model, model.variant.overrides, Optim(), device)
    if state is not None:
        model.load_state_dict(state[0])
        load_moments(optimizer, state[1])
    for _ in range(steps):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


@pytest.mark.parametrize(("before", "after"), [(CPU, CUDA), (CUDA, CPU)], ids=["to", "from"])
def test_a_checkpoint_says_nothing_of_how_a_step_is_carried_out(before, after, ids):
    """On CUDA it is fused, which is the same but for rounding; it runs on a CPU too."""
    model, optimizer = stepped(before, 3, ids)
    state = copy.deepcopy((model.state_dict(), whole_moments(optimizer)))
    ours, resumed = stepped(after, 2, ids, state)
    assert {group["fused"] for group in resumed.param_groups} == {True if after == CUDA else None}
    theirs, _ = stepped(after, 5, ids)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_the_optimiser_settings_of_a_variant_are_those_of_its_own_parameters(case):
    """optim.router_lr is the rate of every parameter that the variant adds, and of no other."""
    entry, fields = case
    model = entry.causal_lm(entry.config(**fields))
    own = {name for name, _ in model.named_parameters() if is_own(name)}
    if not own:
        with pytest.raises(ValueError, match=r"optim\.router_lr=0\.5 "):
            parameter_groups(model, entry.variant.overrides, Optim(router_lr=0.5))
        return
    names = {id(p): name for name, p in model.named_parameters()}
    groups = parameter_groups(model, entry.variant.overrides, Optim(router_lr=0.5))
    at_its_rate = {names[id(p)] for group in groups if group["lr"] == 0.5 for p in group["params"]}
    assert at_its_rate == own


@pytest.mark.parametrize("variant", ["lime", "lime+hyper_connections"])
def test_a_row_has_the_rate_of_routers_beside_those_of_other_parts(variant):
    model = layermem.build(variant, **TINY)
    groups = parameter_groups(model, model.variant.overrides, Optim(lr=1e-3))
    row = training_row(1.0, 1.0, {group["name"]: group["lr"] for group in groups})
    routers = {id(p) for m in model.modules() if isinstance(m, LimeRouter) for p in m.parameters()}
    (expected,) = {g["lr"] for g in groups if routers & set(map(id, g["params"]))}
    assert row["router_lr"] == expected == 1e-2 and row["lr"] == 1e-3


@pytest.mark.parametrize("name", ["Mixtral", "Qwen3Moe"])
def test_gates_of_experts_are_no_routers(name):
    """Which mixtures of experts call so too; attached routers alone have their rate."""
    kind, config = getattr(hf, f"{name}ForCausalLM"), getattr(hf, f"{name}Config")
    numbers = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
    known = {key: value for key, value in numbers.items() if key in config().to_dict()}
    model = kind(config(**TINY, **known, pad_token_id=0))
    groups = parameter_groups(model, overrides_of(model), Optim(lr=1e-3))
    assert {group["lr"] for group in groups} == {1e-3} and variant_metrics(model) == {}
    host = Host(layers="model.layers", attention="self_attn", key="k_proj", value="v_proj")
    model = attach(model, host=host)
    groups = parameter_groups(model, overrides_of(model), Optim(lr=1e-3))
    (routers,) = (group for group in groups if group["lr"] == 5e-3)
    assert {id(p) for p in routers["params"]} == {id(p) for p in router_parameters(model)}
    assert routers["weight_decay"] == 0.0
