"""`layermem list`: presets, variants, tasks, evaluation tasks, studies, those of plugins too."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from layermem_base.number_ranges import at_least, number
from layermem_bench.cli.screen import format_plainly, screen, show

if TYPE_CHECKING:
    from layermem_bench.pages.page import Table

_FAMILY = "paper-1b-gqa"


@dataclass(frozen=True, kw_only=True)
class ListAny:
    """Show what there is, those of plugins too: presets with what they cost as the plain decoder,
    variants with what they add, tasks, evals (evaluation tasks: which have records, which need
    the hub) or studies (the paper's artefacts with where they stand)."""

    kind: tyro.conf.Positional[Literal["presets", "variants", "tasks", "evals", "studies"]]
    """What is shown."""
    name: tyro.conf.Positional[str | None] = None
    """Of tasks: the one whose problems are shown; none: all are listed with their options."""
    count: int = number(1000, at_least(1))
    """Problems of a task to describe."""
    show: int = number(3, at_least(0))
    """Problems of a task to print."""
    task_options: tuple[str, ...] = ()
    """What a task is made of, each NAME=VALUE; `layermem list tasks` shows which there are."""
    records: tuple[str, ...] = ()
    """Folders of records, for evals."""
    out: Path = Path("runs")
    """Folder of results, for studies."""


def _presets(options: ListAny) -> "Table":
    from layermem_bench import presets
    from layermem_bench.costs.closed_forms import run_cost
    from layermem_bench.pages.page import Table, with_unit

    rows = list[list[Any]]()
    for name in presets.names():
        try:
            cost = run_cost(presets.get_preset(name), as_plain=True)
        # A plugin's function may raise anything: the others are listed all the same.
        except Exception as error:
            rows.append([name, "", "", "", f"cannot be trained: {error}"])
            continue
        numbers = [with_unit(cost.parameters, 3), with_unit(cost.tokens, 3), f"{cost.flops:.1e}"]
        rows.append([name, *numbers, presets.description(name)])
    header = ["preset", "parameters", "tokens", "FLOPs", "what it is"]
    return Table(header=header, rows=rows, caption="Parameters and FLOPs: of the plain decoder.")


def _variants(options: ListAny) -> "Table":
    from layermem_bench.costs.closed_forms import count_family
    from layermem_bench.costs.model_sizes import model_sizes
    from layermem_bench.pages.page import Table
    from layermem_bench.presets import get_preset

    rows = count_family(model_sizes(get_preset(_FAMILY))[0])
    caption = (
        f"At the shape of {_FAMILY}, default fields: parameters and forward FLOPs a token beyond "
        "the plain decoder's; bytes in bfloat16 that a layer hands on and the cache holds, of one "
        "token. Two variants of different seams make a pair: lime+hyper_connections"
    )
    return Table.of(rows, caption)


def _tasks(options: ListAny) -> "Table":
    from layermem_bench.config.run import Task
    from layermem_bench.pages.page import Table
    from layermem_bench.tasks.registry import all_tasks, get_task

    if options.name is None:
        rows = [[name, _written(task.options())] for name, task in all_tasks().items()]
        return Table(header=["task", "options, with their defaults"], rows=rows)
    task, fields = get_task(options.name), Task(options=options.task_options).fields()
    problems = task.problems("train", options.count, 0, **fields)
    for problem in problems[: options.show]:
        text = f"{problem.prompt}\n{problem.solution}\n"
        screen().print(text, markup=False, highlight=False)
    rows = [[what, format_plainly(value)] for what, value in task.describe(problems).items()]
    caption = f"options: {_written({**task.options(), **fields})}"
    return Table(header=["what", "value"], rows=rows, caption=caption)


def _written(options: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in options.items())


def _evals(options: ListAny) -> "Table":
    from layermem_bench.pages.eval import list_tasks

    return list_tasks(options.records)


def _studies(options: ListAny) -> "Table":
    from layermem_bench import paper
    from layermem_bench.pages.page import Table
    from layermem_bench.paper.artefact import SCALES
    from layermem_bench.studies import definition

    numbers, rows = dict[str, int](), list[list[str]]()
    for name in paper.names():
        for scale in SCALES:
            artefact = paper.get_artefact(name, scale)
            needs = "; ".join(filter(None, (artefact.needs, artefact.missing)))
            mark = f" [{numbers.setdefault(needs, len(numbers) + 1)}]" if needs else ""
            state = f"{paper.state_of(artefact, options.out)}{mark}"
            first = scale == SCALES[0]
            rows.append([f"paper/{name}" * first, artefact.title * first, scale, state])
    for name in definition.names():
        rows.append([name, definition.description(name), "", ""])
    told = " ".join(f"[{place}] needs or lacks: {need}." for need, place in numbers.items())
    caption = f"{told} layermem study NAME --scale SCALE carries one out, or one of presets."
    return Table(header=["study", "title", "scale", "state"], rows=rows, caption=caption)


_TABLES: dict[str, Callable[[ListAny], "Table"]] = {
    "presets": _presets,
    "variants": _variants,
    "tasks": _tasks,
    "evals": _evals,
    "studies": _studies,
}


def list_(options: ListAny, command: str) -> None:
    """Print a list."""
    show(_TABLES[options.kind](options))
