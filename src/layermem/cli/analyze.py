"""`layermem analyze`: what goes on inside a checkpoint, or two side by side.

It does not know: how anything is computed or drawn.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import tyro

from layermem.cli.screen import show, write
from layermem.results.analysis import AnalysisOptions


@dataclass(frozen=True, kw_only=True)
class Analyze(AnalysisOptions):
    """Look inside a checkpoint, ours or any Hugging Face decoder, or at two side by side."""

    checkpoint: tyro.conf.Positional[str]
    """Run folder, folder of a saved model, or hub name."""
    against: str | None = None
    """A second one, shown beside it; its tokenizer must be the same."""
    out: Path = Path("analysis")
    """Folder for analysis.json and the page."""
    figure: Path | None = None
    """File (svg, png, pdf) for one figure of it all, beside the page."""


def analyze(options: Analyze, command: str) -> None:
    """Look inside checkpoints, and write the page about it."""
    from transformers.utils import logging as transformers_logging

    from layermem.experiments import analyze as inside
    from layermem.report import analysis, figures

    if options.figure is not None:
        figures.check(options.figure)
    transformers_logging.disable_progress_bar()
    found = inside.run(inside.Analyze(**asdict(options)), command)
    show(analysis.table(found))
    if options.figure is not None:
        analysis.draw(found, options.figure)
    write(analysis.build(found), options.out)
