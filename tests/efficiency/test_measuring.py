"""Tests of measurements: interleaved rounds, the warm-up, peak memory."""

import platform
import time
from dataclasses import replace

import pytest
import torch
from forked import run_code
from tiny import TINY

from layermem import list_variants
from layermem_bench.efficiency import measuring
from layermem_bench.efficiency.measuring import (
    Shape,
    measure,
    measure_peak_memory,
    time_interleaved,
)
from layermem_bench.results import processor

# What compiles for seconds.
SHALLOW = {**TINY, "num_hidden_layers": 2}


def test_rounds_take_each_in_turn_and_leave_the_warm_up_out():
    order = []

    def step(name, seconds):
        def work():
            order.append(name)
            # The first round is slow, as a first round is.
            end = time.process_time() + (0.2 if len(order) <= 2 else seconds)
            while time.process_time() < end:
                pass

        return work

    found = time_interleaved({"a": step("a", 0.01), "b": step("b", 0.03)}, 3, "cpu")
    assert order == ["a", "b"] * 4
    assert [len(values) for values in found.values()] == [3, 3]
    assert all(0.01 <= a < 0.03 <= b < 0.1 for a, b in zip(*found.values(), strict=True))
    assert len(time_interleaved({"a": lambda: None}, 2, "cpu", warm_up=3)["a"]) == 2


def test_a_step_is_computed_as_its_shape_says():
    kept = measuring.build("plain", **TINY)
    measuring.step_of(kept, Shape(batch=1, tokens=4, checkpoint_activations=True))()
    assert kept.is_gradient_checkpointing
    layers, shape = kept.model.layers, Shape(batch=1, tokens=4, checkpoint_activations=True)
    assert all(layer.gradient_checkpointing for layer in layers)
    measuring.step_of(kept, replace(shape, checkpoint_every=2))()
    again = [layer.gradient_checkpointing for layer in layers]
    assert again == [number % 2 == 0 for number in range(len(layers))] and False in again


@pytest.mark.parametrize(("micro_batches", "seconds"), [(1, 4.0), (2, 6.0), (5, 12.0)])
def test_a_step_has_the_time_of_its_micro_batches_and_of_one_update(
    micro_batches, seconds, monkeypatch
):
    """The first micro-batch takes 3 seconds, each that adds to its gradients 2, the update 1."""
    now, parts = [0.0], []
    monkeypatch.setattr(measuring, "read_clock", lambda device: now[0])

    def compute():
        now[0] += 2.0 if parts and parts[-1] == "compute" else 3.0
        parts.append("compute")

    def update():
        now[0] += 1.0
        parts.append("update")

    step = measuring.TrainingStep(compute=compute, update=update, micro_batches=micro_batches)
    assert time_interleaved({"a": step}, 3, "cpu") == {"a": [seconds] * 3}
    parts.clear()
    # Gradients are there while the second micro-batch is computed, as with more.
    step()
    assert parts == ["compute"] * min(micro_batches, 2) + ["update"]


def test_a_step_adds_up_gradients_and_has_as_many_logits_as_its_shape_says(monkeypatch):
    model, chunks, grads = measuring.build("plain", **TINY), [], []
    chunked = type(model)._chunked_loss

    def watched(self, outputs, labels, chunk, **kwargs):
        chunks.append(chunk)
        return chunked(self, outputs, labels, chunk, **kwargs)

    monkeypatch.setattr(type(model), "_chunked_loss", watched)
    weight = model.model.norm.weight
    for chunk in (0, 4):
        step = measuring.step_of(model, Shape(batch=1, tokens=8, micro_batches=3, loss_chunk=chunk))
        for _ in range(2):
            step.compute()
            grads.append(weight.grad.clone())
        torch.testing.assert_close(grads[-1], 2 * grads[-2])
        step.update()
        assert weight.grad is None
        assert chunks == [chunk] * 2 * (chunk > 0)


