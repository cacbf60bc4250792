"""Tables of what variants cost: counted, measured, and what training them would take."""

from collections.abc import Iterable, Mapping, Sequence

from layermem_bench.config.devices import Device
from layermem_bench.costs.plan import Plan
from layermem_bench.costs.result import CostPoint, Costs, MeasuringOptions
from layermem_bench.pages.numbers import format_duration, in_bytes, with_unit
from layermem_bench.pages.page import Table

_BYTES = 2
_FLOPS = (
    "FLOPs of the forward of one sequence, in closed form: two a multiply-add, attention to the "
    "keys a causal query sees. The paper's (Table 8): one a multiply-add of linear layers and "
    "routers, two of attention, all keys. Sizes are the first variant's; another may have others "
    "by its own options."
)
_CACHE = (
    "Keys and values in bfloat16, in closed form. Read: by one new token, of a cache of T tokens; "
    "a layer that borrows reads what its lenders hold. Where it forms a mixture of them first "
    "(fused_kv), more is moved."
)
Amounts = Sequence[tuple[str, float | None]]
"""Amounts of a variant as they are written, and the numbers that are compared."""


def counted_table(points: Sequence[CostPoint]) -> Table:
    """Return parameters and FLOPs, in the form of the paper's Table 8."""
    blocks = []
    for point in points:
        arms = {}
        for name, cost in point.counted.items():
            numbers = (cost["honest"].parameters, cost["honest"].forward, cost["paper"].forward)
            arms[name] = [(with_unit(number), float(number)) for number in numbers]
        blocks.append((_describe(point), arms))
    return _beside_first(["parameters", "FLOPs", "paper's FLOPs"], blocks, _FLOPS)


def cache_table(points: Sequence[CostPoint]) -> Table:
    """Return what the cache of keys and values holds of a token, and what is read of it."""
    blocks = []
    for point in points:
        arms = {}
        for name, cache in point.cache.items():
            numbers = _BYTES * cache.held, _BYTES * cache.read * point.tokens
            arms[name] = [(in_bytes(number), float(number)) for number in numbers]
        blocks.append((_describe(point), arms))
    return _beside_first(["cache of a token", "read"], blocks, _CACHE)


def measured_table(costs: Costs) -> Table:
    """Return the time and memory of a step, in the form of the paper's Table 9."""
    blocks, measuring = [], costs.measuring or MeasuringOptions()
    for point in costs.points:
        for mode, by_arm in (point.measured or {}).items():
            arms: dict[str, Amounts] = {}
            for name, taken in by_arm.items():
                times = (taken.seconds, taken.low, taken.high)
                median, low, high = (f"{1e3 * seconds:.4g}" for seconds in times)
                peak = "unknown" if taken.peak is None else in_bytes(taken.peak)
                time = f"{median} ms ({low} to {high})"
                arms[name] = [(time, taken.seconds), (peak, taken.peak)]
            blocks.append((f"{_describe(point)}, {mode}", arms))
    caption = (
        f"{costs.machine}, {costs.precision}; {measuring.batch} sequences a step, "
        f"{measuring.repeats} rounds side by side in one process after a warm-up; a step is "
        "forward, backward, AdamW. On a CPU, time is the process's own. Peak: model, optimiser and "
        "a step, in a process of its own."
    )
    return _beside_first(["step, median (quartiles)", "peak memory"], blocks, caption)


def _beside_first(
    titles: Sequence[str], blocks: Iterable[tuple[str, Mapping[str, Amounts]]], caption: str
) -> Table:
    """Return a table of blocks of variants: each amount, and by how much it exceeds the first
    variant's of the block."""
    rows = []
    for label, arms in blocks:
        first = next(iter(arms.values()), ())
        for i, (name, amounts) in enumerate(arms.items()):
            row = ["" if i else label, name]
            for (written, number), (_, base) in zip(amounts, first, strict=True):
                more = f"{number / base - 1:+.2%}" if i and number is not None and base else ""
                row += [written, more]
            rows.append(row)
    header = ["", "variant", *(cell for title in titles for cell in (title, "more"))]
    return Table(header=header, rows=rows, caption=caption)


def plan_table(
    preset: str, plans: Mapping[str, Plan], device: Device, gpus: int, utilisation: float
) -> Table:
    """Return what training takes on some devices, a column for each arm."""
    columns = {name: _planned_cells(plan, device, gpus) for name, plan in plans.items()}
    labels = next(iter(columns.values()))
    rows = [[label, *(cells[label] for cells in columns.values())] for label in labels]
    ratios = [f"{arm} ({p.measured_ratio})" for arm, p in plans.items() if p.measured_ratio]
    measured = f" Times plain's by a measured compiled step: {', '.join(ratios)}." if ratios else ""
    caption = (
        f"In closed form, not measured: {utilisation:.0%} of {with_unit(device.flops, 3)}FLOP/s, "
        "those of bfloat16 in float32 too, "
        "0.8 of the links, 0.9 of the memory, 8 GPUs a machine; the longer of both times is the "
        f"step's.{measured} Where it does not fit: --shard, --checkpoint-activations, a smaller "
        f"--micro-batch. Device: {device.source}."
    )
    return Table(header=[f"{preset}, {gpus} GPUs", *plans], rows=rows, caption=caption)


def _planned_cells(plan: Plan, device: Device, gpus: int) -> dict[str, str]:
    memory, hours = sum(plan.memory.values()), gpus * plan.seconds / 3600
    fits = "" if plan.fits else ", does not fit"
    return {
        "parameters": with_unit(plan.parameters),
        "tokens at once": f"{plan.tokens_at_once:,}, {plan.micro_batches} times a step",
        **{f"memory: {what}": in_bytes(number) for what, number in plan.memory.items()},
        "memory of a GPU": f"{in_bytes(memory)} of {in_bytes(device.memory)}{fits}",
        "step by arithmetic": format_duration(plan.arithmetic),
        "step by network": format_duration(plan.network),
        "tokens a second": with_unit(plan.tokens_per_second, 3),
        "time": format_duration(plan.seconds),
        "GPU-hours": f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}",
    }


def _describe(point: CostPoint) -> str:
    heads = f"{point.heads} heads"
    if point.kv_heads != point.heads:
        heads += f" ({point.kv_heads} kv)"
    return f"{point.preset}: {point.layers} x {point.width}, {heads}, T {point.tokens}"
