"""A teacher in training: the gradient, the rows, checkpoints, and what is refused."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_run import UNEVEN, a_run, assert_same_end, rewound
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

from layermem_bench.config.host import Host
from layermem_bench.config.records import Records
from layermem_bench.config.run import Compute, Run, Teacher
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.train.run import train
from layermem_bench.train.trainer import Trainer


@pytest.fixture(scope="session")
def teacher(place):
    """The final model of a plain decoder, trained with another seed."""
    run = a_run(place, variant="plain", seed=5, max_steps=6)
    return str(train(run, place / "teacher").final)


@pytest.fixture(scope="session")
def whole(place, teacher):
    run = a_run(place, keep=9, log_every=3, teacher=Teacher(model=teacher))
    return run, train(run, place / "taught")


def rows_of_training(folder):
    return [row for row in folder.rows() if "loss" in row]


def divergences(folder):
    return [row["teacher_divergence"] for row in rows_of_training(folder)]


def test_a_step_minimizes_the_loss_and_the_divergence_over_all_labels(
    tmp_path, teacher, monkeypatch
):
    seen, batches = {}, []
    step = Trainer.training_step

    def watched(self, model, inputs, *args, **kwargs):
        if not batches:
            seen["model"] = self.model
            seen["weights"] = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        batches.append({name: value.clone() for name, value in inputs.items()})
        loss = step(self, model, inputs, *args, **kwargs)
        seen["gradients"] = {n: p.grad.clone() for n, p in self.model.named_parameters()}
        return loss

    monkeypatch.setattr(Trainer, "training_step", watched)
    run = a_run(tmp_path, **{**UNEVEN, "max_steps": 1}, teacher=Teacher(model=teacher, weight=0.3))
    folder = train(run, tmp_path / "run")
    model, other = seen["model"], AutoModelForCausalLM.from_pretrained(teacher)
    model.load_state_dict(seen["weights"])
    model.zero_grad()
    labels = [int((batch["labels"][:, 1:] != -100).sum()) for batch in batches]
    assert len(labels) == 2 and labels[0] != labels[1]
    loss = divergence = 0.0
    for batch in batches:
        out = model(**batch, num_items_in_batch=sum(labels))
        with torch.no_grad():
            theirs = other(**{n: v for n, v in batch.items() if n != "labels"}).logits.softmax(-1)
        log_ours = functional.log_softmax(out.logits, -1)
        for i, row in enumerate(batch["labels"]):
            for t in range(row.numel() - 1):
                if row[t + 1] != -100:
                    p = theirs[i, t]
                    divergence = divergence + (p * (p.log() - log_ours[i, t])).sum() / sum(labels)
        loss = loss + out.loss
    (0.7 * loss + 0.3 * divergence).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(seen["gradients"][name], parameter.grad, rtol=1e-4, atol=1e-6)
    (row,) = rows_of_training(folder)
    # The loss in a row is without the teacher.
    assert row["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert row["teacher_divergence"] == pytest.approx(divergence.item(), rel=1e-4)


def test_a_teacher_of_no_weight_leaves_the_run_as_it_was(tmp_path, teacher, place):
    run = a_run(place, max_steps=4)
    plain = train(run, tmp_path / "plain")
    deaf = train(replace(run, teacher=Teacher(model=teacher, weight=0.0)), tmp_path / "deaf")
    assert_same_end(plain, deaf)
    assert "teacher_divergence" not in rows_of_training(plain)[0]
    flops = [rows_of_training(folder)[0]["flops"] for folder in (plain, deaf)]
    # A forward of the teacher, which is smaller, beside a forward and a backward.
    assert 1.2 < flops[1] / flops[0] < 1.4


def test_a_model_comes_near_its_teacher(tmp_path, teacher, place):
    run = a_run(place, max_steps=24, eval_every=24, save_every=0)
    taught = replace(run, teacher=Teacher(model=teacher, weight=1.0))
    folder = train(taught, tmp_path / "taught")
    assert divergences(folder)[-1] < 0.3 * divergences(folder)[0]
    assert f"{teacher}, 1 of the loss (distillation)" in (folder.final / "README.md").read_text()


def test_a_resumed_run_is_the_same_to_the_last_bit(whole, tmp_path):
    """Also the mean divergence of three steps, of which one was before the interruption."""
    run, whole = whole
    folder = train(run, rewound(whole.path, tmp_path / "killed").path, resume=True)
    assert_same_end(folder, whole)
    assert divergences(folder) == divergences(whole)
    names = load_file(folder.final / "model.safetensors").keys()
    assert not any("teacher" in name for name in names)


def test_another_teacher_under_its_path_is_refused(whole, teacher, tmp_path, monkeypatch):
    run, whole = whole
    folder = rewound(whole.path, tmp_path / "killed")
    weights = load_file(f"{teacher}/model.safetensors")
    kept = {name: tensor.clone() for name, tensor in weights.items()}
    try:
        save_file(
            {n: t + 0.1 for n, t in kept.items()}, f"{teacher}/model.safetensors", {"format": "pt"}
        )
        with pytest.raises(ValueError, match="does not hold the weights that taught"):
            train(run, folder.path, resume=True)
    finally:
        save_file(kept, f"{teacher}/model.safetensors", {"format": "pt"})


def test_what_a_teacher_has_learnt_is_not_held_out(tmp_path, place, teacher):
    (tmp_path / "words.jsonl").write_text('{"text": "other"}\n' * 30)
    source = place / "words.jsonl"
    held = a_run(tmp_path, teacher=Teacher(model=teacher), data={"validation": str(source)})
    with pytest.raises(ValueError, match="which this run learns from, was trained by run"):
        train(held, tmp_path / "run")


def test_a_teacher_of_other_tokens_or_without_some_weights_is_refused(tmp_path, teacher, place):
    path = tmp_path / "other"
    tokenizer = load_tokenizer(teacher)
    config = LlamaConfig.from_pretrained(teacher, vocab_size=len(tokenizer) + 3)
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    run = a_run(place, teacher=Teacher(model=str(path)))
    with pytest.raises(ValueError, match="predicts one of 260 tokens, the run's model one of 257"):
        train(run, tmp_path / "run")
    model = LlamaForCausalLM.from_pretrained(teacher)
    kept = {n: t for n, t in model.state_dict().items() if "layers.1.mlp.up_proj" not in n}
    model.save_pretrained(path, state_dict=kept)
    with pytest.raises(ValueError, match=r"lacks 1 of the model's weights, such as .*up_proj"):
        train(run, tmp_path / "run")
    for wrong in (tmp_path / "nowhere", place / "teacher"):
        with pytest.raises(ValueError, match=r"has no tokenizer .*of a run: RUN/final"):
            train(replace(run, teacher=Teacher(model=str(wrong))), tmp_path / "wrong")
    # The same words, found otherwise.
    model.save_pretrained(path)
    other = json.loads(tokenizer.backend_tokenizer.to_str())
    other["pre_tokenizer"] = {"type": "Whitespace"}
    loaded = load_tokenizer(teacher)
    loaded._tokenizer = Tokenizer.from_str(json.dumps(other))
    loaded.save_pretrained(path)
    with pytest.raises(ValueError, match="has another tokenizer than the run"):
        train(run, tmp_path / "run")
    tokenizer.add_tokens(["new"])
    tokenizer.save_pretrained(path)
    with pytest.raises(ValueError, match="has another tokenizer than the run"):
        train(run, tmp_path / "run")


def test_a_teacher_that_reads_across_documents_is_refused(tmp_path, teacher, place):
    tokenizer, path = load_tokenizer(teacher), tmp_path / "opt"
    sizes = {"hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = OPTConfig(vocab_size=len(tokenizer), word_embed_proj_dim=16, **sizes)
    OPTForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    run = a_run(place, max_steps=1, teacher=Teacher(model=str(path)))
    train(run, tmp_path / "run")
    apart = replace(run, data=replace(run.data, isolate_documents=True))
    with pytest.raises(ValueError, match="OPTForCausalLM, the teacher, does not keep the"):
        train(apart, tmp_path / "apart")
    # Weights of a trained teacher are larger than new ones, and so is what bfloat16 rounds.
    sizes = {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96}
    config = LlamaConfig.from_pretrained(teacher, initializer_range=0.2, **sizes)
    LlamaForCausalLM(config).save_pretrained(path)
    half = replace(apart.compute, precision="bfloat16")
    train(replace(apart, compute=half), tmp_path / "half")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"compute": Compute(loss_chunk=64)}, "compute.loss_chunk=64 has no effect with teacher"),
        ({"compute": Compute(tensor=2)}, "with compute.tensor=2 is not supported"),
        (
            {"variant": "host", "host": Host(model="m"), "records": Records(source="r.tsv")},
            "teacher.model=t is for decoders of ours",
        ),
    ],
)
def test_what_a_teacher_has_no_part_in_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        Run(teacher=Teacher(model="t"), **changes)
    with pytest.raises(ValueError, match=r"teacher.weight=0.1 is for a run with a teacher"):
        Teacher(weight=0.1)


@pytest.mark.slow
def test_two_processes_hear_the_teacher_as_one(two_processes):
    one, *others = (RunFolder(two_processes / "taught" / way) for way in ("one", "ddp", "fsdp"))
    for folder in others:
        for ours, theirs in zip(*map(rows_of_training, (folder, one)), strict=True):
            for name in ("loss", "grad_norm", "teacher_divergence"):
                assert ours[name] == pytest.approx(theirs[name], rel=1e-4), (folder.path, name)