@pytest.mark.slow
def test_each_of_many_variants_is_compiled(monkeypatch):
    # torch.compile keeps eight versions of one code, and would run the ninth model uncompiled.
    compiled, running = [], []

    def backend(graph, inputs):
        compiled.append(running[-1])
        return graph.forward

    def named(name, step):
        def work():
            running.append(name)
            step()

        return work

    compile_with = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, mode: compile_with(model, backend=backend))
    shape = Shape(batch=1, tokens=4, mode="default")
    steps = {
        name: named(name, measuring.make_training_step((name, SHALLOW), shape))
        for name in list_variants()[:9]
    }
    assert len(steps) == 9
    time_interleaved(steps, 1, "cpu")
    assert set(compiled) == set(steps)
    torch.compiler.reset()


def test_measurements_name_the_processor_and_its_instructions(monkeypatch, tmp_path):
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Abacus  5 @ 1 Hz\n")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "BEADS")
    here = measuring.describe_machine("cpu")
    assert here == f"Abacus 5 @ 1 Hz (BEADS), 1 thread; torch {torch.__version__}"
    (tmp_path / "cpuinfo").write_text("processor\t: 0\n")
    assert processor.processor_name() in (platform.processor(), platform.machine())


def test_a_slower_model_takes_longer_and_threads_are_left_as_they_were(monkeypatch):
    monkeypatch.setattr(measuring, "measure_peak_memory", lambda *_: None)
    before = torch.get_num_threads()
    deep = {**TINY, "num_hidden_layers": 4 * TINY["num_hidden_layers"]}
    shape = Shape(batch=2, tokens=16)
    found = measure({"shallow": ("plain", TINY), "deep": ("plain", deep)}, shape, repeats=3)
    assert torch.get_num_threads() == before
    for one in found.values():
        assert 0 < one.low <= one.seconds <= one.high
    assert found["deep"].seconds > 2 * found["shallow"].seconds


@pytest.mark.slow
@pytest.mark.skipif(
    not measuring._can_measure_peak(), reason="this system does not say its peak memory"
)
def test_the_peak_holds_weights_gradients_and_the_optimisers_two_moments():
    model = ("plain", {**TINY, "vocab_size": 20_000, "hidden_size": 128})
    weights = 4 * 2 * 20_000 * 128
    # 20,000 logits of 4 bytes a token, and their gradient.
    logits = 2 * 4 * 20_000 * 8 * 64
    peak = measure_peak_memory(model, Shape(batch=8, tokens=64))
    # AdamW over lists of tensors makes up to two more copies of weights on its way, the loss a part
    # of one of the logits; and there are small tensors.
    assert 4 * weights + logits < peak < 6.5 * weights + 1.5 * logits


# Prints the bytes of ten blocks that stay in memory when they are freed. The large block raises the
# size up to which the C library keeps freed blocks, of which the last, in use, would hold them.
FREED_BLOCKS = """
import sys
import torch
from layermem_bench.efficiency.measuring import give_back_freed_memory, read_memory

if sys.argv[1] == "give back":
    give_back_freed_memory()
large = torch.ones(8_000_000)
del large
before = read_memory("cpu", "now")
blocks = [torch.ones(500_000) for _ in range(11)]
del blocks[:10]
print(read_memory("cpu", "now") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not (measuring._can_measure_peak() and platform.libc_ver()[0] == "glibc"),
    reason="this system does not say its peak memory, or has another C library",
)
def test_freed_memory_is_given_back_whatever_was_freed_before(tmp_path):
    def left(mode):
        status, shown, errors = run_code(FREED_BLOCKS, mode, folder=tmp_path)
        assert status == 0, errors
        return int(shown)

    assert left("keep") > 10 * 2_000_000
    assert left("give back") < 2 * 2_000_000


@pytest.mark.slow
def test_compiled_and_half_precision_steps_are_measured(monkeypatch):
    """The process that measures the peak would compile them once more."""
    peaks = []
    monkeypatch.setattr(measuring, "measure_peak_memory", lambda *asked: peaks.append(asked))
    shape = Shape(batch=2, tokens=16, precision="bfloat16", mode="default")
    model = ("lime", SHALLOW)
    assert measure({"lime": model}, shape, repeats=2)["lime"].seconds > 0
    assert peaks == [(model, shape)]
