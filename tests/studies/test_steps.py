"""How long steps take: measured once, as runs are trained."""

import json
from dataclasses import replace

import pytest
from recorded import SIZES

from layermem_bench.config.run import Compute, Run
from layermem_bench.studies.boards import board_of
from layermem_bench.studies.steps import STEPS, digest_of_step, measured_steps, read_steps, shape_of

BASE = Run(preset="made-up", max_steps=40, model=SIZES)


def test_steps_are_timed_as_runs_are_trained():
    """In the precision and the mode of the board, with all micro-batches and chunks."""
    shape = shape_of(BASE)
    assert (shape.mode, shape.micro_batches, shape.loss_chunk) == ("eager", 1, 0)
    half = Compute(precision="bfloat16", compile=True, micro_batch=4, loss_chunk=16)
    shape = shape_of(replace(BASE, compute=half))
    assert (shape.precision, shape.mode, shape.warm_up) == ("bfloat16", "default", 3)
    assert (shape.batch, shape.tokens, shape.loss_chunk) == (4, BASE.data.block_size, 16)
    assert shape.micro_batches == BASE.optim.batch_size // 4


def test_sizes_and_compute_decide_a_steps_cost_and_neither_seed_nor_length():
    others = [Compute(micro_batch=4), Compute(loss_chunk=16), Compute(compile=True)]
    digests = {digest_of_step(replace(BASE, compute=compute)) for compute in others}
    digests.add(digest_of_step(replace(BASE, model=replace(SIZES, hidden_size=32))))
    assert len({*digests, digest_of_step(BASE)}) == 5
    other = replace(BASE, seed=1, max_steps=80, log_every=3, optim=replace(BASE.optim, lr=0.5))
    assert digest_of_step(other) == digest_of_step(BASE)


def test_steps_are_timed_in_turn_and_once(tmp_path):
    """Without made-up seconds."""
    small = replace(BASE, optim=replace(BASE.optim, batch_size=2))
    small = replace(small, data=replace(small.data, block_size=8))
    board, file = board_of(small, "plain,lime"), tmp_path / "made-up" / STEPS
    assert read_steps(board, tmp_path) is None
    timed = measured_steps(board, tmp_path)
    assert set(timed.ratios) == {"plain", "lime"} and timed.ratios["plain"] == 1
    assert timed.ratios["lime"] > 0.5 and timed.rounds == 9
    # Another seed, and runs of another length, have the same steps.
    again = replace(board, base=replace(small, seed=1, max_steps=80))
    assert measured_steps(again, tmp_path) == timed == read_steps(board, tmp_path)
    recorded = json.loads(file.read_text())
    # An arm that joins is timed against the first; what was timed stays as it was.
    joined = board_of(small, "plain,lime,mudd")
    more = measured_steps(joined, tmp_path)
    assert more.ratios == {**timed.ratios, "mudd": more.ratios["mudd"]}
    assert more.seconds["mudd"] == more.ratios["mudd"] * timed.seconds["plain"]
    for changes, asked, named in (
        # Ratios to the plain decoder say nothing of those to LIMe.
        ({}, board_of(small, "lime,plain"), "first arm"),
        ({"arms": {**recorded["arms"], "lime": "0" * 12}}, board, "lime"),
        # As earlier versions wrote it, who knows of which sizes.
        ({"arms": {}}, board, "plain, lime|lime, plain"),
        # Arms of two machines would stand side by side.
        ({"machine": "an abacus"}, joined, "machine"),
    ):
        file.write_text(json.dumps({**recorded, **changes}))
        with pytest.raises(ValueError, match=rf"another {named}.*--out"):
            measured_steps(asked, tmp_path)
