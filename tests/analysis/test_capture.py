"""Capture alters no output and copies what layers compute, for our variants and for others."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from host_models import DECODERS, make_host, shake_routers
from tiny import CASES, TINY, make

import layermem
from layermem.models.registry import lookup
from layermem_bench.analysis.capture import capture, decoder_layers, sequences_at_once

GEMMA = {**TINY, "head_dim": 8, "vocab_size_per_layer_input": 61, "num_kv_shared_layers": 0}
GEMMA |= {"hidden_size_per_layer_input": 8, "pad_token_id": 0, "global_head_dim": 8}


def our_model(variant, fields):
    entry = lookup(variant)
    return make(entry.causal_lm, entry.config(**{**TINY, **fields}))


def other_model(name):
    if name != "gemma4":
        return make_host(name)
    torch.manual_seed(0)
    config = transformers.Gemma4TextConfig(**GEMMA)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def batches():
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 61, (3, 10), generator=draw)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    return [ids, {"input_ids": ids[:2], "attention_mask": mask[:2]}]


def check_hidden_states(model):
    """Capture, compare with the model's own hidden states, and return what was captured."""
    results = list(capture(model, batches()))
    for batch, captured in zip(batches(), results, strict=True):
        inputs = batch if isinstance(batch, dict) else {"input_ids": batch}
        with torch.no_grad():
            out = model(**inputs, output_hidden_states=True, use_cache=False)
        assert captured.mask.sum() == inputs.get("attention_mask", inputs["input_ids"] > 0).sum()
        # The last of the model's own hidden states has gone through the final norm.
        for hidden, expected in zip(captured.hidden[:-1], out.hidden_states[1:-1], strict=True):
            np.testing.assert_array_equal(hidden, expected)
        assert len(captured.hidden) == len(captured.routed) == 4
        assert all(routed.dtype == np.float32 for routed in captured.routed)
    return results


@pytest.mark.parametrize(
    ("variant", "fields"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_routed_values_are_what_the_memory_returns(variant, fields):
    model, returned = our_model(variant, fields), []
    check_hidden_states(model)
    for layer in model.model.layers:
        layer.self_attn.memory.register_forward_hook(lambda *args: returned.append(args[2][1]))
    for captured in capture(model, batches()[:1]):
        for routed, value in zip(captured.routed, returned, strict=True):
            np.testing.assert_array_equal(routed, value.transpose(1, 2).flatten(2).numpy())


@pytest.mark.parametrize(
    ("name", "attached"),
    # Gemma 2 has eager attention alone, which calls no function that could be watched.
    [(name, attached) for attached in (False, True) for name in DECODERS if name != "gemma2"]
    + [("gemma4", False)],
)
def test_values_are_those_that_attention_is_given(name, attached):
    model = other_model(name)
    if attached:
        shake_routers(layermem.attach(model))
    check_hidden_states(model)
    model.set_attn_implementation("sdpa")
    functions, given = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS, []
    original = functions["sdpa"]

    def spy(module, query, key, value, *args, **kwargs):
        given.append(value.transpose(1, 2).flatten(2))
        return original(module, query, key, value, *args, **kwargs)

    functions["sdpa"] = spy
    try:
        (captured,) = capture(model, batches()[:1])
    finally:
        del functions["sdpa"]
    for routed, value in zip(captured.routed, given, strict=True):
        np.testing.assert_allclose(routed, value.numpy(), rtol=1e-5, atol=1e-7)


def test_attached_memory_behind_an_adapter_routes_the_values():
    peft = pytest.importorskip("peft")
    model = layermem.attach(make_host("llama"))
    routers = [layer.self_attn.memory for layer in model.model.layers[1:]]
    for router in routers:
        torch.nn.init.normal_(router.weight)
    # The projection is another one than that which the attachment has its hook on.
    config = peft.LoraConfig(target_modules=["v_proj"], init_lora_weights=False)
    model, raw = peft.get_peft_model(model, config).eval().base_model.model, []
    for layer in model.model.layers:
        layer.self_attn.v_proj.register_forward_hook(
            lambda *args: raw.append(args[2].unflatten(-1, (2, -1))), prepend=True
        )
    (captured,) = capture(model, batches()[:1])
    for i, router in enumerate(routers, start=1):
        weights = router.weight.detach().unflatten(1, (i + 1, 2))
        expected = torch.einsum("rsq,sbtqe->btre", weights, torch.stack(raw[: i + 1])).flatten(2)
        np.testing.assert_allclose(captured.routed[i], expected, rtol=1e-4, atol=1e-5)


def test_outputs_are_not_altered_and_nothing_is_left_behind():
    model = our_model("lime", {})
    ids = batches()[0]
    with torch.no_grad():
        before = model(ids, use_cache=False).logits
    model.train()
    # Forwards of the caller between batches are not captured.
    for _ in capture(model, [ids, ids]):
        assert model.training and not any(module._forward_hooks for module in model.modules())
        model(torch.zeros_like(ids))
    with torch.no_grad():
        assert torch.equal(model.eval()(ids, use_cache=False).logits, before)


def test_lower_precision_arrays_of_their_own_and_what_has_no_values():
    model = our_model("lime", {}).bfloat16()
    (captured,) = capture(model, batches()[:1], kinds=("routed",))
    assert captured.routed[3].dtype == np.float32 and np.isfinite(captured.routed[3]).all()
    assert not captured.hidden
    # They do not change with the tensors of the model, of which float32 has no other copy.
    model = make_host("llama")
    (expected,) = capture(model, batches()[:1])
    model.model.norm.register_forward_pre_hook(lambda module, inputs: (inputs[0].zero_(),))
    (captured,) = capture(model, batches()[:1])
    np.testing.assert_array_equal(captured.hidden[-1], expected.hidden[-1])
    with pytest.raises(ValueError):
        next(capture(torch.nn.Linear(2, 2), batches()))


def test_a_batch_holds_as_many_sequences_as_memory_allows():
    model = SimpleNamespace(config=SimpleNamespace(num_hidden_layers=16, hidden_size=2048))
    # 2 x 16 x 2048 x 128 numbers of 4 bytes are 2^25.
    assert sequences_at_once(model, 128) == 4 and sequences_at_once(model, 100_000) == 1


def test_lists_inside_a_layer_are_not_the_layers():
    """A layer of MUDD has four norms of its own, as many as there are layers here."""
    model = layermem.build("mudd", **TINY, pre_post_norm=True)
    assert decoder_layers(model) is model.model.layers
