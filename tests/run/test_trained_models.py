"""Checkpoints that commands take: runs, saved models, adapters; and what is refused of them."""

import shutil
from contextlib import nullcontext

import pytest
import torch
import transformers
from host_models import DECODERS, make_host, shake_routers
from safetensors.torch import load_file, save_file
from small_run import a_run
from tiny import TINY

from layermem.retrofit import attach, router_parameters, save_routers
from layermem_bench.config.run import Data
from layermem_bench.run.trained_models import (
    Lineage,
    Stage,
    check_causal,
    load_model,
    open_checkpoints,
    write_lineage,
)
from layermem_bench.run.training import train
from layermem_bench.tasks.registry import get_task
from layermem_bench.text.tokenizers import load_tokenizer


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return train(a_run(folder, max_steps=2), folder / "lime").path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A base with a tokenizer, its routers as an adapter, and both as a whole checkpoint."""
    path = tmp_path_factory.mktemp("attached")
    make_host("llama", vocab_size=300).save_pretrained(path / "base")
    model = transformers.LlamaForCausalLM.from_pretrained(path / "base")
    model = shake_routers(attach(model))
    save_routers(model, path / "adapter")
    model.save_pretrained(path / "whole")
    for name in ("base", "whole"):
        load_tokenizer("bytes").save_pretrained(path / name)
    return path


def test_a_base_an_adapter_and_the_whole_are_the_models_in_memory(folder):
    base = transformers.LlamaForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    ids = torch.randint(257, (4, 16))
    opened = open_checkpoints([str(folder / name) for name in ("base", "adapter", "whole")])
    with torch.no_grad():
        expected = [base(ids).logits.clone()]
        expected += [shake_routers(attach(base)).eval()(ids).logits] * 2
        for checkpoint, logits in zip(opened, expected, strict=True):
            assert torch.equal(load_model(checkpoint, with_head=True)(ids).logits, logits)
    half = load_model(opened[1], dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16 and opened[1].base == str(folder / "base")
    # Routers have 32 bits beside any base.
    assert {weight.dtype for weight in router_parameters(half)} == {torch.float32}


def test_a_model_of_the_hub_is_of_one_commit(hub_cache):
    """Its files are those of the moment when it was opened."""

    def push(seed):
        def save(path):
            make_host("llama", seed=seed, vocab_size=300).save_pretrained(path)
            load_tokenizer("bytes").save_pretrained(path)

        return hub_cache.push("org/model", save)

    first = push(1)
    (opened,) = open_checkpoints(["org/model"])
    second = push(2)
    (moved,) = open_checkpoints(["org/model"])
    assert [opened.revision, moved.revision] == [first, second]
    for checkpoint, seed in ((opened, 1), (moved, 2)):
        weight = load_model(checkpoint, with_head=True).lm_head.weight
        assert torch.equal(weight, make_host("llama", seed=seed, vocab_size=300).lm_head.weight)


@pytest.mark.parametrize("what", ["empty", "unended", "no tokenizer", "another tokenizer", "same"])
def test_what_cannot_be_opened_is_refused(what, run, tmp_path):
    if what == "unended":
        (tmp_path / "config.yaml").write_text("{}")
    elif what != "empty":
        make_host("llama", vocab_size=300).save_pretrained(tmp_path)
    if what == "another tokenizer":
        get_task("arithmetic").tokenizer().save_pretrained(tmp_path)
    other = run / ".." / "lime" if what == "same" else tmp_path
    expected = {"empty": "no model", "unended": "has not ended", "same": "one checkpoint"}
    with pytest.raises(ValueError, match=expected.get(what, "tokenizer")):
        open_checkpoints([str(run), str(other)])


def test_missing_weights_are_refused(run, tmp_path):
    name = "model.layers.1.mlp.down_proj.weight"
    path = shutil.copytree(run / "final", tmp_path / "half")
    weights = load_file(path / "model.safetensors")
    kept = {key: weight for key, weight in weights.items() if key != name}
    save_file(kept, path / "model.safetensors", metadata={"format": "pt"})
    (checkpoint,) = open_checkpoints([str(path)])
    with pytest.raises(ValueError, match=name):
        load_model(checkpoint)


@pytest.mark.parametrize("name", [*DECODERS, "bert", "roberta"])
def test_encoders_are_not_taken_for_decoders(name):
    """Both are classes of AutoModelForCausalLM, which lacks no weight of an encoder."""
    for model in (make_host(name), shake_routers(attach(make_host(name))).bfloat16()):
        with nullcontext() if name in DECODERS else pytest.raises(ValueError, match="no decoder"):
            check_causal(model)


@pytest.mark.parametrize(
    ("bos", "text", "before", "expected"),
    [
        ("a", None, None, "a"),
        (None, None, None, "b"),
        # Blocks of a run on text have the end token before each document.
        ("a", Data(), None, "b"),
        # What goes on from a model of others is read as that model is.
        ("a", Data(), "org/base", "a"),
        # Kept apart, documents have nothing before them from which their first token is learnt.
        ("a", Data(isolate_documents=True), None, None),
    ],
)
def test_what_stands_before_a_text_is_what_stood_there_in_training(
    bos, text, before, expected, tmp_path
):
    config = transformers.LlamaConfig(**TINY)
    write_lineage(config, Lineage(before=before, stages=(Stage(run_id="1", text=text),)))
    config.save_pretrained(tmp_path)
    tokenizer = load_tokenizer("bytes")
    tokenizer.bos_token, tokenizer.eos_token = "a", "b"
    tokenizer.save_pretrained(tmp_path)
    (checkpoint,) = open_checkpoints([str(tmp_path)])
    checkpoint.tokenizer.bos_token = bos
    ids = checkpoint.tokenizer.convert_tokens_to_ids(["a", "b"])
    assert checkpoint.predecessor == dict(zip("ab", ids, strict=True)).get(expected)
    assert checkpoint.goes_on == (before is not None)
