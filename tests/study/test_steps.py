"""How long steps take and how much memory: measured once, as runs are trained."""

from dataclasses import replace

import pytest
from recorded import SIZES

from layermem_bench.config.run import Compute, Run
from layermem_bench.study import steps
from layermem_bench.study.steps import base_of_step, measured_memory, measured_steps, shape_of

BASE = Run(preset="made-up", max_steps=40, model=SIZES)
# Of versions that timed one micro-batch, with all logits.
OF_BASE = "52082805d844"


def arms(*names, base=BASE):
    return {name: replace(base, variant=name) for name in names}


def test_a_step_has_all_micro_batches_and_the_chunks_of_the_run():
    few = replace(BASE, compute=Compute(micro_batch=4))
    shape = shape_of(few)
    assert (shape.batch, shape.micro_batches) == (4, BASE.optim.batch_size // 4)
    assert shape_of(BASE).micro_batches == 1 and shape_of(BASE).loss_chunk == 0
    chunked = replace(BASE, compute=Compute(loss_chunk=16))
    assert shape_of(chunked).loss_chunk == 16
    # As earlier versions have it, which measured no others.
    assert base_of_step(BASE) == OF_BASE
    assert len({base_of_step(run) for run in (BASE, few, chunked)}) == 3
    hidden = replace(BASE, model=replace(SIZES, vocab_size=1_000_000))
    assert 0 < shape_of(hidden).loss_chunk < 1000


def test_memory_is_measured_once_and_again_for_other_sizes(tmp_path, monkeypatch):
    measured = []

    def peak(make_step, shape):
        (run,) = make_step.args
        measured.append(run.variant)
        return run.model.hidden_size * shape.batch

    monkeypatch.setattr(steps, "measure_peak_of", peak)
    file = tmp_path / "memory.json"

    def measure(*names, base=BASE):
        return measured_memory(file, base, arms(*names, base=base)).peaks

    width, batch = SIZES.hidden_size, BASE.optim.batch_size
    assert measure("plain", "lime") == {"plain": width * batch, "lime": width * batch}
    measure("plain", "lime")
    assert measured == ["plain", "lime"]
    assert list(measure("plain", "lime", "mudd")) == ["plain", "lime", "mudd"]
    assert measured == ["plain", "lime", "mudd"]
    wider = replace(BASE, model=replace(SIZES, hidden_size=2 * width))
    assert measure("plain", "lime", base=wider) == dict.fromkeys(("plain", "lime"), 64 * width)
    monkeypatch.setattr(steps, "describe_machine", lambda device: "another machine")
    measured.clear()
    measure("plain", "lime", base=wider)
    assert measured == ["plain", "lime"]
    file.write_text(file.read_text()[:-20])
    with pytest.raises(ValueError, match=rf"{file} is not what .*; delete it"):
        measure("plain", "lime", base=wider)


def test_an_arm_of_one_name_is_measured_again_where_it_is_another_model(tmp_path, monkeypatch):
    """As of a plugin whose variant was edited, or other options under the same name."""
    seconds = {1: 1.0, 2: 1.5, 4: 3.0}
    day = 1.0

    def time_steps(runs, shape, rounds):
        of = {name: day * seconds[run.model.num_hidden_layers] for name, run in runs.items()}
        return {name: [each] * rounds for name, each in of.items()}

    monkeypatch.setattr(steps, "time_steps", time_steps)
    monkeypatch.setattr(steps, "measure_peak_of", lambda make_step, _: 1)

    def of(**layers):
        return {
            name: replace(BASE, model=replace(SIZES, num_hidden_layers=count))
            for name, count in layers.items()
        }

    file = tmp_path / "steps.json"
    first = measured_steps(file, BASE, of(plain=1, mine=2), tmp_path)
    assert first.ratios == {"plain": 1, "mine": 1.5}
    with pytest.raises(ValueError, match="with another arm of the name mine"):
        measured_steps(file, BASE, of(plain=1, mine=4), tmp_path)
    # What joins on a slower day is in the seconds of the first.
    day = 3.0
    joined = measured_steps(file, BASE, of(plain=1, mine=2, late=4), tmp_path)
    assert joined.ratios["late"] == 3 and joined.seconds["late"] == 3 * joined.seconds["plain"] == 3
    # Memory is measured again: no run's length follows from it.
    memory = tmp_path / "memory.json"
    measured_memory(memory, BASE, of(plain=1, mine=2))
    monkeypatch.setattr(steps, "measure_peak_of", lambda make_step, _: 2)
    assert measured_memory(memory, BASE, of(plain=1, mine=4)).peaks == {"plain": 1, "mine": 2}


def test_steps_are_timed_in_turn_and_once(tmp_path):
    """Without made-up seconds."""
    small = replace(BASE, optim=replace(BASE.optim, batch_size=2))
    small = replace(small, data=replace(small.data, block_size=8))
    of, file = arms("plain", "lime", base=small), tmp_path / "steps.json"
    timed = measured_steps(file, small, of, tmp_path / "time")
    assert set(timed.ratios) == {"plain", "lime"} and timed.ratios["plain"] == 1
    assert timed.ratios["lime"] > 0.5 and timed.rounds == 9
    assert measured_steps(file, small, of, tmp_path / "time") == timed


def test_steps_are_timed_as_runs_are_trained():
    """In the precision and the mode of the board, not in those of this machine."""
    assert shape_of(BASE).mode == "eager" and not shape_of(BASE).checkpoint_activations
    half = replace(BASE, compute=Compute(precision="bfloat16", compile=True, micro_batch=3))
    shape = shape_of(half)
    assert (shape.precision, shape.mode, shape.warm_up) == ("bfloat16", "default", 3)
    assert (shape.batch, shape.tokens) == (3, BASE.data.block_size)
    exact = replace(BASE, compute=Compute(precision="float32", checkpoint_activations=True))
    assert shape_of(exact).precision == "float32" and shape_of(exact).checkpoint_activations


def test_what_decides_a_steps_cost_is_not_the_run_alone():
    others = (
        replace(BASE, compute=Compute(micro_batch=2)),
        replace(BASE, compute=Compute(compile=True)),
        replace(BASE, compute=Compute(checkpoint_activations=True)),
        replace(BASE, compute=Compute(checkpoint_activations=True, checkpoint_every=2)),
        replace(BASE, seed=1),
    )
    assert len({base_of_step(run) for run in (BASE, *others)}) == len(others) + 1
    assert base_of_step(replace(BASE, log_every=3)) == base_of_step(BASE)
