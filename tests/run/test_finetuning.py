"""`layermem train --host.model`: from a model of transformers to its run folder."""

import itertools
import json
import shutil
from dataclasses import replace

import pytest
import torch
from host_models import ARMS, make_host, shake_routers
from safetensors.torch import load_file
from small_run import Interrupted, assert_same_end, interrupt, stop_at
from transformers import AutoModelForCausalLM, BartConfig, BartForCausalLM

from layermem.retrofit import attach, load_attached
from layermem_bench import cli
from layermem_bench.cli.starting_run import resolve_run
from layermem_bench.config.run import Data, Host, Model, Run, run_from_dict
from layermem_bench.presets import get_preset
from layermem_bench.run.folder import RunFolder, read_config, recorded_run
from layermem_bench.run.host_models import load_host
from layermem_bench.run.learning import TextLearning
from layermem_bench.run.sequences import order_of
from layermem_bench.run.training import train
from layermem_bench.studies.gathering import gather_runs
from layermem_bench.text.tokenizers import load_tokenizer

BASES = ("llama", "gpt2", "gpt_neox", "bert")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tiny models with a tokenizer of bytes, and text."""
    path = tmp_path_factory.mktemp("finetuning")
    tokens = {"vocab_size": 257, "bos_token_id": 256, "eos_token_id": 256}
    for name in BASES:
        make_host(name, **tokens).save_pretrained(path / name)
        load_tokenizer("bytes").save_pretrained(path / name)
    texts = [" ".join(f"w{(i * j) % 13}" for j in range(20)) for i in range(60)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (path / "words.jsonl").write_text(lines)
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


def test_each_arm_starts_as_its_host_and_learns(arms):
    starts = {}
    for name, run in arms.items():
        rows = [row for row in run.rows() if "val_loss" in row]
        assert [row["step"] for row in rows] == [0, 3, 6]
        assert rows[-1]["val_loss"] < rows[0]["val_loss"], name
        starts[name] = rows[0]["val_loss"]
    assert len(set(starts.values())) == 1


def test_only_what_is_said_is_trained(folder, arms):
    before = weights_of(folder / "llama")
    changed = {}
    for name, run in arms.items():
        after = weights_of(run.final)
        changed[name] = {key for key in before if not torch.equal(before[key], after[key])}
        assert any(".memory." in key for key in after) == (name in ("routers", "everything"))
    assert changed["routers"] == set()
    projections = {f"layers.{i}.self_attn.{p}_proj" for i in range(4) for p in "kv"}
    assert changed["lora"] == {f"model.{name}.weight" for name in projections}
    assert len(changed["plain"]) == len(changed["everything"]) == len(before)


@pytest.mark.slow
def test_the_final_model_has_the_loss_that_was_validated(folder, arms, tmp_path):
    for name, run in arms.items():
        base = str(run.final)
        again = finetuned(folder, tmp_path / name, *options_of(run), base=base, steps=1).rows()[0]
        assert again["val_loss"] == pytest.approx(run.rows()[-1]["val_loss"], rel=1e-6)


def options_of(run):
    host = recorded_run(run).host
    window = ["--host.window", str(host.window)] if host.window else []
    train = "all" if host.train == "lora" else host.train
    return ["--host.train", train, "--host.memory", host.memory, *window]


def test_routers_have_their_rate_and_no_decay(folder, arms):
    rows = [row for row in arms["everything"].rows() if "loss" in row]
    assert rows[0]["router_lr"] == pytest.approx(5e-3) and rows[0]["lr"] == pytest.approx(5e-5)
    assert "router_norm" in rows[0]
    assert "router_norm" not in arms["plain"].rows()[1]


@pytest.mark.parametrize("kind", ["routers", pytest.param("lora", marks=pytest.mark.slow)])
def test_a_run_that_was_interrupted_ends_as_one_left_alone(kind, folder, tmp_path, monkeypatch):
    options = [*ARMS[kind], "--save-every", "2"]
    whole = finetuned(folder, tmp_path / "whole", *options)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        stop_at(patch, 5, interrupt)
        finetuned(folder, tmp_path / "part", *options)
    with pytest.raises(SystemExit, match="--resume"):
        finetuned(folder, tmp_path / "part", *options)
    # By its own command, or by that of any run.
    if kind == "lora":
        part = finetuned(folder, tmp_path / "part", *options, "--resume")
    else:
        part = RunFolder(tmp_path / "part")
        cli.main(["train", "--config", str(part.config), "--out", str(part.path), "--resume"])
    assert_same_end(whole, part)


@pytest.mark.parametrize("base", ["gpt2", pytest.param("gpt_neox", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["routers", "lora"])
def test_fused_projections_are_trained(base, kind, folder, tmp_path):
    run = finetuned(folder, tmp_path / "out", *ARMS[kind], base=base, steps=2)
    rows = [row["val_loss"] for row in run.rows() if "val_loss" in row]
    assert rows[-1] < rows[0]
    before, after = weights_of(folder / base), weights_of(run.final)
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    fused = "c_attn.weight" if base == "gpt2" else "query_key_value.weight"
    assert len(changed) == (4 if kind == "lora" else 0)
    assert all(key.endswith(fused) for key in changed)


def test_a_model_of_the_hub_that_has_memory_is_refused(tmp_path, monkeypatch):
    """It comes with its memory, whatever the run asks for; in a folder both are compared."""
    attach(make_host("llama", vocab_size=257)).save_pretrained(tmp_path)
    host = Host(model=str(tmp_path), train="all", memory="none")
    plain = Run(variant="host", host=host, data=Data(block_size=24))
    with pytest.raises(ValueError, match=r"has memory=full, and the run asks for memory=none"):
        load_host(plain)
    # As of a name, behind which no folder is looked for.
    monkeypatch.setattr("layermem.retrofit.loading.is_attached", lambda _: False)
    with pytest.raises(ValueError, match="download it"):
        load_host(plain)


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
    assert read_config(begun("second").config)[1]["weights"] == second
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


@pytest.mark.slow
def test_a_task_is_solved_before_and_after(folder, tmp_path):
    words = "--task.name arithmetic --task.options operands=2 --task.examples 40 --task.test 6"
    words += " --task.validation 4 --max-steps 2 --optim.batch-size 4 --compute.micro-batch 4"
    words += f" --eval-every 2 --compute.precision float32 --out {tmp_path / 'out'}"
    cli.main(["train", "--host.model", str(folder / "llama"), *words.split()])
    run = RunFolder(tmp_path / "out")
    solved = [row["val_accuracy"] for row in run.rows() if "val_accuracy" in row]
    assert len(solved) == 2 and json.loads(run.result.read_text())["count"] == 6
    asked = ["--tasks", "arithmetic", "--limit", "4", "--out", str(tmp_path)]
    cli.main(["eval", str(run.path), *asked])


@pytest.mark.slow
def test_a_checkpoint_with_memory_is_gone_on_with(folder, tmp_path):
    base = AutoModelForCausalLM.from_pretrained(folder / "llama")
    shake_routers(attach(base)).save_pretrained(tmp_path / "attached")
    load_tokenizer("bytes").save_pretrained(tmp_path / "attached")
    run = finetuned(folder, tmp_path / "out", base=str(tmp_path / "attached"), steps=1)
    start, end = (load_attached(path) for path in (tmp_path / "attached", run.final))
    ours, theirs = (m.model.layers[3].self_attn.memory.weight for m in (end, start))
    assert 0 < (ours - theirs).abs().max() < 0.01
    with pytest.raises(SystemExit, match="has memory=full, and the run asks for memory=none"):
        finetuned(folder, tmp_path / "b", *ARMS["plain"], base=str(tmp_path / "attached"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host.model", "bert"], "BertForMaskedLM|BertLMHeadModel is no decoder"),
        (["--host.model", "nowhere"], "nowhere does not exist; pass a checkpoint's folder or"),
        (["--host.model", "."], "is not a checkpoint: it has no config.json"),
        (["--data.block-size", "128"], "block_size=128 is more than .* reads, 64 tokens"),
        (["--task.name", "arithmetic"], "data.source=.* is for runs on text"),
    ],
)
def test_what_cannot_be_trained_is_refused(options, message, folder, tmp_path):
    base = options[1] if options[0] == "--host.model" else "llama"
    more = options if options[0] != "--host.model" else []
    with pytest.raises(SystemExit, match=message):
        finetuned(folder, tmp_path / "out", *more, base=base)
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


def test_problems_longer_than_a_models_positions_are_refused(tmp_path):
    short = make_host("gpt2", vocab_size=257, max_position_embeddings=16)
    for saved in (short, load_tokenizer("bytes")):
        saved.save_pretrained(tmp_path / "short")
    task = ["--task.name", "arithmetic", "--task.examples", "40", "--max-steps", "2"]
    start, out = ["--host.model", str(tmp_path / "short")], ["--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit, match="arithmetic has .* tokens, and the model reads 16"):
        cli.main(["train", *start, *task, *out])


def test_a_model_that_would_learn_to_copy_is_refused(folder, tmp_path):
    sizes = {"d_model": 16, "decoder_layers": 2, "decoder_attention_heads": 2}
    config = BartConfig(vocab_size=257, decoder_ffn_dim=24, is_encoder_decoder=False, **sizes)
    BartForCausalLM(config).save_pretrained(tmp_path / "bart")
    load_tokenizer("bytes").save_pretrained(tmp_path / "bart")
    options = ["--host.train", "all", "--host.memory", "none", "--out", str(tmp_path / "run")]
    asked = arguments(folder, *options, base=tmp_path / "bart")
    with pytest.raises(SystemExit, match="loss of BartForCausalLM is that of the tokens it is"):
        cli.main(asked)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"variant": "host", "host": {}}, "variant=host and host.model=None do not go together"),
        ({"variant": "lime"}, "variant=lime and host.model=x do not go together"),
        ({"host": {"train": "all"}}, "host.train is for a run that trains a model of"),
        ({"host": {"model": "x", "memory": "none"}}, "host.train=routers does not go with"),
        ({"host": {"model": "x", "train": "lora"}}, "host.train=lora does not go with"),
        ({"host": {"model": "x", "window": 2}}, "host.memory=full and host.window=2 do not"),
        ({"host": {"model": "x", "memory": "last"}}, "host.memory=last and host.window=None do"),
        ({"model": {"num_hidden_layers": 2}}, "model.num_hidden_layers=2 is for decoders of ours"),
        ({"compute": {"shard": True}}, "compute.shard=True is for decoders of ours"),
        ({"compute": {"loss_chunk": 8}}, "compute.loss_chunk=8 is for decoders of ours"),
        ({"data": {"isolate_documents": True}}, "data.isolate_documents=True is for decoders"),
        ({"data": {"tokenizer": "x"}}, "data.tokenizer=x is for decoders of ours"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        run_from_dict({"variant": "host", "host": {"model": "x"}} | values)


def test_a_preset_gives_way_to_the_model_and_keeps_what_it_learns(folder):
    """The decoder that it describes is not trained; its task, steps and rates are."""
    model = str(folder / "llama")
    run = resolve_run(cli.parse(["train", "tiny-aet-4", "--host.model", model]))
    preset = get_preset("tiny-aet-4")
    assert (run.variant, run.host.model, run.model) == ("host", model, Model())
    assert (run.task, run.max_steps, run.optim) == (preset.task, preset.max_steps, preset.optim)
    alone = resolve_run(cli.parse(["train", f"--host.model={model}", "--host.train", "all"]))
    assert (alone.data, alone.optim.lr, alone.optim.weight_decay) == (Data(), 5e-5, 0.0)
    assert alone.id != replace(alone, host=replace(alone.host, train="routers")).id
