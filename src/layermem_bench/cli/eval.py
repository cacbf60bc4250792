"""`layermem eval`: what checkpoints know, side by side: losses, grammar, their tasks, benchmarks.

layermem eval A B --tasks ppl=texts.jsonl blimp=blimp/ arithmetic arc_easy
"""

import os
from dataclasses import dataclass, fields
from pathlib import Path

import tyro

from layermem_bench.cli.screen import progress, show, write
from layermem_bench.evals.result import EvalOptions


@dataclass(frozen=True, kw_only=True)
class Eval(EvalOptions):
    """Measure checkpoints side by side: loss on documents, grammar, problems of their own tasks,
    evaluation tasks through lm-eval."""

    checkpoints: tyro.conf.Positional[tuple[str, ...]]
    """Run folders, folders of saved models, or hub names; the others are compared with the
    first."""
    out: Path = Path("eval")
    """Folder for eval.json and for the page."""


def evaluate(options: Eval, command: str) -> None:
    """Measure checkpoints, print tables, and write a page; ``command`` is shown on it."""
    # Read when tqdm is imported: lm-eval draws a bar for every task and seed, and one is enough.
    os.environ.setdefault("TQDM_DISABLE", "1")
    from layermem_bench.evals.evaluating import evaluate_checkpoints
    from layermem_bench.pages import eval as report
    from layermem_bench.studies.gathering import arms_of_same_seeds

    chosen = EvalOptions(**{each.name: getattr(options, each.name) for each in fields(EvalOptions)})
    with progress("opening checkpoints") as tell:
        result = evaluate_checkpoints(
            options.checkpoints,
            chosen,
            options.out,
            command=command,
            tell=tell,
            group=arms_of_same_seeds,
        )
    for table in report.tables(result):
        show(table)
    write(report.build(result), options.out)
