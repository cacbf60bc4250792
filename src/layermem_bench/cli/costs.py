"""`layermem costs`: what variants cost side by side, and what a run would take on a cluster."""

from dataclasses import dataclass, fields
from pathlib import Path

import tyro

from layermem_base.number_ranges import SHARE, at_least, number
from layermem_bench.cli.screen import show
from layermem_bench.config.devices import get_device
from layermem_bench.costs.result import MeasuringOptions


@dataclass(frozen=True, kw_only=True)
class Costs(MeasuringOptions):
    """Count what variants cost, in closed form; --measure: the time and memory of a step too;
    --gpus: what it would take to train them."""

    presets: tyro.conf.Positional[tuple[str, ...]] = ("paper-1b-gqa", "paper-1b-full")
    """Presets whose sizes are taken."""
    variants: str = "plain,lime"
    """Variants; the first is what the others are compared with."""
    tokens: int | None = number(None, at_least(1))
    """Tokens of a sequence; None: the preset's."""
    layers: tuple[int, ...] = number((), at_least(1))
    """Depths in place of the preset's."""
    widths: tuple[int, ...] = number((), at_least(1))
    """Widths in place of the preset's; heads keep their width, the mlp its ratio."""
    measure: bool = False
    """Whether training steps are run: on a GPU if there is one, else one thread of the CPU."""
    out: Path | None = None
    """File for the figures, as JSON."""
    gpus: int | None = number(None, at_least(1))
    """Devices that would train the presets: memory of each, time and GPU-hours are printed, in
    closed form; None: nothing of them."""
    device: str | None = None
    """With --gpus: which devices (h100, h200, a100-80gb, b200, l40s, rtx4090, ...)."""
    utilisation: float = number(0.4, SHARE)
    """With --gpus: share of a device's peak FLOPs that arithmetic reaches, as assumed."""
    micro_batch: int | None = number(None, at_least(1))
    """With --gpus: sequences that a device computes at once; None: the preset's."""
    shard: bool = False
    """With --gpus: parameters are sharded over devices (FSDP2), whatever the preset says; without
    it and in the preset they are copied to each (DDP)."""
    checkpoint_activations: bool = False
    """With --gpus: layers are computed again in the backward, whatever the preset says."""

    def __post_init__(self) -> None:
        if (self.gpus is None) != (self.device is None):
            raise ValueError("--gpus and --device go together: how many devices, and which (h100)")
        if self.device is not None:
            get_device(self.device)


def costs(options: Costs, command: str) -> None:
    """Print what variants cost."""
    from layermem_base.files import write_atomically
    from layermem_bench.config.result_files import to_json
    from layermem_bench.pages import cost_tables
    from layermem_bench.studies.costs import count_costs, plan_arms

    if options.gpus is not None and options.device is not None:
        if options.out is not None or options.measure:
            raise ValueError("--out and --measure are for costs of variants: leave --gpus out")
        device = get_device(options.device)
        of_run = ("micro_batch", "shard", "checkpoint_activations", "precision")
        given = {name: value for name in of_run if (value := getattr(options, name))}
        for preset in options.presets:
            plans = plan_arms(
                preset, options.variants, device, options.gpus, options.utilisation, given
            )
            show(cost_tables.plan_table(preset, plans, device, options.gpus, options.utilisation))
        return
    names = [field.name for field in fields(MeasuringOptions)]
    measuring = MeasuringOptions(**{name: getattr(options, name) for name in names})
    result = count_costs(
        options.presets,
        options.variants,
        tokens=options.tokens,
        layers=options.layers,
        widths=options.widths,
        measuring=measuring if options.measure else None,
        command=command,
    )
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.out, to_json(result))
    show(cost_tables.counted_table(result.points))
    show(cost_tables.cache_table(result.points))
    if options.measure:
        show(cost_tables.measured_table(result))
