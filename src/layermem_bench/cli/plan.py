"""`layermem costs PRESET --gpus N --device NAME`: what it would take to train a preset there."""

from dataclasses import dataclass, fields
from typing import Any

from layermem_base.number_ranges import SHARE, at_least, number
from layermem_bench.cli.screen import screen, show
from layermem_bench.config.devices import get_device
from layermem_bench.results.costs import MeasuringOptions

_OF_RUN = ("micro_batch", "shard", "checkpoint_activations", "precision")


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """On which devices a preset would be trained, and how."""

    gpus: int | None = number(None, at_least(1))
    """Devices that would train the presets: memory of each, time and GPU-hours are printed, in
    closed form; None: nothing of them."""
    device: str | None = None
    """With --gpus: which devices (h100, h200, a100-80gb, b200, l40s, rtx4090, ...)."""
    per_machine: int = number(8, at_least(1))
    """With --gpus: devices of one machine."""
    utilisation: float = number(0.4, SHARE)
    """With --gpus: share of a device's peak FLOPs that arithmetic reaches, as assumed."""
    micro_batch: int | None = number(None, at_least(1))
    """With --gpus: sequences that a device computes at once; None: the preset's."""
    shard: bool = False
    """With --gpus: parameters are sharded over devices (FSDP2), whatever the preset says; without
    it and in the preset they are copied to each (DDP)."""
    checkpoint_activations: bool = False
    """With --gpus: layers are computed again in the backward, whatever the preset says."""


def check(options: Any) -> None:
    """Raise where options of a plan or of measuring stand alone, or beside those of another use."""
    if options.gpus is None:
        if unused := _given(options, PlanOptions(), besides="gpus"):
            raise ValueError(f"{unused} has no effect without --gpus: add it, or leave it out")
        if not options.measure and (unused := _given(options, MeasuringOptions())):
            raise ValueError(f"{unused} has no effect without --measure: add it, or leave it out")
        return
    if options.device is None:
        raise ValueError("--gpus needs --device: which devices they are, such as h100")
    get_device(options.device)
    names = ("measure", "tokens", "layers", "widths", "out", "figure")
    beside = [f"--{name}" for name in names if getattr(options, name)]
    # The precision is the run's too.
    if measuring := _given(options, MeasuringOptions(), besides="precision"):
        beside.append(measuring)
    if beside:
        raise ValueError(f"{', '.join(beside)} is of no plan: leave it out, or --gpus")


def _given(options: Any, defaults: Any, besides: str = "") -> str:
    """Return the options that differ from their defaults, as they are typed: "--batch, --modes"."""
    names = [field.name for field in fields(defaults) if field.name != besides]
    given = [name for name in names if getattr(options, name) != getattr(defaults, name)]
    return ", ".join(f"--{name.replace('_', '-')}" for name in given)


def plan(options: Any) -> None:
    """Print what it would take to train each preset, and what would make it fit."""
    from layermem_bench.efficiency.plans import Cluster
    from layermem_bench.report.plan_tables import plan_table, warning
    from layermem_bench.study.plans import plan_arms

    cluster = Cluster(
        device=get_device(options.device),
        gpus=options.gpus,
        per_machine=options.per_machine,
        utilisation=options.utilisation,
    )
    given = {name: getattr(options, name) for name in _OF_RUN}
    changes = {name: value for name, value in given.items() if value not in (None, False)}
    for preset in options.presets:
        planned = plan_arms(preset, options.variants, cluster, changes)
        show(plan_table({name: each.plan for name, each in planned.items()}))
        for name, each in planned.items():
            if said := warning(name, each.plan, each.mends):
                screen().print(said, markup=False, highlight=False)
