"""Test that capture alters no output and copies what layers compute, for ours and for others."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from host_models import DECODERS, make_host
from tiny import CASES, TINY, make

import layermem
from layermem.models.registry import list_variants, lookup
from layermem.models.seams import OwnLayerMemory, WeightsUnknown
from layermem_bench.analysis.capture import capture, decoder_layers, sequences_at_once

HF_MODELS = {
    "llama": (transformers.LlamaConfig, TINY),
    "qwen2": (transformers.Qwen2Config, TINY),
    "qwen3": (transformers.Qwen3Config, {**TINY, "head_dim": 8}),
    "mistral": (transformers.MistralConfig, TINY),
    "phi3": (transformers.Phi3Config, {**TINY, "pad_token_id": 0}),
    "gpt2": (
        transformers.GPT2Config,
        {"vocab_size": 61, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64},
    ),
    "neox": (
        transformers.GPTNeoXConfig,
        {k: v for k, v in TINY.items() if k != "num_key_value_heads"},
    ),
}


def our_model(variant, fields):
    entry = lookup(variant)
    return make(entry.causal_lm, entry.config(**{**TINY, **fields}))


def hf_model(name):
    config, fields = HF_MODELS[name]
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config(**fields)).eval()


def batches():
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 61, (3, 10), generator=draw)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    return [ids, {"input_ids": ids[:2], "attention_mask": mask[:2]}]


def check_hidden_states(model):
    """Capture, compare with the model's own hidden states, and return what was captured."""
    results = list(capture(model, batches()))
    assert len(results) == 2
    for batch, captured in zip(batches(), results, strict=True):
        inputs = batch if isinstance(batch, dict) else {"input_ids": batch}
        with torch.no_grad():
            out = model(**inputs, output_hidden_states=True, use_cache=False)
        np.testing.assert_array_equal(captured.ids, inputs["input_ids"])
        assert captured.mask.sum() == inputs.get("attention_mask", inputs["input_ids"] > 0).sum()
        # The last of the model's own hidden states has gone through the final norm.
        for hidden, expected in zip(captured.hidden[:-1], out.hidden_states[1:-1], strict=True):
            np.testing.assert_array_equal(hidden, expected)
        assert len(captured.hidden) == len(captured.values) == len(captured.routed) == 4
        for values, routed in zip(captured.values, captured.routed, strict=True):
            assert values.shape == routed.shape == (*captured.ids.shape, values.shape[-1])
            assert values.dtype == np.float32
    return results


