"""SmolLM2 135M with layer memory writes text: caches, beams, assistants, chat, pipelines."""

import pytest
import torch
from real_weights import perturb
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline
from transformers.utils import is_optimum_quanto_available

import layermem

pytestmark = pytest.mark.real
GREEDY = {"max_new_tokens": 12, "do_sample": False}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def tokenizer(smollm2_folder):
    return AutoTokenizer.from_pretrained(smollm2_folder, padding_side="left")


@pytest.fixture(scope="module")
def plain(smollm2_folder):
    """What the model writes without memory, by prompt."""
    return AutoModelForCausalLM.from_pretrained(smollm2_folder)


@pytest.fixture
def model(plain):
    """The model with memory, which is removed afterwards."""
    yield layermem.attach(plain)
    layermem.detach(plain)


@pytest.fixture(scope="module")
def prompts(tokenizer):
    texts = ["The capital of France is", "Once upon a time, in a village by the sea, there was"]
    return tokenizer(texts, padding=True, return_tensors="pt")


def test_memory_changes_no_text(plain, prompts):
    for options in ({}, {"num_beams": 3}):
        expected = plain.generate(**prompts, **GREEDY, **options)
        model = layermem.attach(plain)
        assert torch.equal(model.generate(**prompts, **GREEDY, **options), expected)
        layermem.detach(model)


@pytest.mark.parametrize("cache", ["dynamic", "static", "offloaded"])
def test_every_cache_holds_routed_keys(model, prompts, cache):
    if cache == "offloaded" and not torch.cuda.is_available():
        pytest.skip("transformers offloads a cache from a GPU only")
    options = {} if cache == "dynamic" else {"cache_implementation": cache, "disable_compile": True}
    expected = perturb(model).generate(**prompts, **GREEDY, use_cache=False)
    assert torch.equal(model.generate(**prompts, **GREEDY, **options), expected)


@pytest.mark.skipif(not is_optimum_quanto_available(), reason="needs optimum-quanto")
def test_a_quantised_cache_rounds_what_it_rounded_before(plain, prompts):
    # All tokens but the last four are rounded.
    settings = {"backend": "quanto", "nbits": 4, "residual_length": 4}
    options = {"cache_implementation": "quantized", "cache_config": settings, **GREEDY}
    expected = plain.generate(**prompts, **options)
    model = layermem.attach(plain)
    assert torch.equal(model.generate(**prompts, **options), expected)
    assert perturb(model).generate(**prompts, **options).shape == expected.shape
    layermem.detach(model)


def test_a_chat_answers_paris(model, tokenizer):
    prompt = tokenizer.apply_chat_template(
        QUESTION, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    written = model.generate(**prompt, max_new_tokens=16, do_sample=False)
    assert "Paris" in tokenizer.decode(written[0, prompt["input_ids"].shape[1] :])


def test_a_pipeline_answers_paris(model, tokenizer):
    chat = pipeline("text-generation", model=model, tokenizer=tokenizer)
    (answer,) = chat(QUESTION, max_new_tokens=16, do_sample=False)
    assert "Paris" in answer["generated_text"][-1]["content"]


def test_beams_of_a_model_that_reads_other_layers(model, prompts):
    options = {**GREEDY, "num_beams": 3, "num_return_sequences": 2}
    written = perturb(model).generate(**prompts, **options)
    assert torch.equal(written, model.generate(**prompts, **options, use_cache=False))


def test_an_assistant_of_pruned_routers_changes_no_text(model, tokenizer, smollm2_folder):
    prompt = tokenizer("Once upon a time", return_tensors="pt")
    expected = perturb(model).generate(**prompt, **GREEDY)
    assistant = layermem.LimeForCausalLM.from_llama(str(smollm2_folder)).eval()
    # Its routers are the identity: what they do not read is left out.
    assert all(row.sources == (row.layer,) for row in assistant.prune_routers(1))
    written = model.generate(**prompt, **GREEDY, assistant_model=assistant)
    assert torch.equal(written, expected)
