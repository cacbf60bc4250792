"""TRL's trainers: a model handed over, one by its path, and the reference models they make."""

import math

import pytest
import torch
from host_models import make_attached
from tiny import KINDS, TINY, make
from transformers import AutoModelForCausalLM

from layermem.models.registry import lookup
from layermem.retrofit.attachment import has_memory

trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")
# Their own: names of arguments that transformers is about to drop, and the like.
pytestmark = pytest.mark.filterwarnings("ignore")

TEXTS = {"text": ["a b c d e", "h g f e d", "a c e g"] * 4}
PAIRS = {
    "prompt": ["a b", "c d"] * 4,
    "chosen": ["c d", "e f"] * 4,
    "rejected": ["h g", "a a"] * 4,
}


@pytest.fixture(params=KINDS)
def entry(request):
    return lookup(request.param)


@pytest.fixture
def saved(entry, tokenizer, tmp_path):
    """A checkpoint's folder, with its tokenizer."""
    folder = tmp_path / "saved"
    make(entry.causal_lm, entry.config(**TINY)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def options(folder, **more):
    return {
        "output_dir": str(folder / "out"),
        "max_steps": 2,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "save_strategy": "no",
        **more,
    }


def moved(trainer, start):
    """Whether every weight of the trained model differs from the checkpoint's."""
    weights = dict(trainer.model.named_parameters())
    assert weights.keys() == dict(start.named_parameters()).keys()
    return all(not torch.equal(p, start.get_parameter(name)) for name, p in weights.items())


def test_supervised_fine_tuning_with_trl(entry, tokenizer, tmp_path):
    model = make(entry.causal_lm, entry.config(**TINY))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainer = trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(**options(tmp_path, save_strategy="steps", save_steps=2)),
        train_dataset=datasets.Dataset.from_dict(TEXTS),
        processing_class=tokenizer,
    )
    trainer.train()
    changed = [name for name, p in model.named_parameters() if not torch.equal(p, before[name])]
    assert len(changed) == len(before)
    loaded = entry.causal_lm.from_pretrained(tmp_path / "out" / "checkpoint-2")
    for name, parameter in model.named_parameters():
        assert torch.equal(loaded.get_parameter(name), parameter)


def test_supervised_fine_tuning_by_path(entry, saved, tokenizer, tmp_path):
    trainer = trl.SFTTrainer(
        model=str(saved),
        args=trl.SFTConfig(**options(tmp_path)),
        train_dataset=datasets.Dataset.from_dict(TEXTS),
        processing_class=tokenizer,
    )
    assert type(trainer.model) is entry.causal_lm
    trainer.train()
    assert moved(trainer, entry.causal_lm.from_pretrained(saved))


@pytest.mark.parametrize(
    "given",
    [{"packing": True, "max_length": 16}, {"padding_free": True, "max_length": None}],
    ids=["packing", "padding_free"],
)
def test_packed_documents_are_kept_apart(entry, tokenizer, given, tmp_path):
    model = make(entry.causal_lm, entry.config(**TINY))
    trainer = trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(**options(tmp_path, per_device_train_batch_size=12, **given)),
        train_dataset=datasets.Dataset.from_dict(TEXTS),
        processing_class=tokenizer,
    )
    losses, tokens = 0.0, 0
    for row in trainer.train_dataset:
        lengths = row.get("seq_lengths", [len(row["input_ids"])])
        for text in torch.tensor(row["input_ids"]).split(lengths):
            with torch.no_grad():
                losses += model(text[None], labels=text[None]).loss.item() * (len(text) - 1)
            tokens += len(text) - 1
    trainer.train()
    first, second = (float(row["loss"]) for row in trainer.state.log_history[:2])
    assert first == pytest.approx(losses / tokens, rel=1e-5) and second < first


@pytest.mark.parametrize("by", ["path", "model"])
def test_direct_preference_optimisation(entry, saved, tokenizer, by, tmp_path):
    """The reference is the checkpoint itself, memory and all: the first loss is that of a draw."""
    trainer = trl.DPOTrainer(
        model=str(saved) if by == "path" else entry.causal_lm.from_pretrained(saved),
        args=trl.DPOConfig(**options(tmp_path)),
        train_dataset=datasets.Dataset.from_dict(PAIRS),
        processing_class=tokenizer,
    )
    assert type(trainer.model) is type(trainer.ref_model) is entry.causal_lm
    trainer.train()
    first, second = (row["loss"] for row in trainer.state.log_history[:2])
    assert float(first) == pytest.approx(math.log(2), abs=1e-4)
    assert float(second) < float(first) - 0.01
    assert moved(trainer, entry.causal_lm.from_pretrained(saved))


@pytest.mark.parametrize("trainer_class", [trl.SFTTrainer, trl.DPOTrainer])
def test_an_attached_model_by_its_path(trainer_class, tokenizer, tmp_path):
    make_attached("llama").save_pretrained(tmp_path / "saved")
    config = trl.SFTConfig if trainer_class is trl.SFTTrainer else trl.DPOConfig
    trainer = trainer_class(
        model=str(tmp_path / "saved"),
        args=config(**options(tmp_path, save_strategy="steps", save_steps=2)),
        train_dataset=datasets.Dataset.from_dict(TEXTS if config is trl.SFTConfig else PAIRS),
        processing_class=tokenizer,
    )
    trainer.train()
    start = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert has_memory(start) and moved(trainer, start)
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "checkpoint-2")
    for name, parameter in trainer.model.named_parameters():
        assert torch.equal(trained.get_parameter(name), parameter)


def test_group_relative_policy_optimisation(entry, saved, tokenizer, tmp_path):
    def longest(completions, **_):
        return [float(len(set(completion))) for completion in completions]

    trainer = trl.GRPOTrainer(
        model=str(saved),
        reward_funcs=longest,
        args=trl.GRPOConfig(
            **options(tmp_path, num_generations=4, max_completion_length=6, beta=0.1)
        ),
        train_dataset=datasets.Dataset.from_dict({"prompt": PAIRS["prompt"]}),
        processing_class=tokenizer,
    )
    trainer.train()
    start = entry.causal_lm.from_pretrained(saved)
    assert moved(trainer, start)
    for name, parameter in trainer.ref_model.named_parameters():
        assert torch.equal(parameter, start.get_parameter(name))
