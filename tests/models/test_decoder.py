"""The decoder: equal to Hugging Face's LLaMA, honest with its buffer, clear about bad input."""

import copy
import gc
import weakref

import pytest
import torch
from tiny import TINY, make
from transformers import LlamaConfig, LlamaForCausalLM

from layermem import LimeConfig, LimeForCausalLM, PlainConfig, PlainForCausalLM
from layermem.ops.shared_buffer import using_naive

LLAMAS = {
    "gqa": {},
    "mha": {"num_key_value_heads": 4},
    "one-kv-head": {"num_key_value_heads": 1},
    "attention-bias": {"attention_bias": True},
    "mlp-bias": {"mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "wide-heads": {"head_dim": 24},
    "gelu": {"hidden_act": "gelu"},
    "padding": {"pad_token_id": 0},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "rope-linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0}},
    "rope-dynamic": {
        "rope_parameters": {"rope_type": "dynamic", "factor": 4.0},
        "max_position_embeddings": 8,
    },
    "rope-yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
    "rope-llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "rope-longrope": {
        "rope_parameters": {
            "rope_type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 1.3],
            "long_factor": [2.0, 2.1, 2.2, 2.3],
            "factor": 2.0,
            "original_max_position_embeddings": 8,
        }
    },
}


def llama_and_plain(fields, seed=0):
    """Build both from one seed, biases drawn too, since they start at zero."""
    fields = {**TINY, **fields}
    torch.manual_seed(seed)
    llama = LlamaForCausalLM(LlamaConfig(**copy.deepcopy(fields))).eval()
    torch.manual_seed(seed)
    plain = PlainForCausalLM(PlainConfig(**copy.deepcopy(fields))).eval()
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, llama.get_parameter(name)), name
        if name.endswith("bias"):
            with torch.no_grad():
                llama.get_parameter(name).normal_()
                parameter.copy_(llama.get_parameter(name))
    return llama, plain


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("fields", LLAMAS.values(), ids=LLAMAS.keys())
def test_plain_logits_equal_llamas(fields, implementation, ids):
    llama, plain = llama_and_plain(fields)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    for model in (llama, plain):
        model.set_attn_implementation(implementation)
    with torch.no_grad():
        ours = plain(ids, attention_mask=mask)
        theirs = llama(ids, attention_mask=mask)
    exact = 0.0 if implementation == "eager" else 1e-6
    torch.testing.assert_close(ours.logits, theirs.logits, rtol=0, atol=exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_plain_logits_equal_llamas_in_other_dtypes(dtype, ids):
    llama, plain = llama_and_plain({})
    # A cast rounds the frequencies of theirs, which a checkpoint loaded in this dtype has not.
    rotary = copy.deepcopy(llama.model.rotary_emb)
    llama.to(dtype).model.rotary_emb = rotary
    with torch.no_grad():
        ours, theirs = plain.to(dtype)(ids).logits, llama(ids).logits
    assert ours.dtype == dtype
    # Theirs falls to float32 inside norms and softmax, ours does not.
    close = 1e-6 if dtype == torch.float64 else 0
    torch.testing.assert_close(ours, theirs, rtol=0, atol=close)


@pytest.mark.parametrize("cast", [torch.nn.Module.bfloat16, torch.nn.Module.half])
def test_a_cast_model_is_the_model_loaded_in_that_dtype(cast, tmp_path, ids):
    """Its rotary frequencies are not rounded; at position 900 that would be a radian or more."""
    model = make(LimeForCausalLM, LimeConfig(**TINY))
    model.save_pretrained(tmp_path)
    ours = cast(model)
    loaded = LimeForCausalLM.from_pretrained(tmp_path, dtype=ours.dtype).eval()
    positions = torch.arange(900, 900 + ids.shape[1])[None].expand_as(ids)
    with torch.no_grad():
        got, expected = (m(ids, position_ids=positions).logits for m in (ours, loaded))
    assert torch.equal(got, expected)
    rotary = ours.double().model.rotary_emb
    assert torch.equal(rotary.inv_freq, rotary.compute_default_rope_parameters(ours.config)[0])


def test_float64_is_float64_throughout(ids):
    """Two orders of one batch agree to float64's rounding, not to float32's."""
    for attention in ("eager", "sdpa"):
        fields = {**TINY, "attn_implementation": attention}
        model = make(LimeForCausalLM, LimeConfig(**fields)).double()
        with torch.no_grad():
            shuffled = torch.cat([model(ids[i : i + 1]).logits for i in range(3)])
            torch.testing.assert_close(model(ids).logits, shuffled, rtol=0, atol=1e-13)


def test_plain_gradients_equal_llamas(ids):
    llama, plain = llama_and_plain({})
    for model in (llama, plain):
        model.train().set_attn_implementation("eager")
        model(ids, labels=ids).loss.backward()
    for name, parameter in plain.named_parameters():
        expected = llama.get_parameter(name).grad
        torch.testing.assert_close(parameter.grad, expected, rtol=0, atol=1e-7, msg=name)


@pytest.mark.parametrize(
    ("ends", "learnt"),
    [
        ({}, False),
        ({"eos_token_id": 0}, True),
        ({"eos_token_id": [2, 0]}, True),
        ({"bos_token_id": 0}, True),
    ],
    ids=["alone", "end", "one of the ends", "beginning"],
)
def test_a_padding_token_that_begins_or_ends_texts_is_learnt(ends, learnt, ids):
    """What follows it would else be predicted from nothing: every token as likely."""
    model = make(PlainForCausalLM, PlainConfig(**TINY, pad_token_id=0, **ends)).train()
    ids = ids.index_fill(1, torch.tensor([0]), 0)
    model(ids, labels=ids).loss.backward()
    row = model.model.embed_tokens.weight.grad[0]
    assert bool(row.any()) == learnt
    assert (model(ids[:, :1]).logits.std() > 0) == learnt


def test_a_slot_lives_no_longer_than_its_last_reader(ids):
    """Where slots go from layer to layer, a windowed router's old ones are freed in the forward."""
    config = LimeConfig(**{**TINY, "num_hidden_layers": 6}, router="last", router_window=2)
    model = make(LimeForCausalLM, config)
    born, alive = [], []

    def note(_, __, output):
        gc.collect()
        alive.append(sum(ref() is not None for ref in born))
        born.append(weakref.ref(output[2]))

    for layer in model.model.layers:
        layer.self_attn.register_forward_hook(note)
    with torch.no_grad(), using_naive():
        model(ids, use_cache=False)
    assert alive == [0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("given", ["both", "neither"])
def test_exactly_one_input(given, ids):
    model = make(LimeForCausalLM, LimeConfig(**TINY))
    inputs = {"input_ids": ids, "inputs_embeds": model.get_input_embeddings()(ids)}
    with pytest.raises(ValueError, match=f"exactly one .* got {given}"):
        model(**(inputs if given == "both" else {}))


@pytest.mark.parametrize("kept", ["last", "rows", "mask", "indices"])
def test_logits_to_keep(kept, ids):
    model = make(LimeForCausalLM, LimeConfig(**TINY))
    with torch.no_grad():
        full = model(ids).logits
        mask = torch.arange(11).expand(3, 11) % 3 == 0
        choice, expected = {
            "last": (2, full[:, -2:]),
            "indices": (torch.tensor([1, 4]), full[:, [1, 4]]),
            "rows": (
                torch.tensor([[1, 2], [3, 4], [5, 6]]),
                torch.stack([full[0, 1:3], full[1, 3:5], full[2, 5:7]]),
            ),
            "mask": (mask, full[mask]),
        }[kept]
        torch.testing.assert_close(model(ids, logits_to_keep=choice).logits, expected)
