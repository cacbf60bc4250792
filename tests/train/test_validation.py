"""What validates a run is what its config says, and nothing of it is learnt."""

import json
from dataclasses import replace

import pytest
import torch
from small_run import a_run

from layermem.models.registry import lookup
from layermem_bench.train.run import train
from layermem_bench.train.trainer import Trainer


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


@pytest.mark.parametrize("phase", ["training_step", "prediction_step"])
def test_documents_that_are_kept_apart_do_not_see_each_other(phase, tmp_path, monkeypatch):
    """What the model says of a document in a block is what it says of the document alone."""
    compute = getattr(Trainer, phase)

    def watched(self, model, inputs, *args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(type(self.model), "forward", noting)
            return compute(self, model, inputs, *args, **kwargs)

    def noting(self, *args, **kwargs):
        output = forward(self, *args, **kwargs)
        pieces_alike(self, kwargs["input_ids"], kwargs["position_ids"], output.logits)
        return output

    def pieces_alike(model, ids, places, logits):
        for row, starts, said in zip(ids, places.eq(0), logits, strict=True):
            cuts = starts.nonzero().flatten()[1:]
            counted.append(len(cuts))
            for piece, part in zip(row.tensor_split(cuts), said.tensor_split(cuts), strict=True):
                alone = forward(model, piece[None], use_cache=False).logits[0]
                torch.testing.assert_close(part, alone, rtol=1e-4, atol=1e-4)

    counted, forward = [], lookup("lime").causal_lm.forward
    monkeypatch.setattr(Trainer, phase, watched)
    run = a_run(
        tmp_path,
        data={"isolate_documents": True, "block_size": 96},
        max_steps=1,
        save_every=0,
        # Of weights that tell what is before a document.
        model={"options": ("initializer_range=0.5",)},
    )
    train(run, tmp_path / "run")
    assert sum(counted) > 0


def test_how_often_a_run_is_validated_changes_no_weight(tmp_path):
    """Not even with dropout, which draws from the generator that loaders of data draw from."""
    run = a_run(tmp_path, save_every=0, model={"options": ("attention_dropout=0.2",)})
    rows = {}
    for every in (1, 8):
        folder = train(replace(run, eval_every=every), tmp_path / f"every-{every}")
        rows[every] = [row["loss"] for row in folder.rows() if "loss" in row]
    assert rows[1] == rows[8]
