"""`layermem analyze`: what goes on inside a checkpoint, or two side by side."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from layermem_bench.analysis.result import AnalysisOptions
from layermem_bench.cli.options import part_of
from layermem_bench.cli.screen import show, write


@dataclass(frozen=True, kw_only=True)
class Analyze(AnalysisOptions):
    """Analyze a checkpoint, ours or any Hugging Face decoder, or two side by side."""

    checkpoint: tyro.conf.Positional[str]
    """Run folder, folder of a saved model, or hub name."""
    against: str | None = None
    """A second one, shown beside it; its tokenizer must be the same."""
    out: Path = Path("analysis")
    """Folder for analysis.json and the page."""


def analyze(options: Analyze, command: str) -> None:
    """Analyze checkpoints, print a table, and write a page; ``command`` is shown on it."""
    from layermem_bench.analysis.analyze import analyze as analyze_checkpoints
    from layermem_bench.pages import analysis as report

    checkpoints = [path for path in (options.checkpoint, options.against) if path is not None]
    recorded = part_of(options, AnalysisOptions)
    analysis = analyze_checkpoints(checkpoints, recorded, options.out, command)
    show(report.table(analysis))
    write(report.build(analysis), options.out)
