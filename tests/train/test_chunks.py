"""A run whose loss is computed in chunks of tokens: its curve, what it holds, when that is done."""

import pytest
import torch
from small_run import UNEVEN, a_run, curve
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from layermem.models.causal_lm import DecoderForCausalLM
from layermem_bench.config import micro_batches
from layermem_bench.config.micro_batches import choose_loss_chunk
from layermem_bench.config.run import Task
from layermem_bench.train.run import train

# Of a micro-batch of four sequences of 24 tokens, over bytes and an end token.
LOGITS = 4 * 24 * 257
# Keys and values of three layers of width 16, which LIMe validates with in one tensor.
SLOTS = 2 * 3 * 4 * 24 * 16


class Largest(TorchDispatchMode):
    """Note the size of the largest float tensor that is made."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        leaves = [t for t in tree_leaves(made) if isinstance(t, torch.Tensor)]
        self.elements = max([self.elements, *(t.numel() for t in leaves if t.is_floating_point())])
        return made


def watched(run, out):
    with Largest() as largest:
        folder = train(run, out)
    return curve(folder), largest.elements


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_the_curve_is_the_same_and_no_logits_are_held(tied, tmp_path):
    changes = {**UNEVEN, "save_every": 0, "model": {"tie_word_embeddings": tied}}
    expected, whole = watched(a_run(tmp_path, **changes), tmp_path / "whole")
    run = a_run(tmp_path, **changes, compute={"loss_chunk": 7})
    found, parts = watched(run, tmp_path / "parts")
    assert whole == LOGITS and parts <= SLOTS < LOGITS / 2
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)


def test_a_task_validates_in_chunks_too(tmp_path):
    """Sequences and their labels are of different lengths."""
    few = Task(name="prosqa", examples=8, validation=5)
    rows = []
    for chunk in (0, 5):
        compute = {"loss_chunk": chunk, "micro_batch": 4}
        run = a_run(tmp_path, task=few, max_steps=2, save_every=0, compute=compute)
        rows.append(curve(train(run, tmp_path / str(chunk))))
    assert rows[1] == [pytest.approx(row, rel=1e-5, abs=1e-6) for row in rows[0]]


def test_many_logits_are_in_chunks_unless_the_run_says_otherwise(tmp_path, monkeypatch):
    seen = []
    forward = DecoderForCausalLM.forward

    def watching(self, *args, **kwargs):
        seen.append(kwargs.get("loss_chunk", 0))
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(DecoderForCausalLM, "forward", watching)
    for name, bytes_, compute, expected in (
        ("fit", 4 * LOGITS, {}, 0),
        ("do-not", 4 * LOGITS - 1, {}, 23),
        ("never", 4 * LOGITS - 1, {"loss_chunk": 0}, 0),
        ("said", 4 * LOGITS, {"loss_chunk": 5}, 5),
    ):
        monkeypatch.setattr(micro_batches, "_MAX_LOGITS_BYTES", bytes_)
        run = a_run(tmp_path, max_steps=1, eval_every=1, save_every=0, compute=compute)
        train(run, tmp_path / name)
        # One step and its validation.
        assert len(seen) > 2 and set(seen) == {expected}, name
        seen.clear()


def test_what_is_held_at_most():
    # The 150M and 1B presets' micro-batches over GPT-2's vocabulary.
    for sequences in (4, 32):
        chunk = choose_loss_chunk(None, sequences * 2048, 50_257)
        assert 2**27 < 4 * chunk * 50_257 <= 2**28
    assert choose_loss_chunk(None, 32 * 128, 257) == 0
    # One token's logits are more than the bound.
    assert choose_loss_chunk(None, 64, 2**30) == 1


def test_a_chunk_is_no_less_than_nothing(tmp_path):
    with pytest.raises(ValueError, match="compute.loss_chunk must be at least 0, got -1"):
        a_run(tmp_path, compute={"loss_chunk": -1})
