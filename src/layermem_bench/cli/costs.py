"""`layermem costs`: what variants cost side by side, and what a run would take on a cluster."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import tyro

from layermem_base.number_ranges import SHARE, at_least, number
from layermem_bench.cli.screen import show
from layermem_bench.config.computing import Device, Mode, Precision, get_device
from layermem_bench.config.run import Run


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Count what variants cost, in closed form; --measure: the time and memory of a step too;
    --device: what it would take to train them on such devices instead."""

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
    batch: int = number(4, at_least(1))
    """Sequences of a measured step."""
    repeats: int = number(9, at_least(2))
    """Measured rounds, after a warm-up."""
    modes: tuple[Mode, ...] = ("eager",)
    """How measured steps are carried out: eager, or torch.compile's modes (the paper: default and
    reduce-overhead)."""
    precision: Precision | None = None
    """Arithmetic of measured steps, None: bfloat16 on a GPU, else float32; with --device of the
    run, None: the preset's."""
    device: str | None = None
    """Device that would train the presets (h100, h200, a100-80gb, b200, l40s, rtx4090, ...): its
    memory, time and GPU-hours are printed, in closed form."""
    gpus: int = number(8, at_least(1))
    """With --device: how many there are."""
    utilisation: float = number(0.4, SHARE)
    """With --device: share of its peak FLOPs that arithmetic reaches, as assumed."""
    micro_batch: int | None = number(None, at_least(1))
    """With --device: sequences that it computes at once; None: the preset's."""
    shard: bool = False
    """With --device: parameters are sharded over devices (FSDP2), not copied to each (DDP)."""
    checkpoint_activations: bool = False
    """With --device: layers are computed again in the backward."""


def costs(options: Costs, command: str) -> None:
    """Print what variants cost."""
    if options.device is None:
        _show_costs(options)
    else:
        _show_plans(options, get_device(options.device))


def _show_plans(options: Costs, device: Device) -> None:
    from layermem_bench.costs.plan import plan
    from layermem_bench.pages.cost_tables import plan_table

    gpus, share = options.gpus, options.utilisation
    for preset, runs in _runs_at_sizes(options):
        plans = {arm: plan(run, device, gpus, share) for arm, run in runs.items()}
        show(plan_table(preset, plans, device, gpus, share))


def _show_costs(options: Costs) -> None:
    from layermem_bench.costs import measuring
    from layermem_bench.costs.closed_forms import Cost, count_cost
    from layermem_bench.costs.model_sizes import model_fields
    from layermem_bench.pages.cost_tables import cache_table, counted_table, measured_table

    device, usual = measuring.device_and_precision()
    precision, batch, rows, steps = options.precision or usual, options.batch, list[Cost](), []
    for _, runs in _runs_at_sizes(options):
        counted = [count_cost(arm, run, tokens=options.tokens) for arm, run in runs.items()]
        rows += counted
        tokens = counted[0].tokens
        models = {arm: (run.variant, model_fields(run)) for arm, run in runs.items()}
        for mode in options.modes if options.measure else ():
            shape = measuring.Shape(
                batch=batch, tokens=tokens, device=device, precision=precision, mode=mode
            )
            taken = measuring.measure(models, shape, options.repeats)
            steps += [(cost, mode, taken[cost.arm]) for cost in counted]
    show(counted_table(rows))
    show(cache_table(rows))
    if steps:
        where = f"{measuring.describe_machine(device)}, {precision}"
        show(measured_table(steps, f"{where}; {batch} sequences a step, {options.repeats}"))


def _runs_at_sizes(options: Costs) -> Iterator[tuple[str, dict[str, Run]]]:
    """Yield each preset at each size, and the run of each arm."""
    from layermem_bench.costs.model_sizes import reshaped, runs_of_arms
    from layermem_bench.presets import get_preset
    from layermem_bench.studies.boards import parse_arms

    of_run = ("micro_batch", "shard", "checkpoint_activations", "precision")
    given = {name: value for name in of_run if (value := getattr(options, name))}
    arms = parse_arms(options.variants)
    depths, widths = options.layers or (None,), options.widths or (None,)
    for preset, depth, width in product(options.presets, depths, widths):
        base = reshaped(get_preset(preset), depth, width)
        yield preset, runs_of_arms(replace(base, compute=replace(base.compute, **given)), arms)
