"""SmolLM2 135M with layer memory: outputs, training, files, half precision, compilers."""

import copy

import pytest
import torch
from real_weights import CLOSE, in_new_interpreter, perturb
from transformers import AutoModelForCausalLM, AutoTokenizer

import layermem
from layermem.models.card import CARD
from layermem.retrofit import load_attached, router_parameters, save_routers, trainable
from layermem_bench.cli import main

pytestmark = pytest.mark.real
# Errors of logits that were measured: 0.13 on average and 1.1 at most without memory, 0.12 and 1.1
# with it, where logits are between -30 and 40.
BFLOAT16_MEAN, BFLOAT16_MOST = 0.3, 3.0
TEXTS = [
    "The capital of France is Paris, and the capital of Italy is Rome. Both lie on rivers.",
    "Water boils at 100 degrees Celsius.\n\n  2 + 2 = 4",
]


@pytest.fixture(scope="module")
def tokenizer(smollm2_folder):
    return AutoTokenizer.from_pretrained(smollm2_folder)


@pytest.fixture(scope="module")
def base(smollm2_folder):
    return AutoModelForCausalLM.from_pretrained(smollm2_folder)


@pytest.fixture
def model(base):
    """The model with memory, which is removed afterwards."""
    yield layermem.attach(base)
    if "_layer_memory" in vars(base.model):
        layermem.detach(base)
    for weight in base.parameters():
        weight.requires_grad_(True)


@pytest.fixture(scope="module")
def inputs(tokenizer):
    """Two texts, the shorter one padded at the left."""
    return tokenizer(TEXTS, padding=True, padding_side="left", return_tensors="pt")


def test_the_model_is_the_one_that_was_published(base, tokenizer, smollm2_folder):
    assert base.num_parameters() == 134_515_008
    assert (base.dtype, base.config.num_hidden_layers) == (torch.float32, 30)
    # Its pre-tokenizer takes digits one by one, also after white space.
    assert tokenizer.tokenize("x\n\n12") == ["x", "ĊĊ", "1", "2"]
    for text in TEXTS:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert "license: apache-2.0" in (smollm2_folder / CARD).read_text(encoding="utf-8")


@torch.no_grad()
def test_attaching_changes_no_bit_and_detaching_leaves_nothing(base, inputs):
    names = list(base.state_dict())
    before = base(**inputs).logits
    model = layermem.attach(base)
    assert torch.equal(model(**inputs).logits, before)
    assert (perturb(model)(**inputs).logits - before).abs().max() > 0.1
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
    save_routers(perturb(model), tmp_path / "routers")
    assert (tmp_path / "routers" / "routers.safetensors").stat().st_size < 50_000
    torch.save(dict(inputs), tmp_path / "inputs.pt")
    paths = (tmp_path / "routers", smollm2_folder, tmp_path / "inputs.pt", tmp_path / "logits.pt")
    in_new_interpreter(LOAD, *paths)
    with torch.no_grad():
        assert torch.equal(torch.load(tmp_path / "logits.pt"), model(**inputs).logits)


def test_lora_and_memory_are_one_adapter(base, inputs, smollm2_folder, tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=4,
        target_modules=["q_proj", "v_proj"],
        modules_to_save=["memory"],
        task_type="CAUSAL_LM",
    )
    adapted = peft.get_peft_model(layermem.attach(copy.deepcopy(base)), config)
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=5e-3)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = adapted(**inputs, labels=inputs["input_ids"]).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    adapted.eval().save_pretrained(tmp_path)
    with torch.no_grad():
        expected = adapted(**inputs).logits
        del adapted, optimizer, loss
        bare = AutoModelForCausalLM.from_pretrained(smollm2_folder)
        again = peft.PeftModel.from_pretrained(layermem.attach(bare), tmp_path).eval()
        torch.testing.assert_close(again(**inputs).logits, expected, **CLOSE)


@torch.no_grad()
def test_bfloat16_is_as_exact_as_without_memory(base, smollm2_folder, inputs, tmp_path):
    """Identity routers change no bit there either; the rest is what bfloat16 does to the model."""
    exact = perturb(layermem.attach(copy.deepcopy(base)))
    save_routers(exact, tmp_path / "routers")
    seen = inputs["attention_mask"].bool()
    half = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.bfloat16)
    bare = half(**inputs).logits
    plain_error = (bare.float() - base(**inputs).logits)[seen].abs()
    layermem.attach(half)
    assert torch.equal(half(**inputs).logits, bare)
    del half
    attached = load_attached(tmp_path / "routers", base=smollm2_folder, dtype=torch.bfloat16)
    error = (attached(**inputs).logits.float() - exact(**inputs).logits)[seen].abs()
    assert error.mean() < BFLOAT16_MEAN and error.max() < BFLOAT16_MOST
    assert error.mean() < 2 * plain_error.mean()


@torch.no_grad()
def test_a_compiled_model_computes_the_same(model, inputs):
    expected = perturb(model)(**inputs).logits
    compiled = torch.compile(model)
    torch.testing.assert_close(compiled(**inputs).logits, expected, **CLOSE)
    torch.compiler.reset()


@torch.no_grad()
def test_an_exported_model_computes_the_same(model, inputs):
    perturb(model)
    ids = inputs["input_ids"]
    exported = torch.export.export(model, (), {"input_ids": ids, "use_cache": False}).module()
    got = exported(input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(got, model(ids).logits, **CLOSE)


@torch.no_grad()
def test_converted_to_lime_it_computes_the_same(base, tokenizer, inputs, smollm2_folder, tmp_path):
    main(["models", "convert", str(smollm2_folder), str(tmp_path / "lime")])
    lime = AutoModelForCausalLM.from_pretrained(tmp_path / "lime")
    assert isinstance(lime, layermem.LimeForCausalLM)
    expected, seen = base(**inputs).logits, inputs["attention_mask"].bool()
    logits = lime(**inputs).logits

    torch.testing.assert_close(logits[seen], expected[seen], **CLOSE)
    lime.save_pretrained(tmp_path / "again")
    again = layermem.LimeForCausalLM.from_pretrained(tmp_path / "again")
    assert torch.equal(again(**inputs).logits, logits)
    words = AutoTokenizer.from_pretrained(tmp_path / "lime")
    assert words(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]
