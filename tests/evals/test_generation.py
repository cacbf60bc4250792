"""Greedy generation in batches equals generation of one prompt at a time."""

import pytest
import torch
from tiny import TINY, make

from layermem.models.registry import lookup
from layermem_bench.evals.solving import greedy

SETTINGS = {"end": 1, "padding": 0, "max_new_tokens": 12, "batch_size": 4}


def a_model(name):
    variant = lookup(name)
    return make(variant.causal_lm, variant.config(**TINY))


def one_at_a_time(model, prompt):
    """Without cache, padding or batches."""
    ids = list(prompt)
    for _ in range(SETTINGS["max_new_tokens"]):
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        ids.append(int(logits.argmax()))
        if ids[-1] == SETTINGS["end"]:
            return ids[len(prompt) : -1]
    return ids[len(prompt) :]


@pytest.mark.parametrize(
    "fields",
    [
        {"suppress_tokens": list(range(2, 30))},
        {"min_new_tokens": 12},
        {"num_beams": 3, "repetition_penalty": 1.7},
    ],
    ids=str,
)
@torch.no_grad()
def test_what_the_models_own_generation_config_says_has_no_effect(fields):
    model = a_model("plain").eval()
    model.lm_head.weight[1] *= 3
    prompts = [[5, 6, 7], [8], [9, 10]]
    expected = greedy(model, prompts, **SETTINGS)
    own = model.generation_config
    for name, value in fields.items():
        setattr(own, name, value)
    assert greedy(model, prompts, **SETTINGS) == expected
    assert model.generation_config is own


@pytest.mark.parametrize("variant", ["plain", "lime"])
@torch.no_grad()
def test_batches_generate_what_prompts_alone_do(variant):
    model = a_model(variant).eval()
    # An end that comes now and then.
    model.lm_head.weight[1] *= 3
    draw = torch.Generator().manual_seed(0)
    vocabulary = model.config.vocab_size
    lengths = [3, 9, 1, 5, 5, 2, 7, 9, 4, 6, 3]
    prompts = [torch.randint(2, vocabulary, (n,), generator=draw).tolist() for n in lengths]
    expected = [one_at_a_time(model, prompt) for prompt in prompts]
    assert greedy(model, prompts, **SETTINGS) == expected
    assert len({len(row) for row in expected}) > 1, "some end early"


def test_no_prompts():
    assert greedy(a_model("lime"), [], **SETTINGS) == []
