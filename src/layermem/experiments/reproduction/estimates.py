"""What the runs of a plan would cost here: parameters, tokens, FLOPs, hours.

Hours are FLOPs over a speed that is measured on the spot: some training steps of the plain decoder
at the sizes of each study, or of a smaller model where these are too large for this machine.
Validations, solving and analyses are not in them.

It does not know: which runs are recorded, tables.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from layermem.config import Run
from layermem.efficiency.costs import cost
from layermem.efficiency.measuring import (
    Shape,
    describe_machine,
    make_training_step,
    time_interleaved,
)
from layermem.experiments.model_sizes import model_sizes
from layermem.models.registry import lookup

Basis = Literal["measured", "extrapolated"]
Sizes = tuple[dict[str, Any], float]
UNCERTAINTY: Mapping[Basis, str] = {
    "measured": "steps of the plain decoder of these sizes, timed now; arms that mix layers take "
    "up to half as long again as their FLOPs say, and validation, solving and what else the "
    "machine does are not in it: within a factor of 2",
    "extrapolated": "steps of a smaller model, timed now, and FLOPs: within a factor of 10",
}
"""What an estimate is from, and how wrong it may be."""
# FLOPs of a timed step, about: some seconds on a CPU, a moment on a GPU.
_STEP_FLOPS = {"cpu": 2e10, "cuda": 1e15}
# Bytes of weights, gradients and the optimiser's states of a timed model, at most.
_MOST_BYTES = {"cpu": 2e9, "cuda": 6e10}
_REFERENCE = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 1000,
}
_REPEATS = 2


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """What one run costs in closed form."""

    parameters: int
    """Trainable parameters."""
    tokens: float
    """Tokens of the whole run."""
    flops: float
    """FLOPs of the whole run."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast this machine trains."""

    flops_per_second: float
    """FLOPs of training steps in a second of one thread, or of the GPU."""
    basis: Basis
    """What was timed."""


def machine() -> str:
    """Return what hours are of."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return describe_machine(device)


def run_cost(run: Run, sizes: Sizes | None = None) -> RunCost:
    """Return what a run costs in closed form, without building anything.

    ``sizes``: what ``model_sizes`` says of a run of the same study; None: it is asked.
    """
    fields, length = sizes or model_sizes(run)
    fields = fields | run.model.variant_fields()
    entry, tokens = lookup(run.variant), max(1, round(length))
    step = cost(entry.config(**fields), entry.variant, tokens)
    trained = run.max_steps * run.optim.batch_size * length
    return RunCost(
        parameters=step.parameters, tokens=trained, flops=trained * step.training / tokens
    )


def total(costs: Iterable[RunCost]) -> RunCost:
    """Return the tokens and FLOPs of all runs, and the parameters of the largest."""
    costs = list(costs)
    return RunCost(
        parameters=max((each.parameters for each in costs), default=0),
        tokens=sum(each.tokens for each in costs),
        flops=sum(each.flops for each in costs),
    )


def measure_speed(run: Run, sizes: Sizes | None = None) -> Speed:
    """Time some training steps of the plain decoder at a run's sizes, or of a smaller model."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    fields, length = sizes or model_sizes(run)
    tokens = max(2, round(length))
    basis: Basis = "measured"
    entry = lookup("plain")
    if 16 * cost(entry.config(**fields), None, tokens).parameters > _MOST_BYTES[device]:
        fields, tokens, basis = dict(_REFERENCE), 256, "extrapolated"
    step = cost(entry.config(**fields), None, tokens)
    batch = int(_STEP_FLOPS[device] / step.training)
    shape = Shape(
        batch=max(1, min(run.compute.micro_batch, run.optim.batch_size, batch)),
        tokens=tokens,
        device=device,
        precision="float32" if device == "cpu" else "bfloat16",
    )
    seconds = _seconds_of_a_step(fields, shape)
    return Speed(
        flops_per_second=shape.batch * step.training / seconds,
        basis=basis,
    )


def _seconds_of_a_step(fields: Mapping[str, Any], shape: Shape) -> float:
    """Return the shorter of the timed steps of the plain decoder: the other was disturbed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        steps = {"plain": make_training_step(("plain", fields), shape)}
        return min(time_interleaved(steps, _REPEATS, shape.device)["plain"])
    finally:
        torch.set_num_threads(threads)
