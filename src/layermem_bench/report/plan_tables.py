"""Draws what a run would take on some devices: memory, time, and what would make it fit."""

from collections.abc import Mapping, Sequence

from layermem_bench.efficiency.plans import REACHED, USABLE, Plan
from layermem_bench.report.numbers import format_duration, in_bytes, with_unit
from layermem_bench.report.page import Table


def plan_table(plans: Mapping[str, Plan]) -> Table:
    """Return a column for each arm, all of one preset on one cluster."""
    first = next(iter(plans.values()))
    cluster = first.cluster
    columns = {name: _cells(plan) for name, plan in plans.items()}
    rows = [[label, *(cells[label] for cells in columns.values())] for label in _cells(first)]
    caption = (
        f"In closed form, not measured. Assumed: {cluster.utilisation:.0%} of "
        f"{with_unit(cluster.device.flops, 3)}FLOP/s, {REACHED:.0%} of the bandwidths, "
        f"{USABLE:.0%} of the memory; {cluster.per_machine} GPUs a machine. Memory is that of "
        "eager PyTorch; compiled code keeps less. The largest of the three times is the "
        "step's, without what a variant's own operations take beside FLOPs (LIMe's: `layermem "
        f"costs --measure`), validation and checkpoints. Device: {cluster.device.source}."
    )
    return Table(header=[first.run.preset, *plans], rows=rows, caption=caption)


def _cells(plan: Plan) -> dict[str, str]:
    """Return the cells of a column, by the label of their row."""
    step, memory, gpus = plan.step, plan.memory, plan.cluster.gpus
    way = "alone" if gpus == 1 else "FSDP2" if step.shard else "DDP"
    if step.shard and step.replicas > 1:
        way = f"{step.replicas} copies, each FSDP2 over {step.shards}"
    return {
        "parameters": with_unit(plan.parameters),
        "processes": f"{gpus} ({way})",
        "micro-batch": f"{step.sequences} x {step.tokens} tokens, {step.micro_batches} a step",
        **{f"memory: {name}": in_bytes(value) for name, value in memory.items()},
        "memory of a GPU": f"{in_bytes(plan.peak)} of {in_bytes(plan.cluster.device.memory)}",
        **{f"step by {name}": format_duration(value) for name, value in plan.seconds.items()},
        "step": f"{format_duration(plan.step_seconds)}, bound by {plan.bound}",
        "tokens a second": with_unit(plan.tokens_per_second, 3),
        "time": format_duration(plan.total_seconds),
        "GPU-hours": f"{plan.gpu_hours:,.0f}" if plan.gpu_hours >= 10 else f"{plan.gpu_hours:.2g}",
    }


def warning(name: str, plan: Plan, mended: Sequence[tuple[str, Plan]]) -> str:
    """Return a sentence on what does not fit and what would mend it; empty: it fits."""
    if plan.fits:
        return ""
    usable = USABLE * plan.cluster.device.memory
    start = (
        f"{name} does not fit: {in_bytes(plan.peak)} at the peak, and a GPU has "
        f"{in_bytes(usable)} for it."
    )
    if not mended:
        return (
            f"{start} Neither shards, checkpointing nor micro-batches of 1 mend it: take more "
            "--gpus, or a --device with more memory."
        )
    ways = "; ".join(
        f"{options} ({in_bytes(changed.peak)}, a step {format_duration(changed.step_seconds)})"
        for options, changed in mended
    )
    return f"{start} It fits with: {ways}."
