"""The loop of one run: what it writes, what its numbers depend on and what they do not."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import yaml
from small_run import Interrupted, a_run, curve, interrupt, stop_at, weights
from transformers import AutoModelForCausalLM, AutoTokenizer

from layermem_bench.config.computing import choose_loss_chunk
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
    card, about = (whole.final / "README.md").read_text(), yaml.safe_load(whole.config.read_text())
    assert f"| validation loss (nats a token) | {rows[-1]['val_loss']:.4f} |" in card
    assert f"| tokens | {rows[-1]['tokens']:,} |" in card
    assert yaml.safe_load(card.partition("```yaml\n")[2].partition("```")[0]) == about["about"]


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
        {"compute": {"micro_batch": 8, "checkpoint_activations": True, "checkpoint_every": 2}},
        {"compute": {"loss_chunk": 7}},
        {"compute": {"workers": 1}},
    ],
    ids=str,
)
def test_the_same_numbers_another_way(changes, whole, place, tmp_path):
    folder = train(a_run(place, **changes), tmp_path / "other")
    for ours, theirs in zip(curve(folder), curve(whole), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)


def test_a_step_is_the_mean_over_all_of_its_labels(tmp_path, monkeypatch):
    """Proofs are of different lengths; some models return the mean over a micro-batch."""
    task = Task(name="prosqa", examples=8, validation=5)
    whole = train(a_run(tmp_path, task=task, compute={"micro_batch": 8}), tmp_path / "whole")
    for takes_count in (True, False):
        monkeypatch.setattr(looping, "_takes_count", lambda model, takes=takes_count: takes)
        run = a_run(tmp_path, task=task, compute={"micro_batch": 2})
        for ours, theirs in zip(
            curve(train(run, tmp_path / str(takes_count))), curve(whole), strict=True
        ):
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)


def test_gradients_that_are_not_clipped_have_their_norm_in_the_row(tmp_path):
    free, bound = (
        train(a_run(tmp_path, max_steps=2, optim={"clip": clip}), tmp_path / str(clip)).rows()
        for clip in (0.0, 1e9)
    )
    assert [row["grad_norm"] for row in free[:2]] == [row["grad_norm"] for row in bound[:2]]


def test_the_speed_is_that_of_training_steps_alone(tmp_path, monkeypatch):
    """A step takes a second, a validation a hundred, a save ten thousand."""
    seconds = [0.0]

    def taking(method, cost):
        def slow(self, *args, **kwargs):
            seconds[0] += cost
            return method(self, *args, **kwargs)

        monkeypatch.setattr(Loop, method.__name__, slow)

    clock = SimpleNamespace(perf_counter=lambda: seconds[0], monotonic=lambda: 0.0)
    monkeypatch.setattr("layermem_bench.run.progress.time", clock)
    taking(Loop.train_step, 1.0)
    taking(Loop._judge, 100.0)
    taking(Loop.write_model, 10_000.0)
    run, out = a_run(tmp_path, log_every=3), tmp_path / "timed"
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


def test_validation_is_of_the_validation_text_alone(tmp_path, monkeypatch):
    """Every block of it that is asked for, in order, at each of two validations."""
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
    for letter in "ab":
        lines = [json.dumps({"text": letter * (40 + i)}) + "\n" for i in range(30)]
        (tmp_path / letter).with_suffix(".jsonl").write_text("".join(lines))
    texts = {"source": str(tmp_path / "a.jsonl"), "validation": str(tmp_path / "b.jsonl")}
    train(a_run(tmp_path, data=texts, eval_blocks=3), tmp_path / "run")
    end, size = 256, 24
    assert set(torch.cat(learnt).unique().tolist()) == {ord("a"), end}
    tokens = sum(((ord("b"),) * (40 + i) + (end,) for i in range(30)), ())
    expected = torch.tensor(tokens[: 3 * size]).view(3, size)
    assert torch.equal(torch.stack(judged), expected.repeat(2, 1))


def test_how_often_a_run_is_validated_changes_no_weight(tmp_path):
    """Not even with dropout, which draws random numbers in each step."""
    run = a_run(tmp_path, save_every=0, model={"options": ("attention_dropout=0.2",)})
    often, seldom = (train(replace(run, eval_every=n), tmp_path / str(n)) for n in (1, 8))
    for name, weight in weights(often).items():
        assert torch.equal(weight, weights(seldom)[name])


def test_many_logits_are_in_chunks_unless_the_run_says_otherwise():
    tokens, vocabulary = 2**14, 2**14
    assert choose_loss_chunk(None, tokens, vocabulary) == 0
    assert choose_loss_chunk(None, tokens + 1, vocabulary) == 2**30 // 4 // (4 * vocabulary)
    assert choose_loss_chunk(0, tokens + 1, vocabulary) == 0


def test_bfloat16_computes_near_float32(whole, place, tmp_path):
    folder = train(a_run(place, compute={"precision": "bfloat16"}), tmp_path / "run")
    rows = zip(curve(folder), curve(whole), strict=True)
    differences = [abs(a["loss"] - b["loss"]) for a, b in rows if "loss" in a]
    assert 0 < max(differences) < 0.1


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"data": {"block_size": 100_000}}, "100000"),
        ({"optim": {"batch_size": 6}}, "batch_size"),
        ({"variant": "lame"}, "lime"),
        ({"model": {"options": ("ruoter=full",)}}, "router"),
        ({"model": {"options": ("router=lasst",)}}, "lasst"),
        ({"compute": {"shard": True}}, "compute.shard"),
        ({"variant": "plain", "optim": {"router_lr": 0.5}}, "optim.router_lr"),
    ],
    ids=str,
)
def test_what_cannot_be_trained_is_refused(changes, option, tmp_path):
    with pytest.raises((ValueError, TypeError), match=option):
        train(a_run(tmp_path, **changes), tmp_path / "refused")
    # A corrected command finds no folder of another run.
    assert not RunFolder(tmp_path / "refused").final.exists()


@pytest.mark.parametrize("variant", ["mudd", "lime"])
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
