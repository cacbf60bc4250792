"""`layermem eval`: checkpoints answer evaluation tasks, the paper's or a user's, side by side.

It does not know: how anything is asked, scored or drawn.
"""

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import tyro

from layermem.cli.screen import progress, show, write
from layermem.results.eval import EvalOptions


@dataclass(frozen=True, kw_only=True)
class Eval(EvalOptions):
    """Have checkpoints answer evaluation tasks, the paper's or your own, through lm-eval."""

    checkpoints: tyro.conf.Positional[tuple[str, ...]] = ()
    """Run folders, folders of saved models, or hub names; the others are compared with the
    first."""
    list_tasks: Annotated[bool, tyro.conf.arg(name="list")] = False
    """Show the tasks, which of them have records in --records and which need the hub, and end."""
    out: Path = Path("eval")
    """Folder for eval.json, the page, and answers, from which a second start goes on."""

    def asked(self) -> EvalOptions:
        """Return the options that are recorded with the result."""
        names = [field.name for field in fields(EvalOptions)]
        return EvalOptions(**{name: getattr(self, name) for name in names})


def evaluate(options: Eval, command: str) -> None:
    """Evaluate checkpoints, print tables, and write a page; ``command`` is shown on it."""
    if options.list_tasks:
        _list(options)
        return
    # Read when tqdm is imported: lm-eval draws a bar for every task and seed, and one is enough.
    os.environ.setdefault("TQDM_DISABLE", "1")
    from layermem.experiments.eval import evaluate_checkpoints
    from layermem.report import eval as report

    if not options.checkpoints:
        raise ValueError("name a checkpoint: layermem eval CHECKPOINT ... --tasks paper")
    with progress("preparing tasks") as tell:
        result = evaluate_checkpoints(
            options.checkpoints, options.asked(), options.out, command=command, progress=tell
        )
    for table in report.tables(result):
        show(table)
    write(report.build(result), options.out)


def _list(options: Eval) -> None:
    from layermem.experiments.eval_tasks import list_tasks
    from layermem.report.eval import task_list

    show(task_list(list_tasks(options.records)))
