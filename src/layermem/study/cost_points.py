"""What arms cost side by side at some sizes: counted, and measured where asked.

The paper's Tables 8 and 9, and the same along depth and width.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from layermem import presets
from layermem.config import Model as ModelConfig
from layermem.efficiency.costs import COUNTINGS, cost
from layermem.efficiency.measuring import ModelSpec, Shape, describe_machine, measure
from layermem.efficiency.model_sizes import model_sizes, resized
from layermem.models.registry import lookup
from layermem.results.costs import (
    CostPoint,
    Costs,
    Measurement,
    MeasuringOptions,
    Precision,
)
from layermem.results.files import to_json
from layermem.runs import write_atomically
from layermem.study.boards import parse_arms


def count_costs(
    names: Sequence[str],
    variants: str,
    *,
    tokens: int | None = None,
    layers: Sequence[int] = (),
    widths: Sequence[int] = (),
    measuring: MeasuringOptions | None = None,
    command: str = "",
    out: Path | None = None,
) -> Costs:
    """Count what arms cost at the sizes of presets, and measure it where ``measuring`` says how.

    ``tokens``: of a sequence; None: the preset's. ``layers``, ``widths``: in place of the preset's.
    ``command``: what asked for it. ``out``: a file that the result is written to.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sized = list(_models_at_sizes(names, variants, tokens, layers, widths))
    points = [count_point(preset, models, length) for preset, models, length in sized]
    costs = Costs(command=command, points=tuple(points))
    if measuring:
        precision = measuring.precision or ("float32" if device == "cpu" else "bfloat16")
        measured = _measure_all(
            [(models, length) for _, models, length in sized], measuring, device, precision
        )
        costs = replace(
            costs,
            points=tuple(replace(p, measured=m) for p, m in zip(points, measured, strict=True)),
            machine=describe_machine(device),
            precision=precision,
            measuring=measuring,
        )
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, to_json(costs))
    return costs


def count_point(preset: str, models: Mapping[str, ModelSpec], tokens: int) -> CostPoint:
    """Return closed-form costs of models of one size on one sequence of ``tokens``."""
    counted = {}
    for name, (variant, fields) in models.items():
        entry = lookup(variant)
        # A config takes any name, and a misspelt option would cost nothing.
        if unknown := fields.keys() - {field.name for field in dataclass_fields(entry.config)}:
            raise ValueError(f"{entry.config.__name__} has no field {', '.join(sorted(unknown))}")
        config = entry.config(**fields)
        counted[name] = {
            counting: cost(config, entry.variant, tokens, counting) for counting in COUNTINGS
        }
    return CostPoint(
        preset=preset,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        tokens=tokens,
        counted=counted,
    )


def _models_at_sizes(
    names: Sequence[str],
    variants: str,
    tokens: int | None,
    layers: Sequence[int],
    widths: Sequence[int],
) -> Iterator[tuple[str, dict[str, ModelSpec], int]]:
    """Yield preset, models and tokens of a sequence at every size."""
    for preset in names:
        fields, length = model_sizes(presets.get_preset(preset))
        for depth in layers or (None,):
            for width in widths or (None,):
                models: dict[str, ModelSpec] = {
                    arm: (
                        variant,
                        resized(fields, depth, width)
                        | ModelConfig(options=options).variant_fields(),
                    )
                    for arm, (variant, options) in parse_arms(variants).items()
                }
                yield preset, models, tokens or round(length)


def _measure_all(
    models_and_tokens: Sequence[tuple[Mapping[str, ModelSpec], int]],
    measuring: MeasuringOptions,
    device: str,
    precision: Precision,
) -> Iterator[dict[str, dict[str, Measurement]]]:
    """Yield, size by size, mode -> arm -> measurement, with a progress bar."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("measuring", total=len(models_and_tokens) * len(measuring.modes))
        for models, tokens in models_and_tokens:
            by_mode: dict[str, dict[str, Measurement]] = {}
            for mode in measuring.modes:
                shape = Shape(
                    batch=measuring.batch,
                    tokens=tokens,
                    device=device,
                    precision=precision,
                    mode=mode,
                )
                by_mode[mode] = measure(models, shape, measuring.repeats)
                progress.advance(bar)
            yield by_mode
