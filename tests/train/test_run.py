"""One run: what it writes, what decides its numbers, one process or two, and what is refused."""

import json
import logging
import re
from types import SimpleNamespace

import pytest
import torch
import yaml
from small_run import Interrupted, a_run, interrupt, stop_at
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainingArguments

from layermem_bench.results.run_folder import RunFolder
from layermem_bench.train.run import train
from layermem_bench.train.run_config import load_run
from layermem_bench.train.setup import training_arguments
from layermem_bench.train.trainer import Trainer


def test_what_a_run_leaves(run, whole):
    rows = whole.rows()
    trained = [row for row in rows if "loss" in row]
    assert [row["step"] for row in trained] == list(range(1, 9))
    for row in trained:
        assert {"lr", "router_lr", "tokens", "flops", "grad_norm", "router_norm"} <= row.keys()
        assert row["tokens"] == row["step"] * 8 * 24
    assert trained[-1]["lr"] == pytest.approx(1e-6)
    assert trained[-1]["router_lr"] == pytest.approx(1e-6)
    assert [row["step"] for row in rows if "val_loss" in row] == [4, 8]
    assert trained[-1]["loss"] < trained[0]["loss"]

    text = yaml.safe_load(whole.config.read_text())
    assert {"run_id", "command", "torch", "commit", "layermem"} <= text["about"].keys()
    assert load_run(whole.config) == run

    model = AutoModelForCausalLM.from_pretrained(whole.final)
    tokenizer = AutoTokenizer.from_pretrained(whole.final)
    ids = tokenizer("w1 w2", return_tensors="pt").input_ids
    assert model.generate(ids, max_new_tokens=3, do_sample=False).shape[1] == ids.shape[1] + 3
    assert model.config.model_type == "layermem_lime"
    # The token before a text has an embedding, from which its first one is predicted.
    assert model(torch.tensor([[tokenizer.eos_token_id]])).logits.std() > 0.01


def test_a_run_says_what_it_trains_and_keeps_few_safe_checkpoints(place, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="layermem_bench"):
        folder = train(a_run(place, keep=2), tmp_path / "two")
    parameters = AutoModelForCausalLM.from_pretrained(folder.final).num_parameters()
    assert f"LimeForCausalLM, {parameters:,} parameters, seed 0" in caplog.messages
    kept = folder.complete_checkpoints()
    assert [path.name for path in kept] == ["checkpoint-6", "checkpoint-8"]
    for path in kept:
        names = {p.name for p in path.iterdir()}
        assert {"model.safetensors", "optimizer.pt", "trainer_state.json"} <= names
        assert not {"training_args.bin", "pytorch_model.bin"} & names
        torch.load(path / "optimizer.pt", weights_only=True)
        torch.load(path / "scheduler.pt", weights_only=True)
    assert not (folder.final / "training_args.bin").exists()
    assert not list(folder.path.rglob(".staging")) and not (folder.path / ".final").exists()


@pytest.mark.parametrize("field", ["compute", "every other layer", "save_every", "isolate"])
def test_the_same_numbers_another_way(whole, place, tmp_path, field):
    if field == "compute":
        run = a_run(place, compute={"micro_batch": 8, "checkpoint_activations": True})
    elif field == "every other layer":
        again = {"checkpoint_activations": True, "checkpoint_every": 2}
        run = a_run(place, compute={"micro_batch": 8, **again})
    elif field == "save_every":
        run = a_run(place, save_every=0)
    else:
        run = a_run(place, data={"isolate_documents": True})
    folder = train(run, tmp_path / "other")
    losses = [[row.get("loss", row.get("val_loss")) for row in f.rows()] for f in (whole, folder)]
    if field == "isolate":
        assert losses[0] != pytest.approx(losses[1], rel=1e-4)
    else:
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_gradients_that_are_not_clipped_have_their_norm_in_the_row(tmp_path):
    """A bound that nothing reaches says what they are."""
    free, bound = (
        train(a_run(tmp_path, max_steps=2, optim={"clip": clip}), tmp_path / str(clip)).rows()
        for clip in (0.0, 1e9)
    )
    assert [row["grad_norm"] for row in free[:2]] == [row["grad_norm"] for row in bound[:2]]


@pytest.mark.parametrize("log_every", [1, 3])
def test_the_speed_is_that_of_training_steps_alone(log_every, tmp_path, monkeypatch):
    """A step takes a second, a validation a hundred, a save ten thousand."""
    seconds = [0.0]

    def taking(method, cost):
        def slow(self, *args, **kwargs):
            seconds[0] += cost
            return method(self, *args, **kwargs)

        monkeypatch.setattr(Trainer, method.__name__, slow)

    clock = SimpleNamespace(perf_counter=lambda: seconds[0])
    monkeypatch.setattr("layermem_bench.train.metrics.time", clock)
    # A step is two micro-batches.
    taking(Trainer.training_step, 0.5)
    taking(Trainer.evaluation_loop, 100.0)
    taking(Trainer._save_rng_state, 10_000.0)
    run, out = a_run(tmp_path, log_every=log_every), tmp_path / "timed"
    with monkeypatch.context() as patch:
        stop_at(patch, 6, interrupt)
        with pytest.raises(Interrupted):
            train(run, out)
    rows = train(run, out, resume=True).rows()
    speeds = [row["tokens_per_second"] for row in rows if "loss" in row]
    assert len(speeds) > 2 and speeds == pytest.approx([8 * 24] * len(speeds))


