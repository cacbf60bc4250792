"""`layermem presets`: what there is to train, with what it costs.

It does not know: how costs are counted or measured.
"""

import pkgutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from layermem.cli.screen import screen

if TYPE_CHECKING:
    from rich.table import Table

    from layermem.experiments.preset_costs import PresetCost


@dataclass(frozen=True, kw_only=True)
class Presets:
    """List presets with what they cost as the plain decoder, and the variants."""

    measure: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Measure training steps of every preset that this machine can train, plain and LIMe, on a GPU
    if there is one, else on one thread of the CPU; takes minutes."""


def presets(options: Presets, command: str) -> None:
    """Print presets with parameters, tokens and FLOPs, and the variants."""
    from rich.table import Table

    from layermem.experiments.preset_costs import preset_costs
    from layermem.presets import description
    from layermem.report.numbers import with_unit

    costs = preset_costs()
    table = Table("preset", "parameters", "tokens", "FLOPs", "what it is", box=None)
    for preset in costs:
        table.add_row(
            preset.name,
            with_unit(preset.parameters, 3),
            with_unit(preset.tokens, 3),
            f"{preset.flops:.1e}",
            description(preset.name),
        )
    console = screen()
    console.print(table)
    console.print(f"\nvariants: {', '.join(_variant_names())} (parameters and FLOPs above: plain)")
    if options.measure:
        from layermem.experiments.preset_measurements import conditions

        console.print(_measured_presets(costs))
        console.print(
            f"\n{conditions()}; time of the whole run, from the median of three "
            "micro-batches (forward, backward, AdamW), without validation; peak memory of model, "
            "optimizer and one micro-batch",
            highlight=False,
        )


def _variant_names() -> list[str]:
    """Return the names of the variants, without importing them where nobody has done so yet.

    A file of ``layermem/variants`` declares the variant of its name.
    """
    registry = sys.modules.get("layermem.models.registry")
    if registry is not None:
        names: list[str] = registry.variants()
        return names
    folder = Path(__file__).parents[1] / "variants"
    return sorted(module.name for module in pkgutil.iter_modules([str(folder)]))


def _measured_presets(costs: "list[PresetCost]") -> "Table":
    """Return a table of the time and memory of each preset, measured while a bar shows progress."""
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from layermem.experiments.preset_measurements import measure_presets
    from layermem.report.numbers import in_bytes

    table = Table("preset", "time: plain", "LIMe", "memory: plain", "LIMe", box=None)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("measuring", total=len(costs))
        for name, measured in measure_presets(costs):
            progress.advance(bar)
            if measured is None:
                table.add_row(name, "too large for this machine")
                continue
            times = [_format_duration(measured[arm].seconds) for arm in ("plain", "lime")]
            peaks = [measured[arm].peak_bytes for arm in ("plain", "lime")]
            memory = ["unknown" if peak is None else in_bytes(peak, 3) for peak in peaks]
            table.add_row(name, *times, *memory)
    return table


def _format_duration(seconds: float) -> str:
    """Return seconds in the unit that suits them."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} s"
