"""Seq-VCR in training: the gradient, the rows, accumulation, checkpoints, and what is refused."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from single_runs import PENALTY
from small_run import a_run, assert_same_end, curve, rewound
from tiny import needs_compiler
from transformers import AutoModelForCausalLM, PreTrainedConfig

from layermem.models.seams import forked_generator
from layermem.ops.seq_vcr import variance_and_covariance
from layermem_bench.config import run as config
from layermem_bench.config.run import Task
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.train.checkpoints import check_micro_batches
from layermem_bench.train.run import train
from layermem_bench.train.seq_vcr import reached
from layermem_bench.train.setup import training_arguments
from layermem_bench.train.trainer import Trainer

TERMS = "seq_vcr_variance", "seq_vcr_covariance"


def penalized(tmp_path, **changes):
    return a_run(tmp_path, keep=9, regularizer=PENALTY, **changes)


@pytest.fixture(scope="session")
def whole(place):
    """A run of eight steps with a penalty, and its folder; rows are of three steps."""
    run = penalized(place, log_every=3, model={"tie_word_embeddings": True})
    return run, train(run, place / "penalized")


def rows_of_training(folder):
    return [row for row in folder.rows() if "loss" in row]


def terms(folder):
    return [[row[name] for name in TERMS] for row in rows_of_training(folder)]


def watch_first_step(monkeypatch):
    """Keep the model, the projection, the batches and the gradients of the first step."""
    seen = {"batches": []}
    step = Trainer.training_step

    def watched(self, model, inputs, *args, **kwargs):
        if self.state.global_step == 0:
            state = {name: p.detach().clone() for name, p in self.model.named_parameters()}
            seen.setdefault("weights", state)
            seen["batches"].append(inputs)
        loss = step(self, model, inputs, *args, **kwargs)
        if self.state.global_step == 0:
            seen["gradients"] = {n: p.grad.clone() for n, p in self.model.named_parameters()}
            seen["model"] = self.model
        return loss

    monkeypatch.setattr(Trainer, "training_step", watched)
    return seen


def test_a_step_minimizes_the_loss_and_the_mean_penalty_of_its_micro_batches(tmp_path, monkeypatch):
    seen = watch_first_step(monkeypatch)
    run = penalized(tmp_path, max_steps=1)
    folder = train(run, tmp_path / "run")
    model, projection = seen["model"], seen["weights"]["regularizer.weight"].requires_grad_()
    own = {k: v for k, v in seen["weights"].items() if k != "regularizer.weight"}
    model.load_state_dict(own)
    model.zero_grad()
    labels = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in seen["batches"])
    assert len(seen["batches"]) == 2
    loss, means = 0.0, torch.zeros(2)
    for batch in seen["batches"]:
        out = model(**batch, output_hidden_states=True, num_items_in_batch=labels)
        pair = variance_and_covariance(
            out.hidden_states[-1], projection, torch.ones_like(batch["labels"]).bool()
        )
        loss = loss + out.loss
        means = means + torch.stack(pair) / 2
    (loss + means[0] + 0.5 * means[1]).backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    expected["regularizer.weight"] = projection.grad
    assert expected.keys() == seen["gradients"].keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(seen["gradients"][name], gradient, rtol=1e-4, atol=1e-6)
    (row,) = rows_of_training(folder)
    # The loss in a row is without the penalty.
    assert row["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert [row[name] for name in TERMS] == pytest.approx(means.tolist(), rel=1e-5)
    norm = torch.stack([g.norm() for g in expected.values()]).norm().item()
    assert row["grad_norm"] == pytest.approx(norm, rel=1e-5)


@pytest.mark.slow
def test_a_penalty_of_no_weight_leaves_the_run_as_it_was(tmp_path):
    """The projection draws no random number of the run and takes no part in its gradients."""
    run = a_run(tmp_path)
    plain = train(run, tmp_path / "plain")
    none = replace(PENALTY, variance_weight=0.0, covariance_weight=1e-30)
    other = train(replace(run, regularizer=none), tmp_path / "penalty")
    assert_same_end(plain, other)
    assert not any(name in row for row in plain.rows() for name in TERMS)
    assert terms(other)[-1][0] > 0
    assert rows_of_training(other)[0]["flops"] > rows_of_training(plain)[0]["flops"]


def test_the_penalty_falls_and_is_no_part_of_the_model(tmp_path):
    run = a_run(tmp_path, max_steps=12, eval_every=12, save_every=0)
    plain = train(replace(run, max_steps=1), tmp_path / "plain")
    folder = train(replace(run, regularizer=replace(PENALTY, width=99)), tmp_path / "penalty")
    totals = [variance + 0.5 * covariance for variance, covariance in terms(folder)]
    assert totals[-1] < 0.7 * totals[0]
    names = [set(load_file(f.final / "model.safetensors")) for f in (plain, folder)]
    assert names[0] == names[1]
    files = [sorted(path.name for path in f.final.iterdir()) for f in (plain, folder)]
    assert files[0] == files[1]
    cards = [(f.final / "README.md").read_text() for f in (plain, folder)]
    parameters = [card.partition(" parameters")[0].rpartition(" ")[2] for card in cards]
    assert parameters[0] == parameters[1]


def test_a_resumed_run_is_the_same_to_the_last_bit(whole, tmp_path):
    """Also the terms of a row of three steps, of which one was before the interruption."""
    run, whole = whole
    checkpoint = whole.latest_checkpoint()
    assert (checkpoint / "regularizer.safetensors").exists()
    # What is in the checkpoint is the model alone, which loads as any other.
    _, info = AutoModelForCausalLM.from_pretrained(checkpoint, output_loading_info=True)
    assert not info["unexpected_keys"] and not info["missing_keys"]
    folder = train(run, rewound(whole.path, tmp_path / "killed").path, resume=True)
    assert_same_end(folder, whole)
    assert terms(folder) == terms(whole)
    ours, theirs = (
        load_file(f.latest_checkpoint() / "regularizer.safetensors") for f in (folder, whole)
    )
    assert torch.equal(ours["weight"], theirs["weight"])
    begun = load_file(folder.complete_checkpoints()[0] / "regularizer.safetensors")
    assert not torch.equal(begun["weight"], theirs["weight"]), "it is not trained"


def test_a_resumed_run_keeps_its_micro_batch_and_its_penalty(whole, tmp_path):
    run, whole = whole
    folder = rewound(whole.path, tmp_path / "other", step=2)
    other = replace(run, compute=replace(run.compute, micro_batch=8))
    with pytest.raises(ValueError, match="compute.micro_batch was 4, is 8"):
        train(other, folder.path, resume=True)
    # More processes than a step has micro-batches make these smaller.
    config, args = PreTrainedConfig(), SimpleNamespace(world_size=4, train_batch_size=2)
    with pytest.raises(ValueError, match="of 4 sequences, now they have 2: regularizer.penalty="):
        check_micro_batches(folder.latest_checkpoint(), run, config, args)
    with pytest.raises(ValueError, match="regularizer.covariance_weight was 0.5, is 0.004"):
        less = replace(PENALTY, covariance_weight=0.004)
        train(replace(run, regularizer=less), folder.path, resume=True)


def test_problems_are_penalized_without_their_padding(tmp_path):
    # Strictly held out, there would be too few of so few sums.
    options = (
        *("operands=2", "operators=+", "operand_max=9", "value_max=20", "trivial=1.0"),
        "held_out=expression",
    )
    task = Task(name="arithmetic", examples=20, validation=4, test=2, options=options)
    folder = train(penalized(tmp_path, task=task, max_steps=2), tmp_path / "run")
    assert all(value > 0 for row in terms(folder) for value in row)


def test_what_follows_the_last_label_is_padding():
    labels = torch.tensor([[-100, 3, -100, 4, -100], [1, 2, 3, 4, 5], [-100] * 5])
    expected = [[True] * 4 + [False], [True] * 5, [False] * 5]
    assert reached(labels).tolist() == expected


@pytest.mark.slow
def test_checkpointed_activations_and_chunked_losses_change_nothing(whole, tmp_path):
    run, whole = whole
    compute = replace(run.compute, checkpoint_activations=True, loss_chunk=7)
    other = train(replace(run, compute=compute), tmp_path / "other")
    for ours, theirs in zip(curve(other), curve(whole), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    assert terms(other) == [pytest.approx(row, rel=1e-5) for row in terms(whole)]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"width": 64}, "regularizer.width=64 is for a run with a penalty.*add it"),
        ({"penalty": "seq_vcr", "width": 1}, "regularizer.width must be at least 2, got 1"),
        (
            {"penalty": "seq_vcr", "variance_weight": -1.0},
            "regularizer.variance_weight must be at least 0, got -1.0",
        ),
        (
            {"penalty": "seq_vcr", "variance_weight": 0.0, "covariance_weight": 0.0},
            "are both 0, so that there is no penalty",
        ),
        ({"penalty": "vicreg"}, "regularizer.penalty must be one of 'seq_vcr', got 'vicreg'"),
    ],
)
def test_refusals_of_the_config(values, message):
    with pytest.raises(ValueError, match=message):
        config.run_from_dict({"regularizer": values})


@pytest.mark.parametrize("part", ["compute", "optim"])
def test_a_micro_batch_of_one_sequence_is_refused(part, tmp_path):
    field = {"compute": "micro_batch", "optim": "batch_size"}[part]
    run = penalized(tmp_path, **{part: {field: 1}})
    with pytest.raises(ValueError, match="covariance over at least 2 sequences.* computes 1 at on"):
        train(run, tmp_path / "run")
    assert not RunFolder(tmp_path / "run").path.exists()


def test_processes_that_would_compute_another_penalty_are_refused(tmp_path, monkeypatch):
    """The penalty is of the sequences that a process computes at once, as the run's id says."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    run = penalized(tmp_path)
    with pytest.raises(ValueError, match=r"each computes 2, .* set compute.micro_batch=2, also in"):
        training_arguments(run, RunFolder(tmp_path / "run"))


