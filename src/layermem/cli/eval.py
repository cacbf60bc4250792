"""`layermem eval`: what checkpoints know, side by side: losses, grammar, their tasks, benchmarks.

    layermem eval A B --tasks ppl=texts.jsonl blimp=blimp/ arithmetic arc_easy

It does not know: how anything is measured, asked, scored or drawn.
"""

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from layermem.cli.screen import progress, show, write
from layermem.number_ranges import at_least, number
from layermem.runs import unique_names

if TYPE_CHECKING:
    from layermem.report.page import Section, Table

PPL, BLIMP = "ppl=", "blimp="
# Options that have an effect on one kind of task alone.
_OF_KIND = {
    "ppl=FILE": ("field", "context", "stride"),
    "blimp=DIR": ("probe",),
    "tasks that models were trained on (arithmetic)": ("split", "seed", "task_options"),
    "evaluation tasks (arc_easy)": ("shots", "seeds", "records", "truncate", "max_length"),
}


@dataclass(frozen=True, kw_only=True)
class Eval:
    """Measure checkpoints side by side: loss on documents, grammar, problems of their own tasks,
    evaluation tasks through lm-eval."""

    checkpoints: tyro.conf.Positional[tuple[str, ...]]
    """Run folders, folders of saved models, or hub names; the others are compared with the
    first."""
    tasks: tuple[str, ...] = ()
    """ppl=FILE: loss and bits per byte of a file, a folder or a dataset; blimp=DIR: BLiMP's minimal
    pairs; the name of a task that runs were trained on (arithmetic); evaluation tasks by name,
    "paper" (all of the paper's) or a definition (my.yaml), as `layermem list evals` shows them."""
    limit: int | None = number(None, at_least(1))
    """The first documents, pairs of each paradigm, problems or items of each task; None: all, of
    tasks that runs were trained on 10,000."""
    batch_size: int | None = number(None, at_least(1))
    """Sequences of a batch; None: as many as 128 MB of logits allow, at most 64 (on a GPU, of
    evaluation tasks, as many as fit)."""
    field: str = "text"
    """Of ppl: field of the text, in JSON lines and Parquet."""
    context: int | None = number(None, at_least(1))
    """Of ppl: most tokens that one forward reads; None: of a run on text its block size, of another
    model its longest sequence, the smallest of all checkpoints."""
    stride: int | None = number(None, at_least(1))
    """Of ppl: tokens by which windows of a long document are apart; None: half of the context."""
    probe: int | None = number(None, at_least(1))
    """Of blimp: pairs of each paradigm by which linear probes are fitted to every layer's
    representations of the sentences; None: no probe."""
    split: Literal["train", "validation", "test"] = "test"
    """Of tasks that runs were trained on: split of the problems."""
    seed: int | None = number(None, at_least(0))
    """Of these: seed of the problems; None: the run's."""
    task_options: tuple[str, ...] = ()
    """Of these: options of the task, each NAME=VALUE, added to the run's."""
    shots: int = number(3, at_least(0))
    """Of evaluation tasks: few-shot examples before each item."""
    seeds: int = number(5, at_least(1))
    """Of these: seeds by which few-shot examples are drawn."""
    records: tuple[str, ...] = ()
    """Of these: folders of records, and files as TASK=FILE or TASK:train=FILE; a task without any
    is fetched from the hub."""
    truncate: bool = False
    """Of these: cut the start of prompts that are longer than the model reads, and say how many."""
    max_length: int | None = number(None, at_least(1))
    """Of these: tokens that a model is given at most; None: as many as it can read."""
    out: Path = Path("eval")
    """Folder for perplexity.json, blimp.json, solved.json and eval.json, for the page, and for
    answers, from which a second start goes on."""


def evaluate(options: Eval, command: str) -> None:
    """Measure checkpoints, print tables, and write a page; ``command`` is shown on it."""
    # Read when tqdm is imported: lm-eval draws a bar for every task and seed, and one is enough.
    os.environ.setdefault("TQDM_DISABLE", "1")
    asked = _asked(options)
    from layermem.report.page import Page, Section

    measured = {
        "ppl=FILE": _perplexity,
        "blimp=DIR": _blimp,
        "tasks that models were trained on (arithmetic)": _solved,
        "evaluation tasks (arc_easy)": _lm_eval,
    }
    sections: list[Section] = []
    for kind, chosen in asked.items():
        if chosen:
            section, tables = measured[kind](options, chosen, command)
            sections.append(section)
            for table in tables:
                show(table)
    parts = [Path(path).resolve().parts for path in options.checkpoints]
    names = unique_names(parts)
    page = Page(
        title=f"Evaluation of {' and '.join(names)}",
        lead="What each model comes to, beside chance and beside the first model.",
        sections=[*sections, Section(title="Again", commands=[command])],
    )
    write(page, options.out)


