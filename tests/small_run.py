"""A run of seconds for the tests of training, and how it is interrupted and compared."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from layermem_bench.config.run import Compute, Data, Model, Optim, Run, Task
from layermem_bench.run.folder import RunFolder, step_of

# Problems that are drawn, solved and graded in no time.
SUMS = Task(
    name="arithmetic",
    examples=30,
    validation=5,
    test=6,
    options=(
        *("operands=2", "operand_max=20", "value_max=40", "trivial=1.0"),
        "held_out=strict",
    ),
)
# What a resumed run must repeat; speeds it may not.
SAME = ("step", "tokens", "loss", "lr", "router_lr", "grad_norm", "val_loss", "router_norm")

# Changes: validated and saved at the same step and trained on, documents kept apart, so that not
# every sequence has as many labels.
UNEVEN = {
    "max_steps": 4,
    "eval_every": 2,
    "save_every": 2,
    "data": {"isolate_documents": True},
}


def a_run(folder, **changes):
    """Return a run of 8 steps on words it makes up; fields of its parts go by their names."""
    source = folder / "words.jsonl"
    if not source.exists():
        texts = [" ".join(f"w{(i * j) % 13}" for j in range(20)) for i in range(60)]
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    run = Run(
        max_steps=8,
        eval_every=4,
        save_every=2,
        model=Model(
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=3,
            num_attention_heads=2,
        ),
        data=Data(
            source=str(source),
            cache=str(folder / "cache"),
            block_size=24,
            validation_share=0.2,
        ),
        optim=Optim(batch_size=8, warmup_steps=2, lr=1e-2),
        compute=Compute(micro_batch=4, precision="float32"),
    )
    for part in ("model", "data", "optim", "compute"):
        if part in changes:
            changes[part] = replace(getattr(run, part), **changes[part])
    return replace(run, **changes)


def layout_run(folder):
    return a_run(folder, keep=9, model={"tie_word_embeddings": True})


def curve(folder):
    """Return the rows without what the machine's speed decides."""
    return [{k: row[k] for k in SAME if k in row} for row in folder.rows()]


def rewound(begun, to, step=4):
    """Return a copy of a run as it was when its checkpoint of a step had just been written."""
    shutil.copytree(begun, to)
    folder = RunFolder(to)
    shutil.rmtree(folder.final)
    for path in folder.complete_checkpoints():
        if step_of(path) > step:
            shutil.rmtree(path)
    return folder


def weights(folder):
    """Return the weights of a run's final model."""
    return load_file(folder.final / "model.safetensors")


def assert_same_end(a, b):
    """Compare the curves and the final weights of two runs, bit for bit."""
    assert curve(a) == curve(b)
    ours, theirs = weights(a), weights(b)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def assert_alike(folder, expected, *, sharded):
    """Compare the curves and the final weights of two runs, to rounding."""
    ours, theirs = curve(folder), curve(expected)
    assert [row["step"] for row in ours] == [row["step"] for row in theirs]
    for row, other in zip(ours, theirs, strict=True):
        for name, value in other.items():
            # No process that shards has the routers whole, to watch their norm.
            if name != "router_norm" or not sharded:
                assert row[name] == pytest.approx(value, rel=1e-5, abs=1e-8), (row["step"], name)
    ours, theirs = weights(folder), weights(expected)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-3, atol=1e-5)


class Interrupted(BaseException):
    """Not an Exception: nothing on the way may catch it."""


def interrupt():
    raise Interrupted


def stop_at(monkeypatch, step, act):
    """Have ``act`` called when the row of a step is written."""
    append_row = RunFolder.append_row

    def watched(self, row):
        append_row(self, row)
        if row["step"] == step and "loss" in row:
            act()

    monkeypatch.setattr(RunFolder, "append_row", watched)
