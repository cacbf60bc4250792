"""Tests of measurements: interleaved rounds, the warm-up, peak memory."""

import platform
import time
from dataclasses import replace

import pytest
import torch
from tiny import TINY

from layermem import list_variants
from layermem_bench.config import computing
from layermem_bench.costs import measuring
from layermem_bench.costs.measuring import Shape, measure, measure_peak_memory, time_interleaved

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


@pytest.mark.parametrize("loss_chunk", [0, 4])
def test_a_step_is_computed_as_its_shape_says(loss_chunk, monkeypatch):
    """Micro-batches add up their gradients before one update; every other layer is recomputed."""
    model, chunks, gradients = measuring.build("plain", **TINY), [], []
    chunked = type(model)._chunked_loss

    def watched(self, outputs, labels, chunk, **kwargs):
        chunks.append(chunk)
        return chunked(self, outputs, labels, chunk, **kwargs)

    def updated(self, *args, **kwargs):
        gradients.append(model.model.norm.weight.grad.clone())

    monkeypatch.setattr(type(model), "_chunked_loss", watched)
    monkeypatch.setattr(torch.optim.AdamW, "step", updated)
    shape = Shape(batch=1, tokens=8, loss_chunk=loss_chunk)
    for micro_batches in (1, 3):
        torch.manual_seed(0)
        measuring.step_of(model, replace(shape, micro_batches=micro_batches))()
    torch.testing.assert_close(gradients[1], 3 * gradients[0])
    assert chunks == [loss_chunk] * 4 * (loss_chunk > 0)
    again = replace(shape, checkpoint_activations=True, checkpoint_every=2)
    measuring.step_of(model, again)()
    recomputed = [layer.gradient_checkpointing for layer in model.model.layers]
    assert recomputed == [number % 2 == 0 for number in range(len(recomputed))]


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
    monkeypatch.setattr(computing, "_CPUINFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Abacus  5 @ 1 Hz\n")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "BEADS")
    here = measuring.describe_machine("cpu")
    assert here == f"Abacus 5 @ 1 Hz (BEADS), 1 thread; torch {torch.__version__}"
    (tmp_path / "cpuinfo").write_text("processor\t: 0\n")
    assert computing.processor_name() in (platform.processor(), platform.machine())


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
@pytest.mark.skipif(not measuring.CLEAR_REFS.exists(), reason="the system does not say its peak")
def test_the_peak_holds_weights_gradients_and_the_optimisers_two_moments():
    model = ("plain", {**TINY, "vocab_size": 20_000, "hidden_size": 128})
    weights = 4 * 2 * 20_000 * 128
    # 20,000 logits of 4 bytes a token, and their gradient.
    logits = 2 * 4 * 20_000 * 8 * 64
    peak = measure_peak_memory(model, Shape(batch=8, tokens=64))
    # AdamW over lists of tensors makes up to two more copies of weights on its way, the loss a part
    # of one of the logits; and there are small tensors.
    assert 4 * weights + logits < peak < 6.5 * weights + 1.5 * logits
