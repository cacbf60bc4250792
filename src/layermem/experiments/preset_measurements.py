"""The time and peak memory that presets take on this machine.

Time is that of some training steps, times the number of steps of the run; it leaves out validation,
solving and saving. A preset whose step takes minutes on this machine is skipped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from layermem.efficiency.measuring import Shape, describe_machine, measure
from layermem.efficiency.model_sizes import model_sizes
from layermem.experiments.preset_costs import PresetCost

# FLOPs of a micro-batch beyond which a preset is not measured: minutes for each step.
_MOST_FLOPS = {"cpu": 1e12, "cuda": 2e16}
_REPEATS = 3


@dataclass(frozen=True, kw_only=True)
class PresetMeasurement:
    """What training a preset takes on this machine, with one variant."""

    seconds: float
    """The whole run, from the median time of a micro-batch."""
    peak_bytes: int | None
    """Peak memory of model, optimiser and a micro-batch; None: the system does not say."""


def measure_presets(
    costs: Sequence[PresetCost], variants: Sequence[str] = ("plain", "lime")
) -> Iterator[tuple[str, Mapping[str, PresetMeasurement] | None]]:
    """Yield each preset's name and what each variant takes; None: too large for this machine.

    Presets of the same sizes, tokens and micro-batch are measured once.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    measured: dict[object, Mapping[str, tuple[float, int | None]]] = {}
    for preset in costs:
        run, fields = preset.run, model_sizes(preset.run)[0]
        batch = min(run.compute.micro_batch, run.optim.batch_size)
        flops = batch * preset.sequence_tokens * preset.flops_per_token
        if flops > _MOST_FLOPS[device]:
            yield preset.name, None
            continue
        key = (tuple(sorted(fields.items())), preset.sequence_tokens, batch)
        if key not in measured:
            shape = Shape(
                batch=batch,
                tokens=preset.sequence_tokens,
                device=device,
                precision="float32" if device == "cpu" else "bfloat16",
            )
            steps = measure({name: (name, fields) for name in variants}, shape, _REPEATS)
            measured[key] = {name: (step.seconds, step.peak) for name, step in steps.items()}
        yield (
            preset.name,
            {
                name: PresetMeasurement(
                    seconds=seconds * preset.sequences / batch, peak_bytes=peak_bytes
                )
                for name, (seconds, peak_bytes) in measured[key].items()
            },
        )


def conditions() -> str:
    """Return the machine and the conditions that hold for every measurement."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    precision = "float32" if device == "cpu" else "bfloat16"
    return f"{describe_machine(device)}, {precision}, eager"
