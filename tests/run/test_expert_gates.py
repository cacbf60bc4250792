"""What training takes for routers in models of transformers: what `attach` has put there."""

import pytest
import transformers as hf

from layermem.models.lime_router import learned_routers
from layermem.retrofit import Host, attach, router_parameters
from layermem_bench.config.run import Optim
from layermem_bench.run.metrics import variant_metrics
from layermem_bench.run.optimizer import overrides_of, parameter_groups

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
# Mixtures of experts, whose gates are called routers too.
EXPERTS = {
    "llama4": (hf.Llama4ForCausalLM, hf.Llama4TextConfig, {"intermediate_size_mlp": 40}),
    "gpt_oss": (hf.GptOssForCausalLM, hf.GptOssConfig, {}),
    "mixtral": (hf.MixtralForCausalLM, hf.MixtralConfig, {}),
    "qwen3_moe": (hf.Qwen3MoeForCausalLM, hf.Qwen3MoeConfig, {"moe_intermediate_size": 16}),
}
NUMBERS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}


def build(name):
    model_class, config_class, extra = EXPERTS[name]
    known = config_class().to_dict()
    numbers = {key: value for key, value in NUMBERS.items() if key in known}
    return model_class(config_class(**SIZES, **numbers, **extra))


@pytest.mark.parametrize("name", EXPERTS)
def test_gates_of_experts_are_no_routers(name):
    model = build(name)
    groups = parameter_groups(model, overrides_of(model), Optim(lr=1e-3))
    assert {group["lr"] for group in groups} == {1e-3}
    assert {group["weight_decay"] for group in groups} == {0.0, 0.1}
    assert variant_metrics(model) == {} and learned_routers(model) == []


@pytest.mark.parametrize("name", EXPERTS)
def test_attached_routers_alone_have_their_rate(name):
    host = Host(layers="model.layers", attention="self_attn", key="k_proj", value="v_proj")
    model = attach(build(name), host=host)
    groups = parameter_groups(model, overrides_of(model), Optim(lr=1e-3))
    (routers,) = (group for group in groups if group["lr"] == 5e-3)
    assert {id(p) for p in routers["params"]} == {id(p) for p in router_parameters(model)}
    assert routers["weight_decay"] == 0.0