def _asked(options: Eval) -> dict[str, list[str]]:
    """Return what is asked, by its kind; refuse options that would have no effect."""
    if not options.checkpoints or not options.tasks:
        raise ValueError(
            "name checkpoints and tasks: layermem eval CHECKPOINT ... --tasks ppl=FILE blimp=DIR "
            "arithmetic arc_easy"
        )
    from layermem.tasks.registry import all_tasks

    own, asked = all_tasks(), {kind: list[str]() for kind in _OF_KIND}
    texts, pairs, trained_on, others = asked.values()
    for task in options.tasks:
        if task.startswith(PPL):
            texts.append(task.removeprefix(PPL))
        elif task.startswith(BLIMP):
            pairs.append(task.removeprefix(BLIMP))
        else:
            (trained_on if task in own else others).append(task)
    for kind, names in _OF_KIND.items():
        for name in names:
            value = getattr(options, name)
            if not asked[kind] and value != getattr(Eval, name):
                raise ValueError(
                    f"--{name.replace('_', '-')} {value} is for {kind}, and --tasks names none: "
                    "leave it out"
                )
    return asked


def _perplexity(options: Eval, texts: list[str], command: str) -> "tuple[Section, list[Table]]":
    from layermem.experiments.perplexity import measure_perplexity
    from layermem.report import perplexity as report
    from layermem.results.perplexity import PerplexityOptions

    chosen = PerplexityOptions(
        texts=tuple(texts),
        field=options.field,
        context=options.context,
        stride=options.stride,
        max_documents=options.limit,
        batch_size=options.batch_size,
    )
    with progress("opening checkpoints") as tell:
        result = measure_perplexity(
            options.checkpoints,
            chosen,
            options.out,
            command=command,
            progress=lambda name, tokens: tell(f"{name}: {tokens:,} tokens", None, None),
        )
    return report.section(result), report.tables(result)


def _blimp(options: Eval, records: list[str], command: str) -> "tuple[Section, list[Table]]":
    from layermem.experiments.minimal_pairs import measure_minimal_pairs
    from layermem.report import minimal_pairs as report
    from layermem.results.minimal_pairs import MinimalPairsOptions

    chosen = MinimalPairsOptions(
        records=tuple(records),
        per_paradigm=options.limit,
        probe=options.probe,
        batch_size=options.batch_size,
    )
    with progress("reading pairs") as tell:
        result = measure_minimal_pairs(
            options.checkpoints,
            chosen,
            options.out,
            command=command,
            progress=lambda name, sentences: tell(f"{name}: {sentences:,} sentences", None, None),
        )
    return report.section(result), report.tables(result)


def _solved(options: Eval, tasks: list[str], command: str) -> "tuple[Section, list[Table]]":
    from layermem.experiments.solve import solve_tasks
    from layermem.report import solved as report
    from layermem.results.solved import SolvedOptions

    chosen = SolvedOptions(
        tasks=tuple(tasks),
        count=options.limit,
        split=options.split,
        seed=options.seed,
        task_options=options.task_options,
        batch_size=options.batch_size,
    )
    with progress("solving") as tell:
        result = solve_tasks(
            options.checkpoints, chosen, options.out, command=command, progress=tell
        )
    return report.section(result), report.tables(result)


def _lm_eval(options: Eval, tasks: list[str], command: str) -> "tuple[Section, list[Table]]":
    from layermem.experiments.eval import evaluate_checkpoints
    from layermem.report import eval as report
    from layermem.results.eval import EvalOptions

    chosen = EvalOptions(
        tasks=tuple(tasks),
        **{each.name: getattr(options, each.name) for each in fields(EvalOptions)[1:]},
    )
    with progress("preparing tasks") as tell:
        result = evaluate_checkpoints(
            options.checkpoints, chosen, options.out, command=command, progress=tell
        )
    return report.section(result), report.tables(result)
