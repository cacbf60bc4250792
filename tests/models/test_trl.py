"""TRL's trainers: a model handed over, one by its path, and the reference models they make."""

import math

import pytest
import torch
from tiny import KINDS, TINY, make

from layermem.models.registry import lookup

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


def test_direct_preference_optimisation(entry, saved, tokenizer, tmp_path):
    """The reference is the checkpoint itself, memory and all: the first loss is that of a draw."""
    trainer = trl.DPOTrainer(
        model=str(saved),
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
