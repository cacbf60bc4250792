"""Measurements of a training step's time and peak memory, comparable also on a shared machine.

The models run in one process, one step of each in every round; the first rounds are a warm-up, and
the median of the others counts. On a CPU the time is the CPU time of the process on one thread,
which does not depend on other processes; on a GPU it is wall time. The peak memory of each model is
measured in a new process.
"""

import ctypes
import gc
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from layermem.models.memories import recompute_layers
from layermem.models.registry import build
from layermem_bench.config.computing import (
    Mode,
    Precision,
    processor_name,
    room_to_compile,
    uses_bfloat16,
)
from layermem_bench.run.optimizer import is_ours

CLEAR_REFS = Path("/proc/self/clear_refs")
"""Where Linux restarts the peak of a process's memory."""
# mallopt's number for the size from which on a block is mapped, and unmapped when it is freed.
_MMAP_THRESHOLD = -3


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The input of a training step, and how the step is computed."""

    batch: int
    """Number of sequences."""
    tokens: int
    """Tokens of each sequence."""
    device: str = "cpu"
    """Device of the model."""
    precision: Precision = "float32"
    """Precision of the computation; parameters are float32 in both."""
    mode: Mode = "eager"
    """Eager, or the mode of torch.compile."""
    checkpoint_activations: bool = False
    """Whether layers are computed again in the backward pass."""
    checkpoint_every: int = 1
    """Of how many layers one is."""
    micro_batches: int = 1
    """How many such inputs a step has, one after the other, before its update."""
    loss_chunk: int = 0
    """Tokens whose logits are in memory at once; 0: those of all."""

    @property
    def warm_up(self) -> int:
        """Steps that are not timed: the first ones of a compiled model compile it."""
        return 1 if self.mode == "eager" else 3


ModelSpec = tuple[str, Mapping[str, Any]]
"""A variant's name and the fields of its config."""
Step = Callable[[], None]
"""Takes one training step of a model."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a training step of one model took: median and quartiles of its seconds."""

    seconds: float
    low: float
    high: float
    peak: int | None
    """Bytes the model, its optimiser and a step took at the peak; None: the system does not say."""


def measure(
    models: Mapping[str, ModelSpec], shape: Shape, repeats: int = 9
) -> dict[str, Measurement]:
    """Measure training steps (forward, backward, AdamW) of newly built models."""
    steps = {name: make_training_step(model, shape) for name, model in models.items()}
    seconds = time_interleaved(steps, repeats, shape.device, warm_up=shape.warm_up)
    # The models are gone before other processes measure peaks.
    del steps
    gc.collect()
    if shape.device != "cpu":
        torch.cuda.empty_cache()
    measurements = {}
    for name, model in models.items():
        low, middle, high = statistics.quantiles(seconds[name], n=4, method="inclusive")
        peak = measure_peak_memory(model, shape)
        measurements[name] = Measurement(seconds=middle, low=low, high=high, peak=peak)
    return measurements


def make_training_step(spec: ModelSpec, shape: Shape) -> Step:
    """Build a model and return what takes one training step of it."""
    variant, fields = spec
    torch.manual_seed(0)
    return step_of(build(variant, **fields), shape)


def step_of(model: Any, shape: Shape) -> Step:
    """Return what takes one training step of a model, of what has gradients in it."""
    model.to(shape.device).train()
    if shape.checkpoint_activations:
        recompute_layers(model, shape.checkpoint_every)
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.randint(vocabulary, (shape.batch, shape.tokens), device=shape.device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=1e-4)
    forward: Any = model if shape.mode == "eager" else torch.compile(model, mode=shape.mode)
    kind, half = torch.device(shape.device).type, shape.precision == "bfloat16"
    more: dict[str, Any] = {"loss_chunk": shape.loss_chunk} if shape.loss_chunk else {}
    # As training calls it, so that what is compiled here serves there too.
    more |= {"num_items_in_batch": torch.tensor(ids.numel()).to(ids)} if is_ours(model) else {}

    def step() -> None:
        for _ in range(shape.micro_batches):
            with torch.autocast(kind, torch.bfloat16) if half else nullcontext():
                loss = forward(input_ids=ids, labels=ids.clone(), **more, use_cache=False).loss
            loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def time_interleaved(
    steps: Mapping[str, Step], repeats: int, device: str, warm_up: int = 1
) -> dict[str, list[float]]:
    """Run each step once in every round, on one thread; return the seconds of the rounds after the
    warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    # It is imported where anything is to be compiled.
    compiles = "torch._dynamo" in sys.modules
    if compiles:
        # What was compiled before would take room.
        torch.compiler.reset()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with room_to_compile(len(steps)) if compiles else nullcontext():
            for _ in range(repeats + warm_up):
                for name, step in steps.items():
                    start = read_clock(device)
                    step()
                    seconds[name].append(read_clock(device) - start)
    finally:
        torch.set_num_threads(threads)
    return {name: values[warm_up:] for name, values in seconds.items()}


def read_clock(device: str) -> float:
    """Return seconds: CPU time of the process, or on a GPU wall time after its work is done."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def measure_peak_memory(model: ModelSpec, shape: Shape) -> int | None:
    """Return the peak bytes of a model, its optimiser and its second step, in a new process.

    The first step creates the optimiser's state. None where the system does not report a peak.
    """
    if shape.device == "cpu" and not CLEAR_REFS.exists():
        return None
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_peak_memory_of_step, model, shape).result()


def _peak_memory_of_step(model: ModelSpec, shape: Shape) -> int:
    torch.set_num_threads(1)
    give_back_freed_memory()
    # Memory that torch allocates at its first backward does not count as the model's.
    torch.ones(8, 8, device=shape.device, requires_grad=True).sum().backward()
    before = read_memory(shape.device, "now")
    step = make_training_step(model, shape)
    step()
    read_memory(shape.device, "now")
    step()
    return read_memory(shape.device, "peak") - before


def give_back_freed_memory() -> None:
    """Give freed memory back to the system: now, and from now on each large block when it is freed.

    Otherwise the C library keeps freed blocks, more of them the larger those freed before, so that
    a peak would depend on what the process has done. For a process that only measures.
    """
    gc.collect()
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, 65_536)
        library.malloc_trim(0)


def read_memory(device: str, when: Literal["now", "peak"]) -> int:
    """Return the bytes in use now, and restart the peak; or the peak since then."""
    if device != "cpu":
        if when == "now":
            torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.max_memory_allocated())
    if when == "now":
        CLEAR_REFS.write_text("5", encoding="ascii")
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def device_and_precision() -> tuple[str, Precision]:
    """Return what measures here, a GPU if there is one, and the precision that runs take there."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return device, "bfloat16" if uses_bfloat16("auto") else "float32"


def describe_machine(device: str) -> str:
    """Return the device, the instructions that its kernels use, and the version of torch.

    For captions, and for telling measurements of different machines apart.
    """
    where = f"{processor_name()} ({torch.backends.cpu.get_cpu_capability()}), 1 thread"
    if device != "cpu":
        where = torch.cuda.get_device_name(device)
    return f"{where}; torch {torch.__version__}"
