"""`layermem list`: presets, variants, tasks, evaluation tasks, studies, those of plugins too."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from layermem_base.number_ranges import at_least, between, number
from layermem_bench.cli.options import read_options
from layermem_bench.cli.screen import format_plainly, screen, show


@dataclass(frozen=True, kw_only=True)
class ListAny:
    """Show what there is, those of plugins too: presets with what they cost as the plain decoder,
    variants with what they add at the shape of paper-1b-gqa, tasks, evals (evaluation tasks) or
    studies. `layermem list tasks arithmetic` shows problems of a task."""

    kind: tyro.conf.Positional[Literal["presets", "variants", "tasks", "evals", "studies"]]
    """What is shown; some have options of their own: layermem list tasks --help."""


@dataclass(frozen=True, kw_only=True)
class ListTasks:
    """List the tasks, or show problems of one and what they are like."""

    name: tyro.conf.Positional[str | None] = None
    """The task; none: all are listed with their options."""
    count: int = number(1000, at_least(1))
    """Problems to describe."""
    show: int = number(3, at_least(0))
    """Problems to print."""
    seed: int = number(0, at_least(0))
    """Seed of the problems."""
    split: Literal["train", "validation", "test"] = "train"
    """Split they are of."""
    task_options: tuple[str, ...] = ()
    """What the task is made of, each NAME=VALUE; `layermem list tasks` alone shows which there
    are."""


@dataclass(frozen=True, kw_only=True)
class ListEvals:
    """List the evaluation tasks of `layermem eval`: which have records, which need the hub."""

    records: tuple[str, ...] = ()
    """Folders of records."""


@dataclass(frozen=True, kw_only=True)
class ListStudies:
    """List the studies: the paper's artefacts with where they stand, and those of plugins."""

    seeds: int | None = number(None, between(1, 1000))
    """Seeds; None: 5 (tiny), 3 (small) or 1 (paper)."""
    out: Path = Path("runs")
    """Folder of results."""


def _presets(options: ListAny) -> None:
    from layermem_bench import presets
    from layermem_bench.efficiency.costs import run_cost
    from layermem_bench.report.numbers import with_unit
    from layermem_bench.report.page import Table

    rows = list[list[Any]]()
    for name in presets.names():
        try:
            cost = run_cost(presets.get_preset(name))
        # A plugin's function may raise anything: the others are listed all the same.
        except Exception as error:
            rows.append([name, "", "", "", f"cannot be trained: {error}"])
            continue
        numbers = [with_unit(cost.parameters, 3), with_unit(cost.tokens, 3), f"{cost.flops:.1e}"]
        rows.append([name, *numbers, presets.description(name)])
    header = ["preset", "parameters", "tokens", "FLOPs", "what it is"]
    caption = f"Parameters and FLOPs: of plain. Variants: {', '.join(_variant_names())}"
    show(Table(header=header, rows=rows, caption=caption))


def _variant_names() -> list[str]:
    """Return the names of the variants, as recorded where nobody has imported them yet."""
    from layermem_bench.efficiency.variant_facts import read_facts

    registry = sys.modules.get("layermem.models.registry")
    return [row.name for row in read_facts()] if registry is None else registry.list_variants()


def _variants(options: ListAny) -> None:
    from layermem_bench.efficiency.variant_facts import COLUMNS, PRESET, find_facts, read_facts
    from layermem_bench.report.page import Table

    facts = read_facts()
    if others := sorted({*_variant_names()} - {row.name for row in facts}):
        from layermem_bench.efficiency.model_sizes import model_sizes
        from layermem_bench.presets import get_preset

        facts += find_facts(model_sizes(get_preset(PRESET))[0], others)
    caption = (
        f"At the shape of the preset {PRESET}, default fields: parameters and forward FLOPs a "
        "token beyond the plain decoder's; bytes in bfloat16 that a layer hands to later ones, and "
        "that the cache holds, for one token; starts plain: with which fields, exactly. Two "
        "variants of different seams make a pair: lime+hyper_connections"
    )
    show(Table(header=COLUMNS, rows=[row.row() for row in facts], caption=caption))


def _tasks(options: ListTasks) -> None:
    from layermem_bench.config.run import Task
    from layermem_bench.report.page import Table
    from layermem_bench.tasks.registry import all_tasks, get_task

    if options.name is None:
        rows = [[name, _written(task.options())] for name, task in all_tasks().items()]
        show(Table(header=["task", "options, with their defaults"], rows=rows))
        return
    task, fields = get_task(options.name), Task(options=options.task_options).fields()
    problems = task.problems(options.split, options.count, options.seed, **fields)
    for problem in problems[: options.show]:
        text = f"{problem.prompt}\n{problem.solution}\n"
        screen().print(text, markup=False, highlight=False)
    rows = [[what, format_plainly(value)] for what, value in task.describe(problems).items()]
    caption = f"options: {_written({**task.options(), **fields})}"
    show(Table(header=["what", "value"], rows=rows, caption=caption))


def _written(options: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in options.items())


def _evals(options: ListEvals) -> None:
    from layermem_bench.report.eval import list_tasks

    show(list_tasks(options.records))


def _studies(options: ListStudies) -> None:
    from layermem_bench.paper.standing import standings
    from layermem_bench.report.page import Table
    from layermem_bench.study import definition

    needs: dict[str, int] = {}
    rows, before = [], ""
    for at in standings(options.out, options.seeds):
        mark = f" [{needs.setdefault(at.needs, len(needs) + 1)}]" if at.needs else ""
        first = at.name != before
        name = f"paper/{at.name}"
        rows.append([name * first, at.title * first, at.scale, f"{at.state}{mark}"])
        before = at.name
    for name in definition.names():
        rows.append([name, definition.description(name), "", ""])
    told = " ".join(f"[{place}] needs or lacks: {need}." for need, place in needs.items())
    show(
        Table(
            header=["study", "title", "scale", "state"],
            rows=rows,
            caption=f"{told} layermem study NAME --scale SCALE carries one out. Presets are boards "
            "of studies too: layermem study tiny-lm,aet-4; of a model: layermem study retrofit "
            "MODEL.",
        )
    )


_WITH_OPTIONS = {"tasks": ListTasks, "evals": ListEvals, "studies": ListStudies}


def parse(args: Sequence[str]) -> Any:
    """Return the options of a list, an instance of its dataclass."""
    name = args[0] if args else ""
    if name in _WITH_OPTIONS:
        return read_options(_WITH_OPTIONS[name], f"list {name}", args[1:])
    return read_options(ListAny, "list", args)


def list_(options: Any, command: str) -> None:
    """Print a list."""
    if isinstance(options, ListAny):
        {"presets": _presets, "variants": _variants}[options.kind](options)
        return
    shown: dict[type[Any], Callable[[Any], None]] = {
        ListTasks: _tasks,
        ListEvals: _evals,
        ListStudies: _studies,
    }
    shown[type(options)](options)