def test_two_variants_see_the_same_batches_from_the_same_weights(place, tmp_path, monkeypatch):
    seen = {}
    step = Trainer.training_step

    def watched(self, model, inputs, *args):
        batches, shared = seen.setdefault(self.run.variant, ([], {}))
        if not batches:
            shared.update({k: v.clone() for k, v in model.state_dict().items()})
        batches.append(inputs["input_ids"].clone())
        return step(self, model, inputs, *args)

    monkeypatch.setattr(Trainer, "training_step", watched)
    for variant in ("plain", "lime"):
        train(a_run(place, variant=variant, save_every=0), tmp_path / variant)
    (batches, shared), (theirs, others) = seen["plain"], seen["lime"]
    assert len(batches) == 16 and all(
        torch.equal(a, b) for a, b in zip(batches, theirs, strict=True)
    )
    assert others.keys() - shared.keys() == {
        f"model.layers.{i}.self_attn.memory.weight" for i in (1, 2)
    }
    assert all(torch.equal(shared[name], others[name]) for name in shared)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"vocab_size": 100}}, "vocabulary .257.: its ids would lie beyond"),
        ({"data": {"block_size": 100_000}}, "less than one block of 100000; give more text"),
        ({"optim": {"batch_size": 6}}, r"batch_size \(6\) must be a multiple of .*micro_batch"),
        ({"variant": "lame"}, "unknown variant 'lame'; did you mean lime"),
        ({"model": {"options": ("ruoter=full",)}}, "no field 'ruoter'; did you mean router"),
        ({"model": {"options": ("hidden_size=8",)}}, "has a field for: --model.hidden-size"),
    ],
    ids=["vocabulary", "short", "batch", "variant", "option", "size"],
)
def test_what_cannot_be_trained_is_refused(tmp_path, changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        train(a_run(tmp_path, **changes), tmp_path / "refused")


def test_options_of_the_variant_reach_its_config(tmp_path):
    run = a_run(tmp_path, max_steps=1, model={"options": ("router=last", "router_window=2")})
    folder = train(run, tmp_path / "windowed")
    config = json.loads((folder.final / "config.json").read_text())
    assert (config["router"], config["router_window"]) == ("last", 2)


def test_a_process_that_sees_several_gpus_uses_one(tmp_path, monkeypatch):
    made = TrainingArguments.__post_init__

    def with_two(self):
        made(self)
        self._n_gpu = 2

    monkeypatch.setattr(TrainingArguments, "__post_init__", with_two)
    said = training_arguments(a_run(tmp_path), RunFolder(tmp_path / "run"))
    assert (said.train_batch_size, said.eval_batch_size) == (4, 4)
    assert said.train_batch_size * said.gradient_accumulation_steps == 8


def test_sharding_needs_several_processes(tmp_path):
    with pytest.raises(ValueError, match="compute.shard needs several processes: torchrun"):
        train(a_run(tmp_path, compute={"shard": True}), tmp_path / "alone")


def test_a_tracker_gets_the_same_rows(place, tmp_path):
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is missing"
    )
    folder = train(a_run(place, track=("tensorboard",)), tmp_path / "tracked")
    written = events.EventAccumulator(str(folder.path / "tensorboard"))
    written.Reload()
    losses = [(e.step, e.value) for e in written.Scalars("train/loss")]
    rows = [(row["step"], row["loss"]) for row in folder.rows() if "loss" in row]
    assert dict(losses) == pytest.approx(dict(rows))
    assert [e.step for e in written.Scalars("train/val_loss")] == [4, 8]
    assert not list(folder.checkpoints.glob("runs*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("routr=last",), "has no field 'routr'; did you mean router"),
        (("router=lasst",), "expected one of .*, got lasst"),
        (("hidden_size=64",), "model.options name hidden_size, which the config has a field for"),
    ],
)
def test_options_that_no_model_has_are_refused_before_the_data_are_read(
    options, message, tmp_path, monkeypatch
):
    monkeypatch.setattr("layermem_bench.train.run.prepare_learning", None)
    run = a_run(tmp_path, variant="lime", model={"options": options})
    with pytest.raises((TypeError, ValueError), match=message):
        train(run, tmp_path / "run")
    # A corrected command finds no folder of another run.
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        ("plain", ()),
        ("lime", ("router=average",)),
        ("value_residual", ()),
        ("value_residual", ("form=svformer",)),
        ("depth_attention", ()),
    ],
)
def test_a_router_rate_that_no_parameter_has_is_refused_before_the_data_are_read(
    variant, options, tmp_path, monkeypatch
):
    monkeypatch.setattr("layermem_bench.train.run.prepare_learning", None)
    optim = {"router_lr": 0.5}
    run = a_run(tmp_path, variant=variant, model={"options": options}, optim=optim)
    name = re.escape(":".join((variant, *options)))
    with pytest.raises(ValueError, match=rf"^optim\.router_lr=0\.5 .* {name} .*leave it out"):
        train(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("variant", ["mudd", "dca", "attention_residuals", "lime"])
def test_the_router_rate_changes_what_a_variant_adds_and_by_default_nothing(
    variant, place, tmp_path
):
    """The whole loop: with the run's own rate, the run is the one without a router rate."""
    losses = {}
    for router_lr in (None, 1e-3, 0.5):
        optim = {"lr": 1e-3, "router_lr": router_lr, "warmup_steps": 0}
        run = a_run(place, variant=variant, max_steps=2, save_every=0, optim=optim)
        rows = train(run, tmp_path / f"{router_lr}").rows()
        losses[router_lr] = [row["loss"] for row in rows if "loss" in row]
        logged = next(row["router_lr"] for row in rows if "router_lr" in row)
        assert logged == pytest.approx(router_lr or (1e-2 if variant == "lime" else 1e-3))
    assert losses[0.5] != losses[1e-3]
    assert (losses[1e-3] == losses[None]) == (variant != "lime")
