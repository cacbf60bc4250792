"""`layermem train --host.model`: from a model of transformers to its run folder."""

import itertools
import shutil

import pytest
import torch
from host_models import ARMS, make_host, shake_routers
from safetensors.torch import load_file
from small_run import Interrupted, a_run, assert_same_end, interrupt, stop_at
from transformers import AutoModelForCausalLM

from layermem.retrofit import attach, load_attached
from layermem_bench import cli
from layermem_bench.cli.options import resolve_run
from layermem_bench.config.run import Data, Host, Model, Run
from layermem_bench.presets import get_preset
from layermem_bench.run.folder import RunFolder, read_config, recorded_run
from layermem_bench.run.learning import TextLearning, order_of
from layermem_bench.run.setup import load_host
from layermem_bench.run.training import train
from layermem_bench.studies.gathering import gather_runs
from layermem_bench.text.tokenizers import load_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tiny models with a tokenizer of bytes, and text."""
    path = tmp_path_factory.mktemp("finetuning")
    tokens = {"vocab_size": 257, "bos_token_id": 256, "eos_token_id": 256}
    for name in ("llama", "gpt2", "bert"):
        for saved in (make_host(name, **tokens), load_tokenizer("bytes")):
            saved.save_pretrained(path / name)
    # Its text is made where it is asked for.
    a_run(path)
    return path


def arguments(folder, *more, base="llama", steps=6):
    """Return the command's arguments for a run of seconds."""
    text = ["--data.source", str(folder / "words.jsonl"), "--data.validation-share", "0.2"]
    sizes = ["--data.block-size", "24", "--optim.batch-size", "8", "--compute.micro-batch", "4"]
    often = ["--max-steps", str(steps), "--eval-every", "3", "--compute.precision", "float32"]
    cache = ["--data.cache", str(folder / "cache")]
    return ["train", "--host.model", str(folder / base), *text, *sizes, *often, *cache, *more]


def finetuned(folder, out, *more, **changes):
    cli.main([*arguments(folder, *more, **changes), "--out", str(out)])
    return RunFolder(out)


@pytest.fixture(scope="module")
def arms(folder):
    """The four arms of one host, by name, and routers with a second seed."""
    return {name: finetuned(folder, folder / "arms" / name, *o) for name, o in ARMS.items()}


def weights_of(path):
    return load_file(path / "model.safetensors")


def test_each_arm_starts_as_its_host_learns_and_trains_what_it_says(folder, arms):
    before = weights_of(folder / "llama")
    starts, changed = set(), {}
    for name, run in arms.items():
        rows = [row for row in run.rows() if "val_loss" in row]
        assert [row["step"] for row in rows] == [0, 3, 6]
        assert rows[-1]["val_loss"] < rows[0]["val_loss"], name
        starts.add(rows[0]["val_loss"])
        after = weights_of(run.final)
        changed[name] = {key for key in before if not torch.equal(before[key], after[key])}
        assert any(".memory." in key for key in after) == (name in ("routers", "everything"))
    assert len(starts) == 1 and changed["routers"] == set()
    projections = {f"layers.{i}.self_attn.{p}_proj" for i in range(4) for p in "kv"}
    assert changed["lora"] == {f"model.{name}.weight" for name in projections}
    assert len(changed["plain"]) == len(changed["everything"]) == len(before)
    rows = [row for row in arms["everything"].rows() if "loss" in row]
    assert rows[0]["router_lr"] == pytest.approx(5e-3) and rows[0]["lr"] == pytest.approx(5e-5)
    assert "router_norm" in rows[0] and "router_norm" not in arms["plain"].rows()[1]


def test_merged_lora_has_the_loss_that_was_validated(folder, arms, tmp_path):
    run, options = arms["lora"], ("--host.memory", "none", "--host.train", "all")
    again = finetuned(folder, tmp_path / "on", *options, base=str(run.final), steps=1).rows()[0]
    assert again["val_loss"] == pytest.approx(run.rows()[-1]["val_loss"], rel=1e-6)


@pytest.mark.parametrize("kind", ["routers", pytest.param("lora", marks=pytest.mark.slow)])
def test_a_run_that_was_interrupted_ends_as_one_left_alone(kind, folder, tmp_path, monkeypatch):
    options = [*ARMS[kind], "--save-every", "2"]
    whole = finetuned(folder, tmp_path / "whole", *options)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        stop_at(patch, 5, interrupt)
        finetuned(folder, tmp_path / "part", *options)
    cli.main(["train", str(tmp_path / "part"), "--resume"])
    assert_same_end(whole, RunFolder(tmp_path / "part"))


@pytest.mark.parametrize("kind", ["routers", "lora"])
def test_fused_projections_are_trained(kind, folder, tmp_path):
    run = finetuned(folder, tmp_path / "out", *ARMS[kind], base="gpt2", steps=2)
    rows = [row["val_loss"] for row in run.rows() if "val_loss" in row]
    assert rows[-1] < rows[0]
    before, after = weights_of(folder / "gpt2"), weights_of(run.final)
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert len(changed) == (4 if kind == "lora" else 0)
    assert all(key.endswith("c_attn.weight") for key in changed)


