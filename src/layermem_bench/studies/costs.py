"""What arms cost side by side: of presets at some sizes, counted and measured; of recorded runs.

The paper's Tables 8 and 9, and the same along depth and width.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from layermem.models.registry import lookup
from layermem_bench import presets
from layermem_bench.config.counting import count_cached, count_read
from layermem_bench.config.devices import Device
from layermem_bench.config.named import parse_options
from layermem_bench.config.run import Run
from layermem_bench.costs.closed_forms import COUNTINGS, cost
from layermem_bench.costs.measuring import (
    ModelSpec,
    Shape,
    describe_machine,
    device_and_precision,
    measure,
)
from layermem_bench.costs.model_sizes import (
    SIZES,
    model_sizes,
    resized,
    saved_sizes,
    unknown_size,
)
from layermem_bench.costs.plan import Plan, plan
from layermem_bench.costs.result import CacheCost, CostPoint, Costs, Measurement, MeasuringOptions
from layermem_bench.run.folder import RunFolder
from layermem_bench.studies.boards import parse_arms
from layermem_bench.studies.records import naming_damage

logger = logging.getLogger(__name__)
Models = Mapping[str, ModelSpec]


def count_costs(
    names: Sequence[str],
    variants: str,
    *,
    tokens: int | None = None,
    layers: Sequence[int] = (),
    widths: Sequence[int] = (),
    measuring: MeasuringOptions | None = None,
    command: str = "",
) -> Costs:
    """Count what arms cost at the sizes of presets, and measure it where ``measuring`` says how.

    ``tokens`` (of a sequence), ``layers`` and ``widths`` take the place of the preset's.
    """
    sized = list(_models_at_sizes(names, variants, tokens, layers, widths))
    points = [count_point(*each) for each in sized]
    if measuring is None:
        return Costs(command=command, points=tuple(points))
    device, usual = device_and_precision()
    precision = measuring.precision or usual
    for number, (preset, models, length) in enumerate(sized):
        logger.info("measuring %s: %d of %d sizes", preset, number + 1, len(sized))
        shape = Shape(batch=measuring.batch, tokens=length, device=device, precision=precision)
        measured: dict[str, Mapping[str, Measurement]] = {
            mode: measure(models, replace(shape, mode=mode), measuring.repeats)
            for mode in measuring.modes
        }
        points[number] = replace(points[number], measured=measured)
    return Costs(
        command=command,
        points=tuple(points),
        machine=describe_machine(device),
        precision=precision,
        measuring=measuring,
    )


def count_point(preset: str, models: Models, tokens: int) -> CostPoint:
    """Return closed-form costs of models on one sequence of ``tokens``.

    The point's sizes are the first model's; an arm's own options may give it others.
    """
    counted, cache, configs = {}, {}, []
    for name, (variant, values) in models.items():
        entry = lookup(variant)
        # A config takes any name, and a misspelt option would cost nothing.
        if unknown := values.keys() - {field.name for field in fields(entry.config)}:
            raise ValueError(f"{entry.config.__name__} has no field {', '.join(sorted(unknown))}")
        config = entry.config(**values)
        configs.append(config)
        counted[name] = {how: cost(config, entry.variant, tokens, how) for how in COUNTINGS}
        cache[name] = CacheCost(
            held=count_cached(config, entry.variant), read=count_read(config, entry.variant)
        )
    return CostPoint(
        preset=preset,
        layers=configs[0].num_hidden_layers,
        width=configs[0].hidden_size,
        heads=configs[0].num_attention_heads,
        kv_heads=configs[0].num_key_value_heads,
        tokens=tokens,
        counted=counted,
        cache=cache,
    )


def _models_at_sizes(
    names: Sequence[str],
    variants: str,
    tokens: int | None,
    layers: Sequence[int],
    widths: Sequence[int],
) -> Iterator[tuple[str, Models, int]]:
    """Yield preset, models and tokens of a sequence at every size."""
    arms = {
        arm: (variant, parse_options(options))
        for arm, (variant, options) in parse_arms(variants).items()
    }
    for preset in names:
        of_preset, length = model_sizes(presets.get_preset(preset))
        for depth, width in product(layers or (None,), widths or (None,)):
            sizes = resized(of_preset, depth, width)
            models = {arm: (variant, sizes | own) for arm, (variant, own) in arms.items()}
            yield preset, models, tokens or round(length)


def plan_arms(
    preset: str,
    variants: str,
    device: Device,
    gpus: int,
    utilisation: float,
    changes: Mapping[str, Any],
) -> dict[str, Plan]:
    """Return what training each arm would take; ``changes`` are fields of ``config.Compute``."""
    base = presets.get_preset(preset)
    base = replace(base, compute=replace(base.compute, **changes))
    plans = {}
    for arm, (variant, options) in parse_arms(variants).items():
        values = {**base.model.variant_fields(), **parse_options(options)}
        plans[arm] = plan(replace(base, variant=variant), values, device, gpus, utilisation)
    return plans


def costs_of_arms(arms: Mapping[str, tuple[Run, RunFolder]]) -> tuple[CostPoint, ...]:
    """Return closed-form costs of recorded arms at their sizes.

    There are none of models of transformers, nor where an arm's starting model or tokenizer is not
    here and no model was saved, nor where an arm has options that its variant has no more. An arm
    that has not trained a step may have options that no model can have.
    """
    arms = {arm: (run, folder) for arm, (run, folder) in arms.items() if folder.rows()}
    by_size: dict[tuple[Any, ...], dict[str, ModelSpec]] = {}
    for arm, (run, folder) in arms.items():
        values = model_fields(run, folder) if run.host.model is None else None
        if values is None:
            return ()
        size = tuple(values[name] for name in SIZES)
        by_size.setdefault(size, {})[arm] = run.variant, values
    points = []
    for models in by_size.values():
        run, folder = arms[next(iter(models))]
        try:
            points.append(count_point(run.preset, models, _tokens_of_a_sequence(run, folder)))
        except (ValueError, StrictDataclassError):
            return ()
    return tuple(points)


def model_fields(run: Run, folder: RunFolder | None = None) -> dict[str, Any] | None:
    """Return the config fields of the model of a run, which may have a folder already.

    None: what it starts from, or its tokenizer, is not here, and no model of it is saved.
    """
    values, _ = model_sizes(run)
    if folder is not None and (saved := folder.final / "config.json").exists():
        # What it started from, or its tokenizer, may have decided the sizes.
        with naming_damage(folder):
            config = json.loads(saved.read_text(encoding="utf-8"))
        values |= saved_sizes(run.variant, values, config)
    elif unknown_size(run):
        return None
    values["num_key_value_heads"] = values["num_key_value_heads"] or values["num_attention_heads"]
    return values | run.model.variant_fields()


def _tokens_of_a_sequence(run: Run, folder: RunFolder) -> int:
    """Return the mean tokens of a sequence: as recorded, else as the data is prepared."""
    last = folder.last_row()
    if last.get("step") and last.get("tokens"):
        return max(1, round(last["tokens"] / last["step"] / run.optim.batch_size))
    return round(model_sizes(run)[1])
