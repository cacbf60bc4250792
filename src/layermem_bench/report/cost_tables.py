"""Tables of what variants cost: counted, measured, and what training them would take."""

from collections.abc import Mapping, Sequence

from layermem_bench.config.devices import Device
from layermem_bench.efficiency.plan import Plan
from layermem_bench.report.numbers import format_duration, in_bytes, with_unit
from layermem_bench.report.page import Section, Table
from layermem_bench.results.costs import CacheCost, CostPoint, Costs, MeasuringOptions

_BYTES = 2
_GIBIBYTE = 2**30


def counted_table(points: Sequence[CostPoint]) -> Table:
    """Return parameters and FLOPs, in the form of the paper's Table 8."""
    rows = []
    for point in points:
        first: tuple[float, ...] = ()
        for name, by_counting in point.counted.items():
            honest, paper = by_counting["honest"], by_counting["paper"]
            numbers = honest.parameters, honest.forward, paper.forward
            row = ["" if first else _describe(point), name]
            for number, of_first in zip(numbers, first or (None, None, None), strict=True):
                row += [with_unit(number), _increase(number, of_first)]
            rows.append(row)
            first = first or numbers
    header = ["", "variant", "parameters", "more", "FLOPs", "more", "paper's FLOPs", "more"]
    return Table(
        header=header,
        rows=rows,
        caption="FLOPs of the forward of one sequence, in closed form: two a multiply-add, "
        "attention to the keys a causal query sees. The paper's (Table 8): one a multiply-add of "
        "linear layers and routers, two of attention, all keys. Sizes are the first variant's; "
        "another may have others by its own options.",
    )


def cache_table(points: Sequence[CostPoint]) -> Table:
    """Return what the cache of keys and values holds, and what is read of it."""
    rows = []
    for point in points:
        first: CacheCost | None = None
        for name, cache in point.cache.items():
            held, read = (_BYTES * numbers for numbers in (cache.held, cache.read))
            cells = [
                in_bytes(held),
                _increase(cache.held, first.held if first else None),
                f"{_GIBIBYTE // held:,}",
                in_bytes(read * point.tokens),
                _increase(cache.read, first.read if first else None),
            ]
            rows.append(["" if first else _describe(point), name, *cells])
            first = first or cache
    header = ["", "variant", "cache of a token", "more", "tokens in 1 GiB", "read", "more"]
    return Table(
        header=header,
        rows=rows,
        caption="Keys and values in bfloat16, in closed form. Read: by one new token, of a cache "
        "of T tokens; a layer that borrows reads what its lenders hold. Where it forms a mixture "
        "of them first (fused_kv), more is moved.",
    )


def measured_table(costs: Costs) -> Table:
    """Return the time and memory of a step, in the form of the paper's Table 9."""
    rows, measuring = [], costs.measuring or MeasuringOptions()
    for point in costs.points:
        for mode, by_arm in (point.measured or {}).items():
            first = next(iter(by_arm.values()))
            for i, (name, taken) in enumerate(by_arm.items()):
                times = (taken.seconds, taken.low, taken.high)
                median, low, high = (f"{1e3 * seconds:.4g}" for seconds in times)
                rows.append(
                    [
                        "" if i else f"{_describe(point)}, {mode}",
                        name,
                        f"{median} ms ({low} to {high})",
                        _increase(taken.seconds, first.seconds if i else None),
                        "unknown" if taken.peak is None else in_bytes(taken.peak),
                        _increase(taken.peak, first.peak if i else None),
                    ]
                )
    return Table(
        header=["", "variant", "step, median (quartiles)", "more", "peak memory", "more"],
        rows=rows,
        caption=f"{costs.machine}, {costs.precision}; {measuring.batch} sequences a step, "
        f"{measuring.repeats} rounds side by side in one process after a warm-up; a step is "
        "forward, backward, AdamW. On a CPU, time is the process's own. Peak: model, optimiser and "
        "a step, in a process of its own.",
    )


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


def counted_section(title: str, points: Sequence[CostPoint], how_to_measure: str) -> Section:
    """Return the part of a page about closed-form costs.

    ``how_to_measure``: a note on time and memory; empty if they are on the page.
    """
    notes = [how_to_measure] if how_to_measure else []
    return Section(title=title, paragraphs=notes, tables=_counted_tables(points))


def given_section(title: str, costs: Costs) -> Section:
    """Return the part of a page about a file that ``layermem costs`` has written."""
    was_measured = costs.machine is not None
    note = "Counted, not measured: it was written without --measure."
    return Section(
        title=title,
        paragraphs=[] if was_measured else [note],
        tables=[measured_table(costs)] if was_measured else _counted_tables(costs.points),
        commands=[costs.command] if costs.command else [],
    )


def _counted_tables(points: Sequence[CostPoint]) -> list[Table]:
    """Return the tables of closed forms; records of earlier studies have no cache."""
    has_cache = any(point.cache for point in points)
    return [counted_table(points), *([cache_table(points)] if has_cache else [])]


def _describe(point: CostPoint) -> str:
    heads = f"{point.heads} heads"
    if point.kv_heads != point.heads:
        heads += f" ({point.kv_heads} kv)"
    return f"{point.preset}: {point.layers} x {point.width}, {heads}, T {point.tokens}"


def _increase(value: float | None, base: float | None) -> str:
    """Write by how much a number exceeds another; nothing where there is no other."""
    return f"{value / base - 1:+.2%}" if value is not None and base else ""