def test_a_model_of_the_hub_is_recorded_by_its_commit(hub_cache, folder, tmp_path):
    def push():
        return hub_cache.push("org/base", lambda path: shutil.copytree(folder / "llama", path))

    def begun(name):
        command = arguments(folder, "--host.train", "routers", steps=2)
        command[command.index("--host.model") + 1] = "org/base"
        cli.main([*command, "--save-every", "1", "--out", str(tmp_path / name)])
        return RunFolder(tmp_path / name)

    first = push()
    run = begun("first")
    assert read_config(run.config)[1]["weights"] == first
    second = push()
    assert read_config(begun("second").config)[1]["weights"] == second != first
    # Seeds that start from two commits are not compared.
    with pytest.raises(ValueError, match="weights of org/base"):
        gather_runs([run.path, tmp_path / "second"])
    # Nor does a run go on from another commit than it began with.
    run.final.rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="weights"):
        train(recorded_run(run), run.path, resume=True)


def test_lora_has_at_least_as_many_parameters_as_routers(folder):
    host = Host(model=str(folder / "llama"), train="lora", memory="none")
    lora = load_host(Run(variant="host", host=host, data=Data(block_size=24)))
    routers = attach(make_host("llama"))
    ours, theirs = (
        sum(p.numel() for n, p in model.named_parameters() if mark in n)
        for model, mark in ((lora, "lora_"), (routers, ".memory."))
    )
    kinds = (f"layers.{i}.self_attn.{p}_proj" for i in range(4) for p in "kv")
    a_rank = sum(sum(lora.get_submodule(f"model.{name}").weight.shape) for name in kinds)
    assert theirs <= ours < theirs + a_rank
    assert ours == sum(p.numel() for p in lora.parameters() if p.requires_grad)


def test_a_checkpoint_with_memory_is_gone_on_with(folder, tmp_path, monkeypatch):
    base = AutoModelForCausalLM.from_pretrained(folder / "llama")
    shake_routers(attach(base)).save_pretrained(tmp_path / "attached")
    load_tokenizer("bytes").save_pretrained(tmp_path / "attached")
    run = finetuned(folder, tmp_path / "out", base=str(tmp_path / "attached"), steps=1)
    start, end = (load_attached(path) for path in (tmp_path / "attached", run.final))
    ours, theirs = (m.model.layers[3].self_attn.memory.weight for m in (end, start))
    assert 0 < (ours - theirs).abs().max() < 0.01
    # It comes with its memory, whatever the run asks for; one of the hub cannot be compared.
    host = Host(model=str(tmp_path / "attached"), train="all", memory="none")
    with pytest.raises(ValueError, match="host.memory"):
        load_host(Run(variant="host", host=host))
    monkeypatch.setattr("layermem.retrofit.loading.is_attached", lambda _: False)
    with pytest.raises(ValueError, match="download it"):
        load_host(Run(variant="host", host=host))


@pytest.mark.parametrize(
    ("base", "options", "named"),
    [
        ("bert", [], "no decoder"),
        ("nowhere", [], "nowhere"),
        ("llama", ["--data.block-size", "128"], "data.block_size"),
        ("llama", ["--task.name", "arithmetic"], "data.source"),
    ],
)
def test_what_cannot_be_trained_is_refused(base, options, named, folder, tmp_path):
    with pytest.raises(SystemExit, match=named):
        finetuned(folder, tmp_path / "out", *options, base=base)
    assert not list(tmp_path.glob("out/final"))


@pytest.mark.parametrize("base", ["llama", "gpt2"])
def test_a_row_has_the_mean_over_predicted_tokens(base, folder, tmp_path):
    """transformers counts the first token of GPT-2's sequences too, and its loss shifts labels."""
    options = ["--host.memory", "none", "--host.train", "all", "--compute.micro-batch", "2"]
    ended = finetuned(folder, tmp_path / "run", *options, base=base, steps=1)
    run = recorded_run(ended)
    data = TextLearning(run).train_data
    picked = itertools.islice(
        order_of(len(data), run.optim.batch_size, run.seed), run.optim.batch_size
    )
    ids = torch.stack([data[index]["input_ids"] for index in picked])
    model = AutoModelForCausalLM.from_pretrained(folder / base).eval()
    with torch.no_grad():
        logits = model(ids).logits[:, :-1].flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten())
    (loss,) = (row["loss"] for row in ended.rows() if "loss" in row)
    assert loss == pytest.approx(float(expected), rel=1e-5)


def test_a_preset_gives_way_to_the_model_and_keeps_what_it_learns(folder):
    """The decoder that it describes is not trained; its task, steps and rates are."""
    model = str(folder / "llama")
    run = resolve_run(cli.parse(["train", "tiny-aet-4", "--host.model", model]))
    preset = get_preset("tiny-aet-4")
    assert (run.variant, run.host.model, run.model) == ("host", model, Model())
    assert (run.task, run.max_steps, run.optim) == (preset.task, preset.max_steps, preset.optim)
    alone = resolve_run(cli.parse(["train", f"--host.model={model}", "--host.train", "all"]))
    assert (alone.data, alone.optim.lr, alone.optim.weight_decay) == (Data(), 5e-5, 0.0)
