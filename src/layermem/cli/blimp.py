"""`layermem blimp`: how often checkpoints find the grammatical sentence of a pair more probable.

It does not know: how a pair is judged, how anything is drawn.
"""

from dataclasses import dataclass, fields
from pathlib import Path

import tyro

from layermem.cli.screen import progress, show, write
from layermem.results.minimal_pairs import MinimalPairsOptions


@dataclass(frozen=True, kw_only=True)
class Blimp(MinimalPairsOptions):
    """Have checkpoints judge the minimal pairs of BLiMP: grammar, by phenomenon."""

    checkpoints: tyro.conf.Positional[tuple[str, ...]]
    """Run folders, folders of saved models, or hub names; the others are compared with the
    first."""
    out: Path = Path("blimp")
    """Folder for blimp.json and the page."""

    def judged(self) -> MinimalPairsOptions:
        """Return the options that are recorded with the result."""
        names = [field.name for field in fields(MinimalPairsOptions)]
        return MinimalPairsOptions(**{name: getattr(self, name) for name in names})


def blimp(options: Blimp, command: str) -> None:
    """Judge pairs, print tables, and write a page; ``command`` is shown on it."""
    from layermem.experiments.minimal_pairs import measure_minimal_pairs
    from layermem.report import minimal_pairs as report

    if not options.checkpoints:
        raise ValueError("name a checkpoint: layermem blimp CHECKPOINT ... --records FILE ...")
    with progress("reading pairs") as tell:
        result = measure_minimal_pairs(
            options.checkpoints,
            options.judged(),
            options.out,
            command=command,
            progress=lambda name, sentences: tell(f"{name}: {sentences:,} sentences", None, None),
        )
    for table in report.tables(result):
        show(table)
    write(report.build(result), options.out)
