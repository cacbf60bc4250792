"""Test that checkpoints that cannot be analyzed, or not side by side, are refused."""

import json
import shutil

import pytest
import torch
import transformers
from host_models import DECODERS, ENCODERS, make_host, shake_routers
from safetensors.torch import load_file, save_file
from small_run import a_run
from tiny import TINY
from tokenizers import Tokenizer, models, pre_tokenizers

from layermem.retrofit import attach
from layermem_bench import cli
from layermem_bench.analysis import checkpoints
from layermem_bench.analysis.checkpoints import Checkpoint, load_final, load_model
from layermem_bench.analysis.earlier_stages import (
    Lineage,
    stage_of,
    write_lineage,
)
from layermem_bench.config.run import Task
from layermem_bench.data.document_hashes import Sketch
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.tasks.registry import get_task
from layermem_bench.train.run import train

SMALL = ["--sequences", "6", "--length", "24", "--each", "6", "--words", "w1", "w2", "w3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("analyze")


@pytest.fixture(scope="module")
def run(folder):
    return train(a_run(folder, max_steps=2), folder / "lime").path


def test_broken_weights_another_tokenizer_and_an_unfinished_run_are_refused(run, folder, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(run / "final")
    torch.nn.init.constant_(model.model.layers[1].mlp.down_proj.weight, float("nan"))
    model.save_pretrained(tmp_path / "broken")
    load_tokenizer("bytes").save_pretrained(tmp_path / "broken")
    options = ["--text", str(folder / "words.jsonl"), *SMALL, "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="not finite"):
        cli.main(["analyze", str(tmp_path / "broken"), *options])
    other = a_llama(tmp_path / "other", get_task("arithmetic").tokenizer())
    with pytest.raises(SystemExit, match="different tokenizers"):
        cli.main(["analyze", str(run), "--against", str(other), *options])
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match=r"no model at .*empty: expected a run folder"):
        cli.main(["analyze", str(tmp_path / "empty"), *options])
    unended = tmp_path / "unended"
    unended.mkdir()
    (unended / "config.yaml").write_text("{}")
    with pytest.raises(SystemExit, match="has not ended"):
        cli.main(["analyze", str(unended), *options])


def a_llama(path, tokenizer):
    """Save a small model of transformers with a tokenizer of at most 300 tokens."""
    sizes = {**TINY, "vocab_size": 300, "max_position_embeddings": 128}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_missing_weights_are_refused(run, folder, tmp_path):
    path = a_llama(tmp_path / "half", load_tokenizer("bytes"))
    weights = load_file(path / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "layers.1." not in name}
    save_file(kept, path / "model.safetensors", metadata={"format": "pt"})
    options = ["--text", str(folder / "words.jsonl"), *SMALL, "--out", str(tmp_path / "out")]
    with pytest.raises(
        SystemExit, match=r"half lacks 9 of the model's weights, such as model\.layers\.1"
    ):
        cli.main(["analyze", str(path), *options])


def test_weights_of_more_layers_than_the_config_has_are_refused(run, tmp_path):
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    load_tokenizer("bytes").save_pretrained(tmp_path)
    (checkpoint,) = checkpoints.open_checkpoints([str(tmp_path)])
    with pytest.raises(ValueError, match=r"weights of layers, such as model.layers.2.*no place"):
        load_model(checkpoint)


@pytest.mark.parametrize(
    ("key", "is_refused"),
    [
        ("model.layers.0.self_attn.masked_bias", False),
        ("model.layers.0.self_attn.k_scale", False),
        ("model.mtp_layers.0.weight", False),
        ("score.weight", False),
        ("model.layers.0.mlp.up_proj.bias", True),
        ("model.layers.4.mlp.up_proj.weight", True),
    ],
)
def test_of_other_weights_those_that_the_model_computed_with_are_refused(key, is_refused, tmp_path):
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY)).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), key: torch.ones(3)}, file, metadata={"format": "pt"})
    load_tokenizer("bytes").save_pretrained(tmp_path)
    (checkpoint,) = checkpoints.open_checkpoints([str(tmp_path)])
    if is_refused:
        with pytest.raises(ValueError, match=f"1 weights of layers, such as {key}"):
            load_model(checkpoint)
    else:
        load_model(checkpoint)


