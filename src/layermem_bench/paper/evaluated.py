"""Evaluation tasks of trained models: Tables 1, 4, 5 and 6, as ``layermem eval`` asks them."""

import importlib.util
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from layermem_bench.evals.result import EvalOptions, Row
from layermem_bench.evals.task_catalog import find_task
from layermem_bench.paper.artefact import Artefact, Observing, claims_of_lime, on_text, shares
from layermem_bench.paper.trained import grouped_queries
from layermem_bench.studies.definition import Observed
from layermem_bench.studies.result import PaperNumber, Scale

# The tables' columns: each task's name in lm-eval, and percents of LLaMA, HC and LIMe as printed.
_COLUMNS = {
    "COPA": ("copa", (75.80, 74.00, 75.20)),
    "MultiRC": ("multirc", (43.24, 54.34, 56.15)),
    "WiC": ("wic", (50.00, 49.72, 50.44)),
    "QNLI": ("qnli", (49.49, 49.43, 51.43)),
    "WNLI": ("wnli", (51.27, 56.34, 56.06)),
    "ARC-E": ("arc_easy", (70.45, 71.15, 71.15)),
    "ARC-C": ("arc_challenge", (38.70, 37.63, 39.30)),
    "HellaSwag": ("hellaswag", (52.55, 54.04, 52.85)),
    "OBQA": ("openbookqa", (37.68, 40.08, 39.68)),
    "KV": ("key_value_maps", (45.94, 51.68, 55.64)),
    "Induction": ("mathematical_induction", (54.20, 51.59, 55.36)),
    "LD-3": ("logical_deduction_three_objects", (33.60, 33.87, 34.47)),
    "LD-5": ("logical_deduction_five_objects", (19.44, 19.92, 20.72)),
    "DisambQA": ("disambiguation_qa", (30.16, 26.20, 30.23)),
    "IR": ("implicit_relations", (12.94, 15.29, 14.82)),
    "CO": ("reasoning_about_colored_objects", (16.97, 18.48, 17.39)),
}
NAMES = {column: name for column, (name, _) in _COLUMNS.items()}
"""Columns of the tables to lm-eval's names of them."""
ARMS = ("plain", "hyper_connections", "lime")
"""LLaMA, HC and LIMe of the paper's tables, in their order."""
AVERAGE = "average"
"""The quantity that is the mean of a table's columns."""
_NO_LM_EVAL = "lm-eval, which asks the tasks: pip install layermem[eval]"


def check_artefact(
    name: str, artefact: Artefact, scale: Scale, records: Sequence[str], *, dry_run: bool
) -> None:
    """Raise, before anything is trained, if an artefact cannot be had here: for lack of a GPU, or
    of the records of a task."""
    from layermem_bench.evals.benchmarks import load_tasks

    if records and not artefact.tasks:
        raise ValueError(f"--records {records[0]}: {name} asks no evaluation tasks; leave it out")
    if not dry_run and scale in artefact.needs and not torch.cuda.is_available():
        raise ValueError(
            f"{name} at scale {scale} needs {artefact.needs[scale]}, and there is no GPU here; "
            "--dry-run says what it would cost, --scale tiny runs on a CPU"
        )
    if artefact.tasks and (records or not dry_run):
        load_tasks([NAMES[task] for task in artefact.tasks], records)


def leave_out(artefact: Artefact, names: Sequence[str]) -> Artefact:
    """Return an artefact without some of its tasks, named as columns or as in lm-eval.

    Averages are those of the other tasks then, the paper's too, and are called so.
    """
    if not names:
        return artefact
    known = {name.lower(): task for task in artefact.tasks for name in (task, NAMES[task])}
    left = {known.get(name.lower()) for name in names}
    tasks = tuple(task for task in artefact.tasks if task not in left)
    if None in left or not tasks:
        raise ValueError(
            f"--without {' '.join(names)}: expected some, not all, of the evaluation tasks that it "
            f"asks, {', '.join(known) or 'which are none'}"
        )
    average = f"{AVERAGE} without {', '.join(task for task in artefact.tasks if task in left)}"
    kept = [number for number in artefact.numbers if number.quantity in tasks]
    return replace(
        artefact,
        tasks=tasks,
        observe=partial(_observe, tasks=tasks, average=average),
        numbers=(*kept, *_averages(kept, average)),
        # All that these tables claim is of averages.
        claims=lambda scale: [replace(c, quantity=average) for c in artefact.claims(scale)],
    )


def _averages(numbers: Sequence[PaperNumber], quantity: str) -> Iterator[PaperNumber]:
    """Yield of each arm the mean of the paper's numbers."""
    for arm in dict.fromkeys(number.arm for number in numbers):
        of_arm = [number for number in numbers if number.arm == arm]
        mean = statistics.fmean(number.value for number in of_arm)
        where = f"{of_arm[0].where}, the mean of these"
        yield replace(of_arm[0], quantity=quantity, value=round(mean, 6), where=where)


