"""SmolLM2 135M with layer memory: outputs, training, files, and what it writes."""

import pytest
import torch
from forked import run_code
from host_models import shake_routers
from transformers import AutoModelForCausalLM, AutoTokenizer

import layermem
from layermem.retrofit import router_parameters, save_routers, trainable
from layermem_bench.cli import main

pytestmark = pytest.mark.real
TEXTS = [
    "The capital of France is Paris, and the capital of Italy is Rome. Both lie on rivers.",
    "Water boils at 100 degrees Celsius.\n\n  2 + 2 = 4",
]
GREEDY = {"max_new_tokens": 12, "do_sample": False}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def tokenizer(smollm2_folder):
    return AutoTokenizer.from_pretrained(smollm2_folder, padding_side="left")


@pytest.fixture(scope="module")
def base(smollm2_folder):
    return AutoModelForCausalLM.from_pretrained(smollm2_folder)


@pytest.fixture
def model(base):
    """The model with memory, which is removed afterwards."""
    yield layermem.attach(base)
    layermem.detach(base)
    for weight in base.parameters():
        weight.requires_grad_(True)


@pytest.fixture(scope="module")
def inputs(tokenizer):
    """Two texts, the shorter one padded at the left."""
    return tokenizer(TEXTS, padding=True, return_tensors="pt")


def shaken(model):
    """Let the routers of an attached model read other layers too, a little; return the model."""
    return shake_routers(model, scale=0.01)


def test_the_model_is_the_one_that_was_published(base, tokenizer, smollm2_folder):
    assert base.num_parameters() == 134_515_008
    assert (base.dtype, base.config.num_hidden_layers) == (torch.float32, 30)
    # Its pre-tokenizer takes digits one by one, also after white space.
    assert tokenizer.tokenize("x\n\n12") == ["x", "ĊĊ", "1", "2"]
    for text in TEXTS:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert "license: apache-2.0" in (smollm2_folder / "README.md").read_text(encoding="utf-8")


@torch.no_grad()
def test_attaching_changes_no_bit_and_detaching_leaves_nothing(base, inputs):
    names = list(base.state_dict())
    before = base(**inputs).logits
    written = base.generate(**inputs, **GREEDY, num_beams=3)
    model = layermem.attach(base)
    assert torch.equal(model(**inputs).logits, before)
    assert torch.equal(model.generate(**inputs, **GREEDY, num_beams=3), written)
    assert (shaken(model)(**inputs).logits - before).abs().max() > 0.1
    layermem.detach(model)
    assert torch.equal(base(**inputs).logits, before)
    assert list(base.state_dict()) == names


def test_gradients_reach_routers_and_steps_lower_the_loss(model, inputs):
    assert trainable(model, "routers") == 9 * sum(range(2, 31))
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    optimizer = torch.optim.AdamW(router_parameters(model), lr=5e-3, weight_decay=0.0)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(**inputs, labels=labels).loss
        loss.backward()
        assert all(p.grad.isfinite().all() and p.grad.any() for p in router_parameters(model))
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1


LOAD = """
import sys, torch
from layermem.retrofit import load_attached
model = load_attached(sys.argv[1], base=sys.argv[2])
inputs = torch.load(sys.argv[3])
with torch.no_grad():
    torch.save(model(**inputs).logits, sys.argv[4])
"""


def test_routers_are_loaded_in_a_new_process(model, inputs, smollm2_folder, tmp_path):
    save_routers(shaken(model), tmp_path / "routers")
    assert (tmp_path / "routers" / "routers.safetensors").stat().st_size < 50_000
    torch.save(dict(inputs), tmp_path / "inputs.pt")
    paths = (tmp_path / "routers", smollm2_folder, tmp_path / "inputs.pt", tmp_path / "logits.pt")
    status, _, errors = run_code(LOAD, *map(str, paths), folder=tmp_path)
    assert status == 0, errors
    with torch.no_grad():
        assert torch.equal(torch.load(tmp_path / "logits.pt"), model(**inputs).logits)


@torch.no_grad()
def test_converted_to_lime_it_computes_the_same(base, tokenizer, inputs, smollm2_folder, tmp_path):
    main(["models", "convert", str(smollm2_folder), str(tmp_path / "lime")])
    lime = AutoModelForCausalLM.from_pretrained(tmp_path / "lime")
    assert isinstance(lime, layermem.LimeForCausalLM)
    expected, seen = base(**inputs).logits, inputs["attention_mask"].bool()
    # Logits are of size 10 to 30, and 30 layers of float32 sums lie between.
    torch.testing.assert_close(lime(**inputs).logits[seen], expected[seen], atol=1e-3, rtol=1e-3)
    words = AutoTokenizer.from_pretrained(tmp_path / "lime")
    assert words(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]


@pytest.mark.parametrize("cache", [{}, {"cache_implementation": "static", "disable_compile": True}])
def test_every_cache_holds_routed_keys(model, inputs, cache):
    expected = shaken(model).generate(**inputs, **GREEDY, use_cache=False)
    assert torch.equal(model.generate(**inputs, **GREEDY, **cache), expected)


def test_a_chat_answers_paris(model, tokenizer):
    prompt = tokenizer.apply_chat_template(
        QUESTION, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    written = model.generate(**prompt, max_new_tokens=16, do_sample=False)
    assert "Paris" in tokenizer.decode(written[0, prompt["input_ids"].shape[1] :])
