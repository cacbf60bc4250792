"""What validates a run is what its config says, and nothing of it is learnt."""

import json

import pytest
import torch
from small_run import a_run

from layermem.train.run import train
from layermem.train.trainer import Trainer


def letters(path, letter):
    """Documents of one letter, in different numbers."""
    lines = [json.dumps({"text": letter * (40 + i)}) + "\n" for i in range(30)]
    path.write_text("".join(lines))
    return str(path)


@pytest.mark.parametrize("eval_blocks", [None, 3])
def test_validation_is_of_the_validation_text_alone(tmp_path, monkeypatch, eval_blocks):
    learnt, judged = [], []
    training, judging = Trainer.training_step, Trainer.prediction_step

    def train_on(self, model, inputs, *args):
        learnt.extend(inputs["input_ids"].clone())
        return training(self, model, inputs, *args)

    def judge(self, model, inputs, *args, **kwargs):
        judged.extend(inputs["input_ids"].clone())
        return judging(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(Trainer, "training_step", train_on)
    monkeypatch.setattr(Trainer, "prediction_step", judge)
    texts = {
        "source": letters(tmp_path / "a.jsonl", "a"),
        "validation": letters(tmp_path / "b.jsonl", "b"),
    }
    folder = train(a_run(tmp_path, data=texts, eval_blocks=eval_blocks), tmp_path / "run")
    end, size = 256, 24
    assert set(torch.stack(learnt).unique().tolist()) == {ord("a"), end}
    assert set(torch.stack(judged).unique().tolist()) == {ord("b"), end}
    # Every block of it, in order, at each of two validations.
    tokens = sum(((ord("b"),) * (40 + i) + (end,) for i in range(30)), ())
    count = eval_blocks or len(tokens) // size
    expected = torch.tensor(tokens[: count * size]).view(count, size)
    assert torch.equal(torch.stack(judged), expected.repeat(2, 1))
    losses = [row["val_loss"] for row in folder.rows() if "val_loss" in row]
    assert len(losses) == 2 and losses[-1] > folder.rows()[0]["loss"] / 2
