"""Tables of what variants cost: counted, measured, of the whole family, and of training them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from layermem_bench.config.computing import Device, Mode
from layermem_bench.costs.closed_forms import Cost
from layermem_bench.costs.plan import Plan
from layermem_bench.pages.page import Table, format_duration, in_bytes, with_unit

if TYPE_CHECKING:
    from layermem_bench.costs.measuring import Measurement

# Of a number in bfloat16.
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
_STEPS = (
    "rounds side by side in one process after a warm-up; a step is forward, backward, AdamW. On a "
    "CPU, time is the process's own. Peak: model, optimiser and a step, in a process of its own."
)
Line = tuple[str, str, Sequence[tuple[str, float | None]]]
"""Sizes, arm, and its amounts: each as it is written, and the number that is compared."""


def counted_table(rows: Iterable[Cost]) -> Table:
    """Return parameters and FLOPs, in the form of the paper's Table 8."""
    lines = [
        _line(row, with_unit, row.parameters, row.forward, row.forward_in_paper) for row in rows
    ]
    return _beside_first(["parameters", "FLOPs", "paper's FLOPs"], lines, _FLOPS)


def cache_table(rows: Iterable[Cost]) -> Table:
    """Return what the cache of keys and values holds of a token, and what is read of it."""
    lines = [
        _line(row, in_bytes, _BYTES * row.cached, _BYTES * row.read * row.tokens) for row in rows
    ]
    return _beside_first(["cache of a token", "read"], lines, _CACHE)


def _line(row: Cost, write: Callable[[float], str], *numbers: float) -> Line:
    return _sizes(row), row.arm, [(write(number), number) for number in numbers]


def measured_table(steps: Iterable[tuple[Cost, Mode, "Measurement"]], how: str) -> Table:
    """Return the time and memory of a step, in the form of the paper's Table 9; ``how``: machine,
    precision, sequences of a step and number of rounds."""
    lines = list[Line]()
    for row, mode, step in steps:
        times = (step.seconds, step.low, step.high)
        median, low, high = (f"{1e3 * seconds:.4g}" for seconds in times)
        peak = "unknown" if step.peak is None else in_bytes(step.peak)
        amounts = [(f"{median} ms ({low} to {high})", step.seconds), (peak, step.peak)]
        lines.append((f"{_sizes(row)}, {mode}", row.arm, amounts))
    titles = ["step, median (quartiles)", "peak memory"]
    return _beside_first(titles, lines, f"{how} {_STEPS}")


def _beside_first(titles: Sequence[str], lines: Sequence[Line], caption: str) -> Table:
    """Return a table of arms: each amount, and by how much it exceeds that of the first arm at its
    sizes. Where this arm comes again, other sizes begin."""
    rows, first = [], lines[0][2] if lines else ()
    for sizes, arm, amounts in lines:
        begins = arm == lines[0][1]
        first = amounts if begins else first
        row = [sizes if begins else "", arm]
        for (written, number), (_, base) in zip(amounts, first, strict=True):
            row += [written, f"{number / base - 1:+.2%}" if number and base and not begins else ""]
        rows.append(row)
    header = ["", "variant", *(cell for title in titles for cell in (title, "more"))]
    columns = list(zip(header, *rows, strict=True))
    # Without what no arm has more of.
    shown = [each for each in columns if each[0] != "more" or set(each[1:]) - {"", "+0.00%"}]
    header, *rows = map(list, zip(*shown, strict=True))
    return Table(header=header, rows=rows, caption=caption)


def _sizes(cost: Cost) -> str:
    heads = f"{cost.heads} heads"
    if cost.kv_heads != cost.heads:
        heads += f" ({cost.kv_heads} kv)"
    return f"{cost.preset}: {cost.layers} x {cost.width}, {heads}, T {cost.tokens}"


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
        f"In closed form, not measured: {utilisation:.0%} of the peak, "
        f"{with_unit(device.flops, 3)}FLOP/s in bfloat16 or "
        f"{with_unit(device.float32_flops, 3)}FLOP/s in float32, 0.8 of the links, 0.9 of the "
        "memory, 8 GPUs a machine; the longer of both times is the "
        f"step's.{measured} Where it does not fit: --shard, --checkpoint-activations, a smaller "
        f"--micro-batch. Device: {device.source}."
    )
    return Table(header=[f"{preset}, {gpus} GPUs", *plans], rows=rows, caption=caption)


def _planned_cells(plan: Plan, device: Device, gpus: int) -> dict[str, str]:
    memory, hours = sum(plan.memory.values()), gpus * plan.seconds / 3600
    of_step = gpus * plan.tokens_at_once * plan.micro_batches
    fits = "" if plan.fits else ", does not fit"
    return {
        "parameters": with_unit(plan.parameters),
        "tokens at once": f"{plan.tokens_at_once:,}, {plan.micro_batches} times a step",
        **{f"memory: {what}": in_bytes(number) for what, number in plan.memory.items()},
        "memory of a GPU": f"{in_bytes(memory)} of {in_bytes(device.memory)}{fits}",
        "step by arithmetic": format_duration(plan.arithmetic),
        "step by network": format_duration(plan.network),
        "tokens a second": with_unit(of_step / plan.step, 3),
        "time": format_duration(plan.seconds),
        "GPU-hours": f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}",
    }
