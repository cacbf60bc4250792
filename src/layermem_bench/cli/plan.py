"""`layermem costs PRESET --gpus N --device NAME`: what it would take to train a preset there."""

from dataclasses import dataclass
from typing import Any, Literal

from layermem.models.number_ranges import SHARE, at_least, number
from layermem_bench.cli.screen import screen, show
from layermem_bench.config.devices import get_device

_OF_RUN = ("micro_batch", "shard", "replicas", "checkpoint_activations", "keep_whole", "precision")


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
    replicas: int | None = number(None, at_least(1))
    """With --gpus: copies of the model, each sharded over its share of the devices; None: the
    preset's."""
    keep_whole: Literal["nothing", "gradients", "all"] | None = None
    """With --gpus: what a sharded run keeps unsharded between micro-batches; None: the preset's."""
    checkpoint_activations: bool = False
    """With --gpus: layers are computed again in the backward, whatever the preset says."""


def check(options: Any) -> None:
    """Raise where options of a plan stand without each other, or beside those of no plan."""
    if options.gpus is None:
        plain = PlanOptions()
        unused = [
            name
            for name in vars(plain)
            if name != "gpus" and getattr(options, name) != getattr(plain, name)
        ]
        if unused:
            named = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
            raise ValueError(f"{named} has no effect without --gpus: add it, or leave it out")
        return
    if options.device is None:
        raise ValueError("--gpus needs --device: which devices they are, such as h100")
    get_device(options.device)
    names = ("measure", "tokens", "layers", "widths", "out", "figure")
    beside = [f"--{name}" for name in names if getattr(options, name)]
    if beside:
        raise ValueError(f"{', '.join(beside)} is of no plan: leave it out, or --gpus")


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
