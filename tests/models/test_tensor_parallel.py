"""Two processes share each model's matrices (``tp_plan="auto"``) and compute what one computes."""

import datetime
import os
import re

import pytest
import torch
from tiny import TINY, is_own, make
from torch import distributed, nn
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.distributed import DistributedConfig

from layermem.models.configuration import DecoderConfig
from layermem.models.registry import lookup

WORLD = 2
# Older transformers share no vocabulary that the number of processes does not divide.
SIZES = {**TINY, "vocab_size": 64}
# id: (variant, fields). Two sequences are classified where there are labels.
CASES = {
    "plain": ("plain", {}),
    "lime": ("lime", {}),
    "lime-mha": ("lime", {"num_key_value_heads": 4}),
    # Heads that two processes cannot share evenly: each of them routes and attends with all.
    "lime-one-head": ("lime", {"num_key_value_heads": 1}),
    "lime-last-2": ("lime", {"router": "last", "router_window": 2}),
    "lime-separate": ("lime", {"router_shares_kv": False}),
    "lime-biases": ("lime", {"attention_bias": True, "mlp_bias": True}),
    "value_residual-svformer": ("value_residual", {"form": "svformer", "attention_bias": True}),
    "depth_attention": ("depth_attention", {"gate": "head"}),
    "lime-tied": ("lime", {"tie_word_embeddings": True}),
    "plain-classes": ("plain", {"num_labels": 3, "pad_token_id": 0}),
    "lime-classes": ("lime", {"num_labels": 3, "pad_token_id": 0}),
}
# What two processes share of a decoder layer, and along which dimension.
SHARED = {
    "self_attn.q_proj": 0,
    "self_attn.k_proj": 0,
    "self_attn.v_proj": 0,
    "self_attn.o_proj": 1,
    "mlp.gate_proj": 0,
    "mlp.up_proj": 0,
    "mlp.down_proj": 1,
}


def a_model(case):
    variant, fields = CASES[case]
    entry = lookup(variant)
    model_class = entry.sequence_classification if "num_labels" in fields else entry.causal_lm
    model = make(model_class, entry.config(**{**SIZES, **fields})).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(torch.linspace(-1, 1, len(parameter)))
    return model


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def outcome(model, case):
    """Return logits, loss, every gradient, and what the model writes."""
    ids = torch.randint(1, SIZES["vocab_size"], (2, 9), generator=torch.Generator().manual_seed(5))
    classes = "num_labels" in CASES[case][1]
    out = model(ids, labels=torch.tensor([2, 0]) if classes else ids)
    out.loss.backward()
    with torch.no_grad():
        written = [] if classes else [model.generate(ids, max_new_tokens=5, do_sample=False)]
        quietly = model(ids).logits
    return {
        "numbers": [whole(out.logits.detach()), quietly, out.loss.detach()],
        "gradients": {name: whole(p.grad) for name, p in model.named_parameters()},
        "written": written,
    }


def work(rank, folder):
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=WORLD,
        timeout=datetime.timedelta(seconds=60),
    )
    # Older transformers do not count the processes themselves.
    whole_world = DistributedConfig(tp_plan="auto", tp_size=WORLD)
    found = {}
    for case, (_, fields) in CASES.items():
        auto = (
            AutoModelForSequenceClassification if "num_labels" in fields else AutoModelForCausalLM
        )
        model = auto.from_pretrained(folder / case, distributed_config=whole_world, dtype="float64")
        local = {
            name: tuple(p.to_local().shape if isinstance(p, DTensor) else p.shape)
            for name, p in model.named_parameters()
        }
        found[case] = {"local": local, **outcome(model, case)}
    torch.save(found, f"{folder}/{rank}.pt")
    # As in test_distributed.py: taking the group apart may wait for ever.
    os._exit(0)


def assert_halved(local, model, case):
    """Every projection of every layer lies half in each process, whatever else does."""
    for name, parameter in model.named_parameters():
        of_layer = name.partition("layers.")[2].partition(".")[2]
        if not of_layer:
            continue
        module, _, kind = of_layer.rpartition(".")
        expected = list(parameter.shape)
        # A bias is added once, after the halves of a product of rows are summed.
        if module in SHARED and not (kind == "bias" and SHARED[module]):
            expected[SHARED[module]] //= WORLD
        assert local[name] == tuple(expected), f"{case}: {name}"


def assert_equal_outcomes(found, expected, case):
    for what, a, b in zip(
        ("logits", "logits without gradients", "loss"),
        found["numbers"],
        expected["numbers"],
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12, msg=f"{case}: {what}")
    assert found["gradients"].keys() == expected["gradients"].keys()
    for name, gradient in expected["gradients"].items():
        torch.testing.assert_close(
            found["gradients"][name], gradient, rtol=1e-9, atol=1e-12, msg=f"{case}: {name}"
        )
    assert len(found["written"]) == len(expected["written"])
    assert all(map(torch.equal, found["written"], expected["written"])), case


@pytest.mark.skipif(not distributed.is_available(), reason="this torch has no distributed package")
@pytest.mark.slow
def test_two_processes_share_the_projections_and_compute_what_one_does(tmp_path):
    """All cases in one pair of processes, whose start takes longest."""
    for case in CASES:
        a_model(case).save_pretrained(tmp_path / case)
    torch.multiprocessing.spawn(work, (tmp_path,), nprocs=WORLD, join=True)
    for rank in range(WORLD):
        of_cases = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert of_cases.keys() == CASES.keys()
        for case, found in of_cases.items():
            model = a_model(case)
            assert_halved(found["local"], model, case)
            assert_equal_outcomes(found, outcome(model, case), case)


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


def test_a_config_of_ones_own_inherits_a_plan():
    """One that says nothing of tensor parallelism hands whole heads to both seams."""
    plan = DecoderConfig.base_model_tp_plan
    assert {name.removeprefix("layers.*.") for name in plan} == SHARED.keys()
    heads = {plan[f"layers.*.self_attn.{letter}_proj"] for letter in "qkv"}
    assert heads == {"colwise_gather_output"}
    assert plan["layers.*.self_attn.o_proj"] == "rowwise_split_input"