def test_tokenizers_that_use_one_vocabulary_in_two_ways_are_refused(run, folder, tmp_path):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    numbers = {piece: i for i, piece in enumerate((*letters, "w1", "Ġw", "<end>"))}

    def merging(*pairs):
        tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=list(pairs)))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>"
        )

    ours = a_llama(tmp_path / "ours", merging(("w", "1")))
    theirs = a_llama(tmp_path / "theirs", merging(("Ġ", "w")))
    options = ["--text", str(folder / "words.jsonl"), *SMALL, "--out", str(tmp_path / "out")]
    with pytest.raises(
        SystemExit, match="the tokenizers of ours and theirs have the same vocabulary, but split"
    ):
        cli.main(["analyze", str(ours), "--against", str(theirs), *options])


def as_decoder(model, path, dtype=torch.float32):
    """Save a model, and load it to predict the next token."""
    model.save_pretrained(path)
    checkpoint = Checkpoint(name="m", location=path, tokenizer=None, run=None)
    return load_model(checkpoint, with_head=True, dtype=dtype)


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_of_all_hosts_predict_the_next_token(name, tmp_path):
    as_decoder(make_host(name), tmp_path / "bare")
    as_decoder(shake_routers(attach(make_host(name))), tmp_path / "attached", torch.bfloat16)


@pytest.mark.parametrize("name", [n for n in ENCODERS if not n.startswith("deberta")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_encoders_are_not_taken_for_decoders(name, dtype, tmp_path):
    # Both are classes of AutoModelForCausalLM, which lacks no weight of such a checkpoint.
    with pytest.raises(ValueError, match="is no decoder"):
        as_decoder(make_host(name), tmp_path / "bare", dtype)
    with pytest.raises(ValueError, match="is no decoder"):
        as_decoder(shake_routers(attach(make_host(name))), tmp_path / "attached", dtype)


@pytest.mark.parametrize("which", ["a weight", "the head"])
def test_the_final_model_of_a_run_has_all_weights(run, which, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(run / "final")
    model.save_pretrained(tmp_path)
    name = "lm_head.weight" if which == "the head" else "model.layers.1.mlp.down_proj.weight"
    weights = load_file(tmp_path / "model.safetensors")
    save_file({key: w for key, w in weights.items() if key != name}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=f"lacks 1 .*weights.*, such as {name}"):
        load_final(tmp_path)


@pytest.mark.parametrize(
    ("bos", "task", "expected"),
    [
        (5, "no run", 5),
        (None, "no run", 6),
        # Blocks of a run on text have the end token before each document.
        (5, None, 6),
        (5, "arithmetic", 5),
        # What goes on from a model of others is read as that model is.
        (5, "of others", 5),
        # Kept apart, documents have nothing before them from which their first token is learnt.
        (5, "isolated", None),
    ],
)
def test_what_stands_before_a_text_is_what_stood_there_in_training(bos, task, expected, tmp_path):
    class Ids:
        bos_token_id, eos_token_id = bos, 6

    run = None
    if task == "isolated":
        run = a_run(tmp_path, data={"isolate_documents": True})
    elif task not in ("no run", "of others"):
        run = a_run(tmp_path, task=Task(name=task))
    config = transformers.LlamaConfig(**TINY)
    if task == "of others":
        stages = (stage_of(a_run(tmp_path), Sketch()),)
        write_lineage(config, Lineage(before="org/base", stages=stages))
    config.save_pretrained(tmp_path)
    lineage = checkpoints._lineage_of(tmp_path)
    checkpoint = Checkpoint(
        name="a",
        location=tmp_path,
        tokenizer=Ids(),
        run=run,
        text=checkpoints._text_of(run, lineage),
        goes_on=checkpoints._goes_on(lineage),
    )
    assert checkpoint.predecessor == expected
    assert checkpoint.goes_on == (task == "of others")


def test_a_model_and_what_was_made_from_it_are_read_alike(run, tmp_path):
    """The same weights, saved by a run that went on from a model of others, and as that model."""
    tokenizer = load_tokenizer("bytes")
    tokenizer.bos_token = "a"
    base, tuned = (shutil.copytree(run / "final", tmp_path / name) for name in ("base", "tuned"))
    for folder, lineage in (
        (base, Lineage()),
        (tuned, Lineage(before="base", stages=(stage_of(a_run(tmp_path), Sketch()),))),
    ):
        tokenizer.save_pretrained(folder)
        config = transformers.AutoConfig.from_pretrained(folder)
        write_lineage(config, lineage)
        config.save_pretrained(folder)
    opened = checkpoints.open_checkpoints([str(base), str(tuned)])
    assert [each.text is None for each in opened] == [True, False]
    assert {each.predecessor for each in opened} == {tokenizer.bos_token_id}
