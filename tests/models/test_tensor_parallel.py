"""Processes share each model's matrices (``tp_plan="auto"``) and compute what one computes."""

import importlib.metadata
import re

import pytest
import torch
from shared_models import (
    CASES,
    OF_OWN_HEADS,
    SIZES,
    a_config,
    a_model,
    in_processes,
    load,
    outcome,
)
from tiny import TINY, is_own
from torch import distributed, nn
from torch.distributed.tensor import DTensor
from transformers.distributed import DistributedConfig

from layermem.models.registry import lookup
from layermem.models.sharded_routers import SOURCE_HEADS
from layermem.models.tensor_parallel import share_layers

# What processes share of a decoder layer, and along which dimension.
SHARED = {
    "self_attn.q_proj": 0,
    "self_attn.k_proj": 0,
    "self_attn.v_proj": 0,
    "self_attn.o_proj": 1,
    "mlp.gate_proj": 0,
    "mlp.up_proj": 0,
    "mlp.down_proj": 1,
}
# Constant and separate weights are compared with two heads a process: a column can be misplaced.
OF_TWO = [case for case in CASES if case not in ("lime-average", "lime-separate")]
# What more processes than two share; three share no width evenly, four need all heads of two.
OF_THREE = ["lime", "lime-of-3", "plain"]
OF_FOUR = ["lime", "lime-mha", "lime-gqa-of-4", "lime-separate-mha", "lime+mudd"]
needs_processes = pytest.mark.skipif(
    not distributed.is_available(), reason="this torch has no distributed package"
)
TRANSFORMERS = tuple(map(int, importlib.metadata.version("transformers").split(".")[:2]))
divides_unevenly = pytest.mark.skipif(TRANSFORMERS < (5, 23), reason="transformers refuses it")


def work(rank, world, folder, cases):
    found = {}
    for case in cases:
        model = load(folder / case, world)
        local = {
            name: tuple(p.to_local().shape if isinstance(p, DTensor) else p.shape)
            for name, p in model.named_parameters()
        }
        found[case] = {"local": local, **outcome(model, case)}
    return found


def assert_shared(local, model, rank, world, case):
    """Every projection of every layer lies in parts in the processes, whatever else does."""
    for name, parameter in model.named_parameters():
        of_layer = name.partition("layers.")[2].partition(".")[2]
        if not of_layer:
            continue
        module, _, kind = of_layer.rpartition(".")
        expected = parameter
        # A bias is added once, after the parts of a product of rows are summed.
        if module in SHARED and not (kind == "bias" and SHARED[module]):
            expected = parameter.chunk(world, SHARED[module])[rank]
        assert local[name] == tuple(expected.shape), f"{case}: {name}"


def expected_heads(case, world):
    """Return how many key-value heads each process caches."""
    heads = a_config(case).num_key_value_heads
    return heads // world if CASES[case][0] in OF_OWN_HEADS and heads % world == 0 else heads


def assert_equal_outcomes(found, expected, case):
    for what in ("numbers", "written"):
        assert len(found[what]) == len(expected[what])
        for i, (a, b) in enumerate(zip(found[what], expected[what], strict=True)):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12, msg=f"{case}: {what} {i}")
    assert found["gradients"].keys() == expected["gradients"].keys()
    for name, gradient in expected["gradients"].items():
        torch.testing.assert_close(
            found["gradients"][name], gradient, rtol=1e-9, atol=1e-12, msg=f"{case}: {name}"
        )


@needs_processes
@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "cases"),
    [
        (2, OF_TWO),
        pytest.param(3, OF_THREE, marks=divides_unevenly),
        (4, OF_FOUR),
    ],
    ids=["two", "three", "four"],
)
def test_processes_share_the_projections_and_compute_what_one_does(tmp_path, world, cases):
    """All cases in one set of processes, whose start takes longest."""
    for case in cases:
        a_model(case).save_pretrained(tmp_path / case)
    expected = {case: outcome(a_model(case), case) for case in cases}
    for rank, of_cases in enumerate(in_processes(work, world, tmp_path, cases)):
        assert list(of_cases) == cases
        for case, found in of_cases.items():
            assert_shared(found["local"], a_model(case), rank, world, case)
            assert_equal_outcomes(found, expected[case], case)
            assert found["cached heads"] == expected_heads(case, world), case


def test_a_variant_that_claims_a_plan_has_one_for_its_layers(entry):
    """Every registered variant: none stays whole in each process without a word."""
    model = entry.causal_lm(entry.config(**TINY))
    assert model.supports_tp_plan
    plan = model.tp_plan
    matrices = {
        re.sub(r"\d+", "*", name)
        for name, module in model.model.layers.named_modules(prefix="model.layers")
        if isinstance(module, nn.Linear) and not is_own(f".{name}.")
    }
    assert len(matrices) == len(SHARED)
    unshared = [name for name in matrices if "wise" not in plan.get(name, "")]
    assert not unshared, f"tp_plan='auto' would leave {unshared} whole in every process"


@pytest.mark.parametrize(
    ("case", "degree", "own_heads"),
    [
        ("plain", 2, True),
        ("plain", 4, False),
        ("lime", 2, True),
        ("lime", 3, False),
        ("lime+mudd", 2, True),
        ("depth_attention", 2, False),
        ("lime_hidden", 2, False),
        ("plain-classes", 2, True),
    ],
)
def test_heads_are_shared_where_their_number_allows_it(case, degree, own_heads):
    variant, fields = CASES.get(case, (case, {}))
    entry = lookup(variant)
    kind = entry.sequence_classification if "num_labels" in fields else entry.causal_lm
    model = kind(entry.config(**{**SIZES, **fields}))
    before = dict(model.tp_plan)
    share_layers(model, DistributedConfig(tp_plan="auto", tp_size=degree))
    rules = {
        name.removeprefix("model.layers.*.self_attn."): rule
        for name, rule in model.tp_plan.items()
        if ".self_attn." in name
    }
    style = "colwise" if own_heads else "colwise_gather_output"
    expected = dict.fromkeys(("q_proj", "k_proj", "v_proj"), style)
    expected["o_proj"] = "rowwise" if own_heads else "rowwise_split_input"
    if own_heads and variant.startswith("lime"):
        expected["memory"] = SOURCE_HEADS
    assert rules == expected
    assert {n: r for n, r in model.tp_plan.items() if "self_attn" not in n} == {
        n: r for n, r in before.items() if "self_attn" not in n
    }


def test_one_process_changes_no_plan(entry):
    model = entry.causal_lm(entry.config(**TINY))
    before = dict(model.tp_plan)
    share_layers(model, DistributedConfig(tp_size=1, fsdp_size=2))
    assert model.tp_plan == before
