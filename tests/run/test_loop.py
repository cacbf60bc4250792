"""The loop of one run: what it writes, what its numbers depend on and what they do not."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from small_run import Interrupted, a_run, curve, interrupt, stop_at, weights
from transformers import AutoModelForCausalLM, AutoTokenizer

from layermem.models.causal_lm import DecoderForCausalLM
from layermem.models.registry import lookup
from layermem_bench.config import computing
from layermem_bench.config.run import Task
from layermem_bench.run import loop as looping
from layermem_bench.run.folder import RunFolder
from layermem_bench.run.loop import Loop
from layermem_bench.run.training import train


def test_what_a_run_leaves(whole):
    rows = whole.rows()
    trained = [row for row in rows if "loss" in row]
    assert [row["step"] for row in trained] == list(range(1, 9))
    for row in trained:
        assert {"lr", "router_lr", "tokens", "flops", "grad_norm", "router_norm"} <= row.keys()
        assert row["tokens"] == row["step"] * 8 * 24
    assert trained[-1]["lr"] == pytest.approx(1e-6) == trained[-1]["router_lr"]
    assert [row["step"] for row in rows if "val_loss" in row] == [4, 8]
    assert trained[-1]["loss"] < trained[0]["loss"]

    model = AutoModelForCausalLM.from_pretrained(whole.final)
    tokenizer = AutoTokenizer.from_pretrained(whole.final)
    ids = tokenizer("w1 w2", return_tensors="pt").input_ids
    assert model.generate(ids, max_new_tokens=3, do_sample=False).shape[1] == ids.shape[1] + 3
    assert model.config.model_type == "layermem_lime"


def test_few_checkpoints_and_the_best_are_kept_and_none_is_pickled(place, tmp_path, monkeypatch):
    judged, judge = [], Loop._judge

    def worse(self):
        rows = judge(self)
        rows[:, 0] *= 1 + len(judged)
        judged.append(self.step)
        return rows

    monkeypatch.setattr(Loop, "_judge", worse)
    folder = train(a_run(place, keep=2, eval_every=2), tmp_path / "run")
    kept = folder.complete_checkpoints()
    assert [path.name for path in kept] == [f"checkpoint-{step}" for step in (2, 6, 8)]
    for path in kept:
        names = {file.name for file in path.iterdir()}
        assert {"model.safetensors", "tokenizer.json", "training.pt"} <= names
        torch.load(path / "training.pt", weights_only=True)
    assert not list(folder.path.rglob(".staging")) and not (folder.path / ".final").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"compute": {"micro_batch": 8, "checkpoint_activations": True}},
        {"compute": {"checkpoint_activations": True, "checkpoint_every": 2}},
        {"compute": {"loss_chunk": 7}},
        {"compute": {"workers": 1}},
        {"save_every": 0},
    ],
    ids=str,
)
def test_the_same_numbers_another_way(changes, whole, place, tmp_path):
    folder = train(a_run(place, **changes), tmp_path / "other")
    for ours, theirs in zip(curve(folder), curve(whole), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("takes_count", [True, False])
def test_a_step_is_the_mean_over_all_of_its_labels(takes_count, tmp_path, monkeypatch):
    """Proofs are of different lengths; some models return the mean over a micro-batch."""
    task = Task(name="prosqa", examples=8, validation=5)
    whole = train(a_run(tmp_path, task=task, compute={"micro_batch": 8}), tmp_path / "whole")
    monkeypatch.setattr(looping, "_takes_count", lambda model: takes_count)
    parts = train(a_run(tmp_path, task=task, compute={"micro_batch": 2}), tmp_path / "parts")
    for ours, theirs in zip(curve(parts), curve(whole), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)


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

        monkeypatch.setattr(Loop, method.__name__, slow)

    clock = SimpleNamespace(perf_counter=lambda: seconds[0])
    monkeypatch.setattr("layermem_bench.run.metrics.time", clock)
    taking(Loop.train_step, 1.0)
    taking(Loop._judge, 100.0)
    taking(Loop.write_model, 10_000.0)
    run, out = a_run(tmp_path, log_every=log_every), tmp_path / "timed"
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        stop_at(patch, 6, interrupt)
        train(run, out)
    rows = train(run, out, resume=True).rows()
    speeds = [row["tokens_per_second"] for row in rows if "loss" in row]
    assert len(speeds) > 2 and speeds == pytest.approx([8 * 24] * len(speeds))


def test_two_variants_see_the_same_batches_from_the_same_weights(place, tmp_path, monkeypatch):
    seen, step = {}, Loop.train_step

    def watched(self, batches):
        state = {name: value.clone() for name, value in self.model.state_dict().items()}
        steps, _ = seen.setdefault(self.run.variant, ([], state))
        steps.append(torch.cat([batch["input_ids"] for batch in batches]))
        step(self, batches)

    monkeypatch.setattr(Loop, "train_step", watched)
    for variant in ("plain", "lime"):
        train(a_run(place, variant=variant, save_every=0), tmp_path / variant)
    (batches, shared), (theirs, others) = seen["plain"], seen["lime"]
    assert len(batches) == 8
    assert all(torch.equal(a, b) for a, b in zip(batches, theirs, strict=True))
    routers = {f"model.layers.{i}.self_attn.memory.weight" for i in (1, 2)}
    assert others.keys() - shared.keys() == routers
    assert all(torch.equal(shared[name], others[name]) for name in shared)


def letters(path, letter):
    """Documents of one letter, in different numbers."""
    lines = [json.dumps({"text": letter * (40 + i)}) + "\n" for i in range(30)]
    path.write_text("".join(lines))
    return str(path)


@pytest.mark.parametrize("eval_blocks", [None, 3])
def test_validation_is_of_the_validation_text_alone(tmp_path, monkeypatch, eval_blocks):
    learnt, judged = [], []
    step, judging = Loop.train_step, looping.judge_tokens

    def train_on(self, batches):
        learnt.extend(batch["input_ids"].clone() for batch in batches)
        step(self, batches)

    def judge(model, inputs, chunk):
        judged.extend(inputs["input_ids"].clone())
        return judging(model, inputs, chunk)

    monkeypatch.setattr(Loop, "train_step", train_on)
    monkeypatch.setattr(looping, "judge_tokens", judge)
    texts = {
        "source": letters(tmp_path / "a.jsonl", "a"),
        "validation": letters(tmp_path / "b.jsonl", "b"),
    }
    train(a_run(tmp_path, data=texts, eval_blocks=eval_blocks), tmp_path / "run")
    end, size = 256, 24
    assert set(torch.cat(learnt).unique().tolist()) == {ord("a"), end}
    # Every block of it, in order, at each of two validations.
    tokens = sum(((ord("b"),) * (40 + i) + (end,) for i in range(30)), ())
    count = eval_blocks or len(tokens) // size
    expected = torch.tensor(tokens[: count * size]).view(count, size)
    assert torch.equal(torch.stack(judged), expected.repeat(2, 1))


def test_documents_that_are_kept_apart_do_not_see_each_other(tmp_path, monkeypatch):
    """What the model says of a document in a block is what it says of the document alone."""
    counted, forward = [], lookup("lime").causal_lm.forward

    def noting(self, *args, **kwargs):
        output = forward(self, *args, **kwargs)
        ids, starts = kwargs["input_ids"], kwargs["position_ids"].eq(0)
        for row, first, said in zip(ids, starts, output.logits, strict=True):
            cuts = first.nonzero().flatten()[1:]
            counted.append(len(cuts))
            for piece, part in zip(row.tensor_split(cuts), said.tensor_split(cuts), strict=True):
                alone = forward(self, piece[None], use_cache=False).logits[0]
                torch.testing.assert_close(part, alone, rtol=1e-4, atol=1e-4)
        return output

    monkeypatch.setattr(lookup("lime").causal_lm, "forward", noting)
    data = {"isolate_documents": True, "block_size": 96}
    # Of weights that tell what is before a document.
    options = {"options": ("initializer_range=0.5",)}
    train(a_run(tmp_path, data=data, max_steps=1, save_every=0, model=options), tmp_path / "run")
    assert sum(counted) > 0


def test_how_often_a_run_is_validated_changes_no_weight(tmp_path):
    """Not even with dropout, which draws random numbers in each step."""
    run = a_run(tmp_path, save_every=0, model={"options": ("attention_dropout=0.2",)})
    often, seldom = (train(replace(run, eval_every=n), tmp_path / str(n)) for n in (1, 8))
    for name, weight in weights(often).items():
        assert torch.equal(weight, weights(seldom)[name])


def test_many_logits_are_in_chunks_unless_the_run_says_otherwise(tmp_path, monkeypatch):
    # Of a micro-batch of four sequences of 24 tokens, over bytes and an end token.
    seen, forward, logits = [], DecoderForCausalLM.forward, 4 * 24 * 257

    def watching(self, *args, **kwargs):
        seen.append(kwargs.get("loss_chunk", 0))
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(DecoderForCausalLM, "forward", watching)
    for label, room, compute, expected in (
        ("fit", 4 * logits, {}, 0),
        ("do-not", 4 * logits - 1, {}, 23),
        ("never", 4 * logits - 1, {"loss_chunk": 0}, 0),
    ):
        monkeypatch.setattr(computing, "_MAX_LOGITS_BYTES", room)
        train(a_run(tmp_path, max_steps=1, save_every=0, compute=compute), tmp_path / label)
        # One step and its validation.
        assert len(seen) > 2 and set(seen) == {expected}, label
        seen.clear()


@pytest.mark.parametrize(("precision", "differs"), [("bfloat16", True), ("float32", False)])
def test_bfloat16_computes_near_float32(precision, differs, whole, place, tmp_path):
    folder = train(a_run(place, compute={"precision": precision}), tmp_path / "run")
    differences = [abs(a["loss"] - b["loss"]) for a, b in losses(folder, whole)]
    assert (0 < max(differences) < 0.1) if differs else (max(differences) == 0)


def losses(ours, theirs):
    rows = zip(curve(ours), curve(theirs), strict=True)
    return [(a, b) for a, b in rows if "loss" in a]


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"model": {"vocab_size": 100}}, "vocab_size"),
        ({"data": {"block_size": 100_000}}, "100000"),
        ({"optim": {"batch_size": 6}}, "batch_size"),
        ({"variant": "lame"}, "lime"),
        ({"model": {"options": ("ruoter=full",)}}, "router"),
        ({"model": {"options": ("router=lasst",)}}, "lasst"),
        ({"model": {"options": ("hidden_size=8",)}}, "hidden-size"),
        ({"compute": {"shard": True}}, "compute.shard"),
        ({"variant": "plain", "optim": {"router_lr": 0.5}}, "optim.router_lr"),
        ({"variant": "value_residual", "optim": {"router_lr": 0.5}}, "optim.router_lr"),
    ],
    ids=str,
)
def test_what_cannot_be_trained_is_refused(changes, option, tmp_path):
    with pytest.raises((ValueError, TypeError), match=option):
        train(a_run(tmp_path, **changes), tmp_path / "refused")
    # A corrected command finds no folder of another run.
    assert not RunFolder(tmp_path / "refused").final.exists()


@pytest.mark.parametrize("variant", ["mudd", "dca", "attention_residuals", "lime"])
def test_the_router_rate_changes_what_a_variant_adds_and_by_default_nothing(
    variant, place, tmp_path
):
    """With the run's own rate, the run is the one without a router rate."""
    found = {}
    for router_lr in (None, 1e-3, 0.5):
        optim = {"lr": 1e-3, "router_lr": router_lr, "warmup_steps": 0}
        run = a_run(place, variant=variant, max_steps=2, save_every=0, optim=optim)
        rows = train(run, tmp_path / f"{router_lr}").rows()
        found[router_lr] = [row["loss"] for row in rows if "loss" in row]
        logged = next(row["router_lr"] for row in rows if "router_lr" in row)
        assert logged == pytest.approx(router_lr or (1e-2 if variant == "lime" else 1e-3))
    assert found[0.5] != found[1e-3]
    assert (found[1e-3] == found[None]) == (variant != "lime")
