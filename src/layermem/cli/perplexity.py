"""`layermem perplexity`: loss and bits per byte of checkpoints on documents, side by side.

It does not know: how anything is computed or drawn.
"""

from dataclasses import dataclass, fields
from pathlib import Path

import tyro

from layermem.cli.screen import progress, show, write
from layermem.results.perplexity import PerplexityOptions


@dataclass(frozen=True, kw_only=True)
class Perplexity(PerplexityOptions):
    """Measure loss, perplexity and bits per byte of checkpoints on the same documents."""

    checkpoints: tyro.conf.Positional[tuple[str, ...]]
    """Run folders, folders of saved models, or hub names; the others are compared with the
    first."""
    out: Path = Path("perplexity")
    """Folder for perplexity.json and the page."""

    def measured(self) -> PerplexityOptions:
        """Return the options that are recorded with the result."""
        names = [field.name for field in fields(PerplexityOptions)]
        return PerplexityOptions(**{name: getattr(self, name) for name in names})


def perplexity(options: Perplexity, command: str) -> None:
    """Measure checkpoints, print tables, and write a page; ``command`` is shown on it."""
    from layermem.experiments.perplexity import measure_perplexity
    from layermem.report import perplexity as report

    if not options.checkpoints:
        raise ValueError("name a checkpoint: layermem perplexity CHECKPOINT ... --texts FILE ...")
    with progress("opening checkpoints") as tell:
        result = measure_perplexity(
            options.checkpoints,
            options.measured(),
            options.out,
            command=command,
            progress=lambda name, tokens: tell(f"{name}: {tokens:,} tokens", None, None),
        )
    for table in report.tables(result):
        show(table)
    write(report.build(result), options.out)
