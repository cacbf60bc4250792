"""`layermem eval`: what checkpoints know, side by side: losses, grammar, their tasks, benchmarks.

layermem eval A B --tasks ppl=texts.jsonl blimp=blimp/ arithmetic arc_easy
"""

import os
from dataclasses import dataclass
from pathlib import Path

import tyro

from layermem_bench.cli.options import part_of
from layermem_bench.cli.screen import show, write
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
    from rich.console import Console

    from layermem_bench.evals.evaluating import evaluate_checkpoints
    from layermem_bench.pages import eval as report
    from layermem_bench.studies.gathering import arms_of_same_seeds

    with Console(stderr=True).status("opening checkpoints") as status:

        def tell(what: str, done: int | None = None, total: int | None = None) -> None:
            status.update(what if done is None else f"{what}: {done} of {total or '?'}")

        result = evaluate_checkpoints(
            options.checkpoints,
            part_of(options, EvalOptions),
            options.out,
            command=command,
            tell=tell,
            group=arms_of_same_seeds,
        )
    for table in report.tables(result):
        show(table)
    write(report.build(result), options.out)