def _observe(
    trained: Observing, tasks: Sequence[str], average: str = AVERAGE
) -> Iterator[Observed]:
    """Yield the columns of a table, and their average."""

    def with_mean(of_tasks: Mapping[str, float]) -> dict[str, float]:
        return {**of_tasks, average: sum(of_tasks.values()) / len(of_tasks)}

    for arms in trained.records.values():
        folders = [record.folder for runs in arms.values() for record in runs.values()]
        scores, rows = _score(folders, tasks, trained)
        # A model that says one answer to everything has as many right as are that answer.
        guesses = {t: max(rows[t].chance or 0.0, rows[t].most_frequent or 0.0) for t in tasks}
        for arm, runs in arms.items():
            of_seeds = {seed: with_mean(scores[run.folder]) for seed, run in runs.items()}
            for column, chance in with_mean(guesses).items():
                values = {seed: of_seed[column] for seed, of_seed in of_seeds.items()}
                yield Observed(
                    quantity=column, arm=arm, by_seed=values, is_share=True, chance=chance
                )


def _score(
    folders: Sequence[str], tasks: Sequence[str], trained: Observing
) -> tuple[dict[str, dict[str, float]], dict[str, Row]]:
    """Return the share of right answers by run folder and column, and the row of each column."""
    from layermem_bench.evals.benchmarks import RIGHT
    from layermem_bench.evals.evaluating import evaluate_checkpoints
    from layermem_bench.studies.records import arms_of_same_seeds

    options = _options(tasks, trained.scale, trained.task_records)
    result = evaluate_checkpoints(folders, options, trained.out / "eval", group=arms_of_same_seeds)
    by_name = result.of(RIGHT)
    rows = {task: by_name[find_task(NAMES[task]).name] for task in tasks}
    scores = {
        folder: {task: row.scores[model].value for task, row in rows.items()}
        for folder, model in zip(folders, result.models, strict=True)
    }
    return scores, rows


def _options(tasks: Sequence[str], scale: Scale, records: Sequence[str]) -> EvalOptions:
    """Return how tasks are asked: 3 examples, five draws, as the paper's figures suggest."""
    options = EvalOptions(tasks=tuple(NAMES[task] for task in tasks), records=tuple(records))
    if scale != "tiny":
        return options
    # On a CPU it takes minutes. Models are trained on blocks of 128 bytes, which some answers of
    # HellaSwag alone are longer than.
    return replace(options, limit=200, seeds=1, truncate=True, max_length=256)


def _table(
    table: str, title: str, claim: str, tasks: tuple[str, ...], averages: tuple[float, ...]
) -> Artefact:
    """Return an artefact of a table of tasks; ``averages``: in percent, as printed."""
    printed = {**{task: _COLUMNS[task][1] for task in tasks}, AVERAGE: averages}
    numbers = {
        (column, arm): round(percent / 100, 6)
        for column, percents in printed.items()
        for arm, percent in zip(ARMS, percents, strict=True)
    }
    return on_text(
        title=f"{title}, 3-shot, 1B, grouped-query attention",
        claim=claim,
        boards=lambda scale: (grouped_queries(scale, ARMS),),
        observe=partial(_observe, tasks=tasks),
        numbers=shares(table, numbers),
        claims=lambda scale: (
            *claims_of_lime(higher=[AVERAGE]),
            *claims_of_lime(higher=[AVERAGE], against="hyper_connections"),
        ),
        notes=(
            "Models of the smaller scales are far from the paper's 1B: most tasks are at chance. "
            "At scale tiny each task is asked 200 items with one draw of examples, and prompts are "
            "cut at their start to 256 bytes, twice the blocks that models are trained on (some "
            "answers are longer than a block), so that few or none of the examples are seen.",
            "The paper does not say which accuracy it prints: here it is by log-probability, not "
            "by that per character.",
        ),
        tasks=tasks,
        missing="" if importlib.util.find_spec("lm_eval") else _NO_LM_EVAL,
    )


_AHEAD = "LIMe is ahead of LLaMA and Hyper-Connections on average: "
ARTEFACTS = {
    "table1": _table(
        "Table 1",
        "LM evaluation, eight tasks",
        "LIMe outperforms LLaMA and Hyper-Connections on average: 51.74 against 48.20 and 49.93.",
        ("MultiRC", "WiC", "QNLI", "ARC-E", "ARC-C", "KV", "Induction", "LD-3"),
        (48.20, 49.93, 51.74),
    ),
    "table4": _table(
        "Table 4",
        "GLUE and SuperGLUE",
        f"{_AHEAD}57.86 against 53.96 and 56.77.",
        ("COPA", "MultiRC", "WiC", "QNLI", "WNLI"),
        (53.96, 56.77, 57.86),
    ),
    "table5": _table(
        "Table 5",
        "Question answering",
        f"{_AHEAD}50.75 against 49.85 and 50.73.",
        ("ARC-E", "ARC-C", "HellaSwag", "OBQA"),
        (49.85, 50.73, 50.75),
    ),
    "table6": _table(
        "Table 6",
        "BIG-bench",
        f"{_AHEAD}32.66 against 30.46 and 31.00.",
        ("KV", "Induction", "DisambQA", "LD-5", "LD-3", "IR", "CO"),
        (30.46, 31.00, 32.66),
    ),
}