@pytest.mark.parametrize(
    ("variant", "fields"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_our_variants(variant, fields):
    model = our_model(variant, fields)
    for captured in check_hidden_states(model):
        for i, (values, routed) in enumerate(zip(captured.values, captured.routed, strict=True)):
            memory = model.model.layers[i].self_attn.memory
            if isinstance(memory, OwnLayerMemory):
                np.testing.assert_array_equal(values, routed)
                continue
            try:
                sources, weights = memory.static_weights_by_part()["value"]
            except WeightsUnknown:
                # Mixed by weights that depend on the input, or before the projection.
                continue
            # The routed values are the router's sum of the raw ones.
            # Of a layer that borrows: of what its lenders read.
            given = captured.routed if model.model.layers[i].lenders else captured.values
            raw = torch.stack([torch.from_numpy(given[j]) for j in sources])
            raw = raw.unflatten(-1, (weights.shape[0], -1))
            expected = torch.einsum("rsq,sbtqe->btre", weights, raw).flatten(2)
            np.testing.assert_allclose(routed, expected.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("variant", list_variants())
def test_routed_values_are_what_the_memory_returns(variant):
    model, returned = our_model(variant, {}), []
    for layer in model.model.layers:
        layer.self_attn.memory.register_forward_hook(lambda *args: returned.append(args[2][1]))
    for captured in capture(model, batches()[:1]):
        for routed, value in zip(captured.routed, returned, strict=True):
            np.testing.assert_array_equal(routed, value.transpose(1, 2).flatten(2).numpy())


@pytest.mark.parametrize("name", HF_MODELS)
def test_decoders_of_transformers(name):
    model = hf_model(name)
    seen = {}
    interface = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    original = interface["sdpa"]

    def spy(module, query, key, value, *args, **kwargs):
        # The values as attention gets them, with one key-value head for each.
        seen[module.layer_idx] = value.transpose(1, 2).flatten(2)
        return original(module, query, key, value, *args, **kwargs)

    for captured in check_hidden_states(model):
        interface["sdpa"] = spy
        try:
            mask = torch.from_numpy(captured.mask).long()
            model(torch.from_numpy(captured.ids), attention_mask=mask, use_cache=False)
        finally:
            del interface["sdpa"]
        for i in range(4):
            np.testing.assert_array_equal(captured.values[i], captured.routed[i])
            np.testing.assert_allclose(captured.values[i], seen[i].detach(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", DECODERS)
def test_identity_routers_of_attached_memory_leave_all_as_it_was(name):
    model = make_host(name)
    bare = next(capture(model, batches()[:1]))
    attached = next(capture(layermem.attach(model), batches()[:1]))
    for kind in ("hidden", "values", "routed"):
        arrays = zip(getattr(bare, kind), getattr(attached, kind), strict=True)
        for before, after in arrays:
            np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("lora", [False, True], ids=["bare", "lora"])
def test_attached_memory_routes_the_values(lora):
    model = layermem.attach(make_host("llama"))
    routers = [layer.self_attn.memory for layer in model.model.layers[1:]]
    for router in routers:
        torch.nn.init.normal_(router.weight)
    if lora:
        # The projection is another one than that which the attachment has its hook on.
        peft = pytest.importorskip("peft")
        config = peft.LoraConfig(target_modules=["v_proj"], init_lora_weights=False)
        model = peft.get_peft_model(model, config).eval().base_model.model
    (captured,) = capture(model, batches()[:1])
    np.testing.assert_array_equal(captured.values[0], captured.routed[0])
    for i, router in enumerate(routers, start=1):
        raw = torch.stack([torch.from_numpy(captured.values[j]) for j in range(i + 1)])
        weights = router.weight.detach().unflatten(1, (i + 1, 2))
        expected = torch.einsum("rsq,sbtqe->btre", weights, raw.unflatten(-1, (2, -1))).flatten(2)
        np.testing.assert_allclose(captured.routed[i], expected, rtol=1e-4, atol=1e-5)


OLMO = {
    "olmo": (transformers.OlmoConfig, {**TINY, "clip_qkv": 0.01}),
    "olmoe": (
        transformers.OlmoeConfig,
        {**TINY, "clip_qkv": 0.01, "num_experts": 4, "num_experts_per_tok": 2},
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OLMO)
def test_values_that_attention_clips(name, dtype):
    config, fields = OLMO[name]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config(**fields)).eval().to(dtype)
    (captured,) = capture(model, batches()[:1])
    for values, routed in zip(captured.values, captured.routed, strict=True):
        np.testing.assert_array_equal(values, routed)
        assert np.abs(values).max() == torch.tensor(0.01, dtype=dtype)


def test_captured_arrays_do_not_change_with_the_tensors_of_the_model():
    """Of float32 on the CPU there is no copy unless it is asked for."""
    model = hf_model("llama")
    (expected,) = capture(model, batches()[:1])

    def clear(module, inputs):
        inputs[0].zero_()

    model.model.norm.register_forward_pre_hook(clear)
    (captured,) = capture(model, batches()[:1])
    np.testing.assert_array_equal(captured.hidden[-1], expected.hidden[-1])


SELF_ATTENTION = layermem.retrofit.Host(
    layers="model.layers", attention="self_attn", key="k_proj", value="v_proj"
)
GEMMA = {
    **TINY,
    "head_dim": 8,
    "vocab_size_per_layer_input": 61,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 0,
    "pad_token_id": 0,
}
WITH_VALUE_NORMS = {
    "gemma3n": (
        transformers.Gemma3nForCausalLM,
        transformers.Gemma3nTextConfig,
        {**GEMMA, "laurel_rank": 4, "activation_sparsity_pattern": [0.0] * 4},
    ),
    "gemma4": (
        transformers.Gemma4ForCausalLM,
        transformers.Gemma4TextConfig,
        {**GEMMA, "global_head_dim": 8},
    ),
    "gemma4-keys-as-values": (
        transformers.Gemma4ForCausalLM,
        transformers.Gemma4TextConfig,
        {**GEMMA, "global_head_dim": 8, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
    ),
}


def make_with_value_norms(name):
    model_class, config, fields = WITH_VALUE_NORMS[name]
    torch.manual_seed(0)
    return model_class(config(**fields, attn_implementation="eager")).eval()


@pytest.mark.parametrize("name", WITH_VALUE_NORMS)
def test_values_that_attention_normalises(name):
    model = make_with_value_norms(name)
    # The values that attention reads are the last that the norm returns.
    returned = []
    for layer in model.model.layers:
        norm = layer.self_attn.v_norm
        norm.register_forward_hook(lambda *args: returned.append(args[2].flatten(2)))
    (captured,) = capture(model, batches()[:1], kinds=("values", "routed"))
    for values, routed, read in zip(captured.values, captured.routed, returned, strict=True):
        np.testing.assert_array_equal(routed, read)
        np.testing.assert_array_equal(values, read)


def test_attached_memory_routes_values_before_their_norm():
    model = make_with_value_norms("gemma4")
    (bare,) = capture(model, batches()[:1])
    model = layermem.attach(model, host=SELF_ATTENTION)
    (identity,) = capture(model, batches()[:1])
    for layer in model.model.layers[1:]:
        torch.nn.init.normal_(layer.self_attn.memory.weight)
    (routed,) = capture(model, batches()[:1])
    for kind in ("hidden", "values", "routed"):
        for before, after in zip(getattr(bare, kind), getattr(identity, kind), strict=True):
            np.testing.assert_array_equal(before, after)
    # The first layer has no router, so that its values are the same.
    np.testing.assert_array_equal(routed.values[0], bare.values[0])
    np.testing.assert_array_equal(routed.routed[0], bare.values[0])
    assert np.abs(routed.routed[1] - routed.values[1]).max() > 0.1


def test_hidden_states_of_another_shape_are_refused():
    # Each layer of Gemma 3n returns several streams [4, B, T, D].
    model = make_with_value_norms("gemma3n")
    with pytest.raises(ValueError, match=r"layer 0 .* returns \[4, 3, 10, 32\], expected a hidden"):
        next(capture(model, batches()))


def test_layers_that_run_several_times_are_refused():
    """The last run alone would be captured."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY)).eval()
    layers, forward = model.model.layers, transformers.models.llama.modeling_llama.LlamaDecoderLayer
    first = layers[0].forward

    def twice(*args, **kwargs):
        return forward.__call__(layers[1], first(*args, **kwargs), *args[1:], **kwargs)

    layers[0].forward = twice
    with pytest.raises(ValueError, match="layer 1 runs several times in a forward"):
        next(capture(model, batches()))


def test_forwards_of_the_caller_are_not_captured():
    """OPT's model with a head does not call its base model."""
    config = transformers.OPTConfig(
        vocab_size=61, hidden_size=32, ffn_dim=40, num_hidden_layers=2, num_attention_heads=4
    )
    model = transformers.OPTForCausalLM(config).eval()
    ids = torch.randint(61, (2, 7), generator=torch.Generator().manual_seed(0))
    found = []
    for batch in capture(model, [ids, ids + 0]):
        found.append([layer.copy() for layer in batch.hidden])
        for _ in range(2):
            model(torch.zeros_like(ids))
    for first, second in zip(*found, strict=True):
        np.testing.assert_array_equal(first, second)


FALCON = {
    **{k: v for k, v in TINY.items() if k not in ("intermediate_size", "num_key_value_heads")},
    "alibi": False,
}
FUSED = {
    "bigcode-mqa": (transformers.GPTBigCodeConfig, {**HF_MODELS["gpt2"][1], "multi_query": True}),
    "bigcode-mha": (transformers.GPTBigCodeConfig, {**HF_MODELS["gpt2"][1], "multi_query": False}),
    "falcon-mqa": (transformers.FalconConfig, {**FALCON, "multi_query": True}),
    "falcon-mha": (transformers.FalconConfig, {**FALCON, "multi_query": False}),
    "falcon-gqa": (
        transformers.FalconConfig,
        {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_fused_projections_of_fewer_key_value_heads(name, monkeypatch):
    config, fields = FUSED[name]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config(**fields)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    attention, seen = torch.nn.functional.scaled_dot_product_attention, []

    def spy(query, key, value, *args, **kwargs):
        seen.append(value.transpose(1, 2))
        return attention(query, key, value, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    for captured in capture(model, batches()[:1]):
        assert len(seen) == 4
        for values, own in zip(captured.values, seen, strict=True):
            # Theirs may be repeated for the query heads.
            heads = own.unflatten(2, (values.shape[-1] // 8, -1))
            expected = torch.from_numpy(values).unflatten(-1, (-1, 1, 8)).expand_as(heads)
            np.testing.assert_allclose(expected, heads, rtol=1e-5, atol=1e-7)


def test_a_fused_projection_of_another_layout_is_refused():
    model = hf_model("gpt2")
    for layer in model.transformer.h:
        layer.attn.c_attn = torch.nn.Linear(32, 32 + 2 * 8)
    with pytest.raises(
        ValueError, match="layer 0 .* c_attn or query_key_value with the layout of GPT-2"
    ):
        next(capture(model, batches()[:1]))


@pytest.mark.parametrize("model", [our_model("lime", {}), hf_model("gpt2")], ids=["lime", "gpt2"])
def test_outputs_are_not_altered_and_nothing_is_left_behind(model):
    model.train()
    ids = batches()[0]
    logits = {}
    for step, _ in enumerate(capture(model, [ids, ids])):
        assert not model.training
        with torch.no_grad():
            logits[step] = model(ids, use_cache=False).logits
    assert model.training
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(ids, use_cache=False).logits, logits[0])
    assert not any(module._forward_hooks for module in model.modules())
    # Stopped half way, as well.
    going = capture(model, [ids, ids])
    next(going)
    going.close()
    assert not any(module._forward_hooks for module in model.modules())


def test_some_kinds_alone_and_bad_arguments():
    model = our_model("lime", {})
    (captured,) = capture(model, batches()[:1], kinds=("routed",))
    assert len(captured.routed) == 4 and not captured.hidden and not captured.values
    with pytest.raises(ValueError, match="unknown kinds keys; there are hidden, values, routed"):
        next(capture(model, batches(), kinds=("keys",)))
    with pytest.raises(ValueError, match="has no list of layers"):
        next(capture(torch.nn.Linear(2, 2), batches()))
    mamba = transformers.MambaForCausalLM(
        transformers.MambaConfig(vocab_size=61, hidden_size=32, num_hidden_layers=2)
    )
    with pytest.raises(ValueError, match="layer 0 .* has no projection of values"):
        next(capture(mamba, batches()))


def test_lower_precision_is_captured_in_float32():
    (captured,) = capture(our_model("lime", {}).bfloat16(), batches()[:1])
    assert captured.routed[3].dtype == np.float32 and np.isfinite(captured.routed[3]).all()


def test_a_batch_holds_as_many_sequences_as_memory_allows():
    class Large:
        class config:  # noqa: N801
            num_hidden_layers, hidden_size = 16, 2048

    # 2 x 16 x 2048 x 128 numbers of 4 bytes are 2^25.
    assert sequences_at_once(Large, 128) == 4
    assert sequences_at_once(Large, 128, memory=2**30) == 32
    assert sequences_at_once(Large, 100_000) == 1


@pytest.mark.parametrize("layers", [2, 4])
def test_lists_inside_a_layer_are_not_the_layers(layers):
    """A layer of MUDD has four norms of its own, as many as there are layers or more."""
    model = layermem.build(
        "mudd", **{**TINY, "num_hidden_layers": layers}, pre_post_norm=True
    ).eval()
    assert decoder_layers(model) is model.model.layers
    (captured,) = capture(model, batches()[:1], kinds=("hidden", "values"))
    assert len(captured.hidden) == len(captured.values) == layers


def test_a_host_with_longer_lists_in_its_layers():
    host = torch.nn.Module()
    host.layers = torch.nn.ModuleList(torch.nn.Module() for _ in range(2))
    for layer in host.layers:
        layer.experts = torch.nn.ModuleList(torch.nn.Identity() for _ in range(8))
    text = SimpleNamespace(num_hidden_layers=2)
    host.config = SimpleNamespace(get_text_config=lambda: text)
    assert decoder_layers(host) is host.layers
