"""Peaks of devices, each card its own or none; and FLOPs of models of transformers."""

import pytest
import torch
import transformers
from host_models import make_host
from tiny import TINY
from torch.utils.flop_counter import FlopCounterMode

import layermem
from layermem import LimeForCausalLM, attach, trainable
from layermem.models.lime_router import LimeRouter
from layermem.ops.shared_buffer import using_naive
from layermem.variants.lime import Lime
from layermem_bench.config.run import Optim
from layermem_bench.train.metrics import (
    StepCost,
    forward_flops,
    peak_flops,
    training_flops,
    training_row,
)
from layermem_bench.train.optimizer import parameter_groups


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA H20", None),
        ("NVIDIA GH200 480GB", None),
        ("Tesla T4", None),
    ],
)
def test_each_card_has_its_own_peak(name, peak, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_flops(torch.device("cuda", 0)) == peak


def test_a_cpu_has_none():
    assert peak_flops(torch.device("cpu")) is None


@pytest.mark.parametrize("shares_kv", [True, False])
@pytest.mark.parametrize("grain", ["pair", "layer"])
def test_flops_of_attached_routers_are_those_of_native_ones(grain, shares_kv):
    bare = make_host("llama")
    before = forward_flops(bare, 8)
    native = LimeForCausalLM.from_llama(bare, router_shares_kv=shares_kv, router_grain=grain)
    attached = attach(bare, shares_kv=shares_kv, grain=grain)
    assert forward_flops(attached, 8) - before == Lime.extra_flops(native.config) > 0


@pytest.mark.parametrize(("experts", "chosen"), [(1, 1), (4, 2)])
def test_flops_of_experts_are_those_of_a_dense_mlp_as_wide_as_the_chosen_ones(experts, chosen):
    sizes = {**TINY, "head_dim": 8}
    sparse = transformers.MixtralConfig(
        **sizes, num_local_experts=experts, num_experts_per_tok=chosen
    )
    dense = transformers.MistralConfig(
        **{**sizes, "intermediate_size": chosen * sizes["intermediate_size"]}
    )
    ours, theirs = (
        transformers.MixtralForCausalLM(sparse),
        transformers.MistralForCausalLM(dense),
    )
    assert forward_flops(ours, 8) == forward_flops(theirs, 8)


@pytest.mark.parametrize("part", ["routers", "all"])
def test_flops_of_a_step_are_those_that_torch_counts(part):
    """Gradients of frozen weights are not computed; those of what enters them are."""
    model = make_host("llama")
    model.set_attn_implementation("eager")
    attach(model, shares_kv=False)
    trainable(model, part)
    model.train().enable_input_require_grads()
    ids = torch.randint(TINY["vocab_size"], (2, 8))
    with using_naive(), FlopCounterMode(display=False) as counter:
        model(ids, use_cache=False).logits.sum().backward()
    assert training_flops(model, 8) * ids.numel() == pytest.approx(counter.get_total_flops())


def test_flops_of_frozen_layers_of_ours_are_those_that_torch_counts():
    model = LimeForCausalLM(LimeForCausalLM.config_class(**TINY, attn_implementation="eager"))
    whole = training_flops(model, 8)
    assert whole == 3 * forward_flops(model, 8)
    model.model.layers[0].mlp.requires_grad_(False)
    frozen = sum(p.numel() for p in model.model.layers[0].mlp.parameters())
    assert whole - training_flops(model, 8) == 2 * frozen


def test_towers_that_no_text_enters_are_not_counted():
    text = transformers.LlamaConfig(**TINY)
    vision = transformers.CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=8,
        patch_size=4,
    )
    config = transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_index=60)
    model = transformers.LlavaForConditionalGeneration(config)
    projector = sum(
        p.numel() for p in model.model.multi_modal_projector.parameters() if p.dim() > 1
    )
    expected = forward_flops(transformers.LlamaForCausalLM(text), 8)
    assert forward_flops(model, 8) - expected == 2 * projector


def test_an_encoder_and_a_decoder_are_no_towers():
    sizes = {"d_model": 16, "d_ff": 24, "num_layers": 2, "num_heads": 2, "d_kv": 8}
    config = transformers.T5Config(vocab_size=61, num_labels=2, **sizes)
    model = transformers.T5ForSequenceClassification(config)
    linear = (m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    assert forward_flops(model, 8) >= 2 * sum(linear)


@pytest.mark.parametrize("variant", ["lime", "lime+hyper_connections", "lime+denseformer"])
def test_the_rate_of_routers_is_theirs_beside_those_of_other_parts(variant):
    model = layermem.build(variant, **TINY)
    groups = parameter_groups(model, model.variant.overrides, Optim(lr=1e-3))
    rates = {group["name"]: group["lr"] for group in groups}
    cost = StepCost(tokens=8, flops_per_token=1, peak_flops=None)
    row = training_row(
        loss=1.0, grad_norm=1.0, learning_rates=rates, steps_per_second=1.0, step=1, cost=cost
    )
    routers = {id(p) for m in model.modules() if isinstance(m, LimeRouter) for p in m.parameters()}
    (expected,) = {g["lr"] for g in groups if routers & set(map(id, g["params"]))}
    assert row["router_lr"] == expected == 1e-2 and row["lr"] == 1e-3
