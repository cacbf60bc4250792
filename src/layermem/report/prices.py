"""What a training step of each arm takes of the first arm's: columns beside what it achieves.

It does not know: torch, which arms there are.
"""

from dataclasses import dataclass, field

from layermem.results.arena import MeasuredMemory, MeasuredSteps


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Columns of a table; without any, nothing is shown."""

    header: tuple[str, ...] = ()
    """What each is called."""
    cells: dict[str, list[str]] = field(default_factory=dict)
    """Arm to its cells."""

    def of(self, arm: str) -> list[str]:
        """Return the cells of an arm."""
        return self.cells[arm] if self.header else []

    @property
    def caption(self) -> str:
        """What the columns are, for the caption of the table."""
        of = " and ".join(self.header).capitalize()
        ratios = "are ratios" if len(self.header) > 1 else "is a ratio"
        return f" {of} of a step {ratios} to the first arm's." if self.header else ""


def prices(steps: MeasuredSteps, memory: MeasuredMemory | None) -> Prices:
    """Return time, and memory where it was measured."""
    header, cells = ["time"], {arm: [f"{r:.2f}"] for arm, r in steps.ratios.items()}
    peaks = memory.peaks if memory else {}
    if first := peaks.get(next(iter(cells), "")):
        header.append("memory")
        for arm, row in cells.items():
            peak = peaks.get(arm)
            row.append(f"{peak / first:.2f}" if peak else "")
    return Prices(header=tuple(header), cells=cells)
