"""How long steps take and how much memory: measured once, as runs are trained."""

import json
from dataclasses import replace

import pytest
from recorded import SIZES

from layermem_bench.config.run import Compute, Run
from layermem_bench.studies.steps import base_of_step, measured_steps, shape_of

BASE = Run(preset="made-up", max_steps=40, model=SIZES)
# Of versions that timed one micro-batch, with all logits.
OF_BASE = "52082805d844"


def arms(*names, base=BASE):
    return {name: replace(base, variant=name) for name in names}


def test_steps_are_timed_as_runs_are_trained():
    """In the precision and the mode of the board, with all micro-batches and chunks."""
    shape = shape_of(BASE)
    assert (shape.mode, shape.micro_batches, shape.loss_chunk) == ("eager", 1, 0)
    half = Compute(precision="bfloat16", compile=True, micro_batch=4, loss_chunk=16)
    shape = shape_of(replace(BASE, compute=half))
    assert (shape.precision, shape.mode, shape.warm_up) == ("bfloat16", "default", 3)
    assert (shape.batch, shape.tokens, shape.loss_chunk) == (4, BASE.data.block_size, 16)
    assert shape.micro_batches == BASE.optim.batch_size // 4


def test_what_decides_a_steps_cost_is_not_the_run_alone():
    others = (
        Compute(micro_batch=4),
        Compute(loss_chunk=16),
        Compute(compile=True),
        Compute(checkpoint_activations=True),
        Compute(checkpoint_activations=True, checkpoint_every=2),
    )
    digests = {base_of_step(replace(BASE, compute=compute)) for compute in others}
    assert len({*digests, OF_BASE, base_of_step(replace(BASE, seed=1))}) == len(others) + 2
    # As earlier versions have it.
    assert base_of_step(replace(BASE, log_every=3)) == base_of_step(BASE) == OF_BASE


def test_steps_are_timed_in_turn_and_once(tmp_path):
    """Without made-up seconds."""
    small = replace(BASE, optim=replace(BASE.optim, batch_size=2))
    small = replace(small, data=replace(small.data, block_size=8))
    of, file = arms("plain", "lime", base=small), tmp_path / "steps.json"
    timed = measured_steps(file, small, of, tmp_path / "time")
    assert set(timed.ratios) == {"plain", "lime"} and timed.ratios["plain"] == 1
    assert timed.ratios["lime"] > 0.5 and timed.rounds == 9
    assert measured_steps(file, small, of, tmp_path / "time") == timed
    recorded = json.loads(file.read_text())
    # An arm that joins is timed against the first; what was timed stays as it was.
    more = measured_steps(file, small, of | arms("mudd", base=small), tmp_path / "time")
    assert more.ratios == {**timed.ratios, "mudd": more.ratios["mudd"]}
    assert more.seconds["mudd"] == more.ratios["mudd"] * timed.seconds["plain"]
    joined, swapped = of | arms("mudd", base=small), dict(reversed(of.items()))
    for changes, asked, named in (
        ({"base": "0" * 12}, of, "model, data or sizes"),
        # Ratios to the plain decoder say nothing of those to LIMe.
        ({}, swapped, "first arm"),
        ({"arms": {"lime": "0" * 12}}, of, "arm of the name lime"),
        # Arms of two machines would stand side by side.
        ({"machine": "an abacus"}, joined, "machine"),
    ):
        file.write_text(json.dumps({**recorded, **changes}))
        with pytest.raises(ValueError, match=rf"another {named}.*--out"):
            measured_steps(file, small, asked, tmp_path / "time")
