"""What a run starts from (a LLaMA, with memory or without, another run), and its precision."""

import shutil

import pytest
import torch
import yaml
from small_run import a_run
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from layermem_bench.config.computing import uses_bfloat16
from layermem_bench.run.setup import weights_digest
from layermem_bench.run.training import train
from layermem_bench.text.tokenizers import load_tokenizer


@pytest.fixture
def llama(tmp_path):
    torch.manual_seed(3)
    tokenizer = load_tokenizer("bytes")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3}
    config = LlamaConfig(vocab_size=len(tokenizer), num_attention_heads=2, **sizes)
    for saved in (LlamaForCausalLM(config), tokenizer):
        saved.save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def started(folder, source, variant, *options, lr=0.0):
    """Run one step from a saved model; no rate: its weights stay as they were."""
    run = a_run(
        folder,
        variant=variant,
        max_steps=1,
        save_every=0,
        model={"pretrained": str(source), "options": options},
        optim={"lr": lr, "router_lr": None if variant == "plain" else lr},
    )
    out = folder / f"{variant}-from-{'-'.join(source.relative_to(folder).parts)}-{lr}"
    return AutoModelForCausalLM.from_pretrained(train(run, out).final)


def test_a_run_starts_from_a_llama_with_memory_or_without(llama, tmp_path):
    ids = torch.arange(20)[None]
    expected = LlamaForCausalLM.from_pretrained(llama)(ids).logits
    plain = started(tmp_path, llama, "plain")
    lime = started(tmp_path, llama, "lime", "router=last", "router_window=2")
    for model in (plain, lime):
        assert torch.allclose(model(ids).logits, expected, atol=1e-6)
    assert (lime.config.router, lime.config.router_window) == ("last", 2)
    # What was trained goes on as it is, and is a LLaMA still where nothing was added.
    learnt = started(tmp_path, llama, "lime", lr=1e-2)
    again = started(tmp_path, tmp_path / "lime-from-llama-0.01" / "final", "lime")
    assert torch.equal(again(ids).logits, learnt(ids).logits)
    more = started(tmp_path, tmp_path / "plain-from-llama-0.0" / "final", "lime")
    assert torch.allclose(more(ids).logits, expected, atol=1e-6)
    for variant, *options in (("plain",), ("lime", "router=last")):
        with pytest.raises(ValueError, match="lime"):
            started(tmp_path, tmp_path / "lime-from-llama-0.01" / "final", variant, *options)


def test_weights_that_a_run_starts_from_are_part_of_what_it_records(llama, whole, tmp_path):
    def about(folder):
        return yaml.safe_load(folder.config.read_text())["about"]

    run = a_run(tmp_path, max_steps=2, save_every=1, keep=2, model={"pretrained": str(llama)})
    first = train(run, tmp_path / "first")
    assert about(first)["weights"] == weights_digest(str(llama))
    model = LlamaForCausalLM.from_pretrained(llama)
    torch.nn.init.normal_(model.lm_head.weight)
    model.save_pretrained(llama)
    # A run that has not ended does not go on as another one's.
    first.final.rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="other weights"):
        train(run, first.path, resume=True)
    # Without a checkpoint it begins again, from what is there now.
    shutil.rmtree(first.checkpoints)
    train(run, first.path, resume=True)
    assert about(first)["weights"] == weights_digest(str(llama))
    assert "weights" not in about(whole)


@pytest.mark.parametrize("native", [True, False])
def test_auto_takes_no_bfloat16_that_a_gpu_only_emulates(native, monkeypatch):
    """An older GPU computes in it, slower than in float32."""

    def is_supported(including_emulation=True):
        return native or including_emulation

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    assert uses_bfloat16("auto") is native
    assert uses_bfloat16("bfloat16") and not uses_bfloat16("float32")