def test_the_projection_starts_as_torchs_linear_does():
    from layermem_bench.train.seq_vcr import SeqVCR

    torch.manual_seed(0)
    weight = SeqVCR(16, PENALTY).weight
    assert weight.shape == (12, 16) and weight.abs().max() <= 0.25
    torch.manual_seed(0)
    assert torch.equal(
        weight, torch.empty(12, 16).uniform_(-0.25, 0.25, generator=forked_generator("seq_vcr"))
    )


@pytest.mark.slow
def test_two_processes_have_the_penalty_of_one(two_processes):
    """Copied, sharded, and resumed in another way than begun."""
    root = two_processes / "penalized"
    expected = dict.fromkeys(("ddp", "fsdp", "one-fsdp", "fsdp-ddp"), "one") | {"keeping": "small"}
    for name, one in expected.items():
        folder, other = RunFolder(root / name), RunFolder(root / one)
        names = ("loss", "grad_norm", *TERMS)
        for ours, theirs in zip(*map(rows_of_training, (folder, other)), strict=True):
            for column in names:
                assert ours[column] == pytest.approx(theirs[column], rel=1e-4), (name, column)
        ours, theirs = (load_file(f.final / "model.safetensors") for f in (folder, other))
        assert ours.keys() == theirs.keys()
        for key, tensor in theirs.items():
            torch.testing.assert_close(ours[key], tensor, rtol=1e-3, atol=1e-5, msg=(name, key))
    one, small = (terms(RunFolder(root / name)) for name in ("one", "small"))
    assert one[0] != pytest.approx(small[0], rel=1e-2)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("variant", ["lime", "hyper_connections"])
def test_a_compiled_model_has_the_penalty_of_an_eager_one(variant, tmp_path):
    run = penalized(tmp_path, max_steps=2, variant=variant)
    eager = train(run, tmp_path / "eager")
    compute = replace(run.compute, compile=True)
    compiled = train(replace(run, compute=compute), tmp_path / "compiled")
    for name in ("loss", "grad_norm", *TERMS):
        for ours, theirs in zip(*map(rows_of_training, (compiled, eager)), strict=True):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4), name
