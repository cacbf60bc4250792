"""Gemma 3 270M with layer memory: windows and one key-value head."""

import pytest
import torch
from real_weights import perturb
from transformers import AutoModelForCausalLM, AutoTokenizer

import layermem
from layermem.retrofit.attachment import attachment_of

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def model(gemma3_folder):
    return AutoModelForCausalLM.from_pretrained(gemma3_folder)


@pytest.fixture(scope="module")
def ids(gemma3_folder):
    """More tokens than a window has."""
    tokenizer = AutoTokenizer.from_pretrained(gemma3_folder)
    text = " ".join(f"The number {i} comes before {i + 1}." for i in range(60))
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    assert ids.shape[1] > 520
    return ids


@torch.no_grad()
def test_attaching_changes_no_bit(model, ids, gemma3_folder):
    assert (gemma3_folder / "NOTICE").is_file()
    assert (model.config.num_key_value_heads, model.config.sliding_window) == (1, 512)
    assert set(model.config.layer_types) == {"sliding_attention", "full_attention"}
    loss = model(ids, labels=ids).loss
    assert loss < 1.0
    before = model(ids, logits_to_keep=8).logits
    layermem.attach(model)
    assert attachment_of(model).shape.heads == 1
    assert torch.equal(model(ids, logits_to_keep=8).logits, before)
    perturb(model)
    assert (model(ids, logits_to_keep=8).logits - before).abs().max() > 0.1
    greedy = {"max_new_tokens": 4, "do_sample": False}
    cached = model.generate(ids, **greedy)
    assert torch.equal(cached, model.generate(ids, **greedy, use_cache=False))
    layermem.detach(model)
    assert torch.equal(model(ids, logits_to_keep=8).logits, before)
