"""Time and memory of a training step, as ratios that hold on a shared machine.

What is compared runs in one process, in turn, after a warm-up; medians count. On a CPU the clock is
the process's own time on one thread, which other people's load does not touch; on a GPU it is the
device's wall time. Peak memory is taken in a process of its own for each.

It does not know: any particular variant, tables.
"""

import gc
import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from layermem.models.counting import parameters
from layermem.models.registry import build, lookup
from layermem.results.costs import Measurement, Mode, Precision


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One training step: what a model is fed, and how it is carried out."""

    batch: int
    """Sequences."""
    tokens: int
    """Tokens of each."""
    device: str = "cpu"
    """Where it runs."""
    precision: Precision = "float32"
    """Arithmetic; parameters are float32 in both."""
    mode: Mode = "eager"
    """Eager, or how torch.compile is asked."""

    def __post_init__(self) -> None:
        for name in ("batch", "tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


Model = tuple[str, Mapping[str, Any]]
"""A variant and the fields of its config."""


def measure(models: Mapping[str, Model], shape: Shape, repeats: int = 9) -> dict[str, Measurement]:
    """Measure training steps (forward, backward, AdamW) of new models, side by side."""
    if repeats < 2:
        raise ValueError(f"repeats must be at least 2, got {repeats}: a median wants several")
    _check_room(models, shape.device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        # What was compiled before is another shape or mode.
        torch.compiler.reset()
        steps = {name: training_step(model, shape) for name, model in models.items()}
        seconds = in_turn(steps, repeats, shape.device, warm_up=1 if shape.mode == "eager" else 3)
    finally:
        torch.set_num_threads(threads)
    # Their memory is for those that follow, each in a process of its own.
    del steps
    gc.collect()
    if shape.device != "cpu":
        torch.cuda.empty_cache()
    found = {}
    for name, model in models.items():
        low, middle, high = statistics.quantiles(seconds[name], n=4, method="inclusive")
        found[name] = Measurement(seconds=middle, low=low, high=high, peak=peak(model, shape))
    return found


def _check_room(models: Mapping[str, Model], device: str) -> None:
    """Refuse what would not fit: all models at once, with gradients and AdamW's two moments."""
    needed = 0
    for variant, fields in models.values():
        entry = lookup(variant)
        needed += 16 * parameters(entry.config(**fields), entry.variant)
    free = _free(device)
    if free is not None and needed > free:
        raise ValueError(
            f"weights, gradients and optimiser of {', '.join(models)} take {needed / 1e9:.3g} GB, "
            f"{free / 1e9:.3g} GB are free; take a smaller preset or fewer --layers, or a machine "
            "with more memory"
        )


def _free(device: str) -> int | None:
    """Return the bytes that are free; None: the system does not say."""
    if device != "cpu":
        return int(torch.cuda.mem_get_info()[0])
    told = Path("/proc/meminfo")
    if not told.exists():
        return None
    lines = told.read_text(encoding="ascii").splitlines()
    found = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return 1024 * found[0] if found else None


def training_step(model: Model, shape: Shape) -> Callable[[], None]:
    """Return a step of a new model, to be called again and again."""
    variant, fields = model
    torch.manual_seed(0)
    made = build(variant, **fields).to(shape.device)
    ids = torch.randint(made.config.vocab_size, (shape.batch, shape.tokens), device=shape.device)
    optimiser = torch.optim.AdamW(made.parameters(), lr=1e-4)
    run: Any = made if shape.mode == "eager" else torch.compile(made, mode=shape.mode)
    kind = torch.device(shape.device).type

    def step() -> None:
        half = shape.precision == "bfloat16"
        with torch.autocast(kind, torch.bfloat16) if half else nullcontext():
            loss = run(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def in_turn(
    steps: Mapping[str, Callable[[], None]], repeats: int, device: str, warm_up: int = 1
) -> dict[str, list[float]]:
    """Run each step once a round; return seconds, the warm-up's rounds left out."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats + warm_up):
        for name, step in steps.items():
            start = clock(device)
            step()
            seconds[name].append(clock(device) - start)
    return {name: values[warm_up:] for name, values in seconds.items()}


def clock(device: str) -> float:
    """Return seconds by the clock that counts on this device."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def peak(model: Model, shape: Shape) -> int | None:
    """Return the bytes a model, its optimiser and its second step take at the peak.

    The first step makes the optimiser's state. In a process of its own: what others left behind
    does not count.
    """
    if shape.device == "cpu" and not _says_peak():
        return None
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_peak, model, shape).result()


def _peak(model: Model, shape: Shape) -> int:
    torch.set_num_threads(1)
    # What a first operator brings in is not the model's.
    torch.ones(8, 8, device=shape.device, requires_grad=True).sum().backward()
    before = held(shape.device, "now")
    step = training_step(model, shape)
    step()
    held(shape.device, "now")
    step()
    return held(shape.device, "peak") - before


def held(device: str, when: Literal["now", "peak"]) -> int:
    """Return the bytes held now (which starts a new peak) or at the peak since."""
    if device != "cpu":
        if when == "now":
            torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.max_memory_allocated())
    if when == "now":
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def machine(device: str) -> str:
    """Say what ran this."""
    where = f"{platform.machine()} CPU, 1 thread"
    if device != "cpu":
        where = torch.cuda.get_device_name(device)
    return f"{where}; torch {torch.__version__}"


def _says_peak() -> bool:
    return Path("/proc/self/clear_refs").exists()
