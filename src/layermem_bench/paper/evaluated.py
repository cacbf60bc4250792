"""Evaluation tasks of trained models: Tables 1, 4, 5 and 6, as ``layermem eval`` asks them."""

import importlib.util
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from layermem_bench.evals.result import EvalOptions
from layermem_bench.paper.artefact import Artefact, Runs, grouped_queries, lime_is, shares
from layermem_bench.studies.definition import Observed
from layermem_bench.studies.result import Scale

COLUMNS = {
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
"""Each task\'s name in lm-eval by its column, and percents of LLaMA, HC and LIMe as printed."""
ARMS = ("plain", "hyper_connections", "lime")
"""LLaMA, HC and LIMe of the paper's tables, in their order."""
_AHEAD = "LIMe is ahead of LLaMA and Hyper-Connections on average:"
TABLES = {
    "table1": (
        "LM evaluation, eight tasks",
        "LIMe outperforms LLaMA and Hyper-Connections on average: 51.74 against 48.20 and 49.93.",
        ("MultiRC", "WiC", "QNLI", "ARC-E", "ARC-C", "KV", "Induction", "LD-3"),
        (48.20, 49.93, 51.74),
    ),
    "table4": (
        "GLUE and SuperGLUE",
        f"{_AHEAD} 57.86 against 53.96 and 56.77.",
        ("COPA", "MultiRC", "WiC", "QNLI", "WNLI"),
        (53.96, 56.77, 57.86),
    ),
    "table5": (
        "Question answering",
        f"{_AHEAD} 50.75 against 49.85 and 50.73.",
        ("ARC-E", "ARC-C", "HellaSwag", "OBQA"),
        (49.85, 50.73, 50.75),
    ),
    "table6": (
        "BIG-bench",
        f"{_AHEAD} 32.66 against 30.46 and 31.00.",
        ("KV", "Induction", "DisambQA", "LD-5", "LD-3", "IR", "CO"),
        (30.46, 31.00, 32.66),
    ),
}
"""Each table's title, claim, columns, and averages in percent, as printed."""
_NO_LM_EVAL = "lm-eval, which asks the tasks: pip install layermem[eval]"


def table(name: str, scale: Scale, records: Sequence[str], without: Sequence[str]) -> Artefact:
    """Return one of the tables; ``without``: tasks that are left out, as columns or as in lm-eval.

    Averages are those of the other tasks then, the paper's too, and are called so.
    """
    title, claim, columns, averages = TABLES[name]
    left = _left_out(columns, without)
    tasks = {task: COLUMNS[task][0] for task in columns if task not in left}
    printed = {
        (task, arm): round(percent / 100, 6)
        for task in tasks
        for arm, percent in zip(ARMS, COLUMNS[task][1], strict=True)
    }
    average, where = "average", f"Table {name.removeprefix('table')}"
    papers, means = shares(where, printed), [percent / 100 for percent in averages]
    if left:
        average, where = f"average without {', '.join(left)}", f"{where}, the mean of these"
        means = [statistics.fmean(printed[task, arm] for task in tasks) for arm in ARMS]
    of_arms = {(average, arm): round(mean, 6) for arm, mean in zip(ARMS, means, strict=True)}
    text, options = grouped_queries(scale, ",".join(ARMS)), _options(scale, tasks, records)
    return Artefact(
        title=f"{title}, 3-shot, 1B, grouped-query attention",
        claim=claim,
        boards=(text,),
        observe=lambda trained: _observe(trained.of(text), tasks, average, options, trained.out),
        papers=(*papers, *shares(where, of_arms)),
        claims=(
            *lime_is("higher", average),
            *lime_is("higher", average, against="hyper_connections"),
        ),
        notes=(
            "Models of the smaller scales are far from the paper's 1B: most tasks are at chance. "
            "At scale tiny each task is asked 200 items with one draw of examples, and prompts are "
            "cut at their start to 256 bytes, twice the blocks that models are trained on (some "
            "answers are longer than a block), so that few or none of the examples are seen.",
            "The paper does not say which accuracy it prints: here it is by log-probability, not "
            "by that per character.",
        ),
        tasks=tuple(tasks),
        missing="" if importlib.util.find_spec("lm_eval") else _NO_LM_EVAL,
    )


def _left_out(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the columns that are named, in the order of the table."""
    known = {name.lower(): task for task in columns for name in (task, COLUMNS[task][0])}
    named = {known.get(name.lower()) for name in names}
    if None in named or len(named) == len(columns):
        raise ValueError(
            f"--without {' '.join(names)}: expected some, not all, of the evaluation tasks that it "
            f"asks, {', '.join(known)}"
        )
    return [task for task in columns if task in named]


def _options(scale: Scale, tasks: Mapping[str, str], records: Sequence[str]) -> EvalOptions:
    """Return how tasks are asked: 3 examples, five draws, as the paper's figures suggest."""
    options = EvalOptions(tasks=tuple(tasks.values()), records=tuple(records))
    if scale != "tiny":
        return options
    # On a CPU it takes minutes. Models are trained on blocks of 128 bytes, which some answers of
    # HellaSwag alone are longer than.
    return replace(options, limit=200, seeds=1, truncate=True, max_length=256)


def _observe(
    runs: Runs, tasks: Mapping[str, str], average: str, options: EvalOptions, out: Path
) -> Iterator[Observed]:
    """Yield the columns of a table, and their average: shares of right answers."""
    from layermem_bench.evals.benchmarks import RIGHT
    from layermem_bench.evals.evaluating import evaluate_checkpoints
    from layermem_bench.studies.gathering import arms_of_same_seeds

    def with_mean(of_tasks: Mapping[str, float]) -> dict[str, float]:
        return {**of_tasks, average: sum(of_tasks.values()) / len(of_tasks)}

    folders = [record.folder for by_seed in runs.values() for record in by_seed.values()]
    if not folders:
        return
    result = evaluate_checkpoints(folders, options, out / "eval", group=arms_of_same_seeds)
    by_name, models = result.of(RIGHT), dict(zip(folders, result.models, strict=True))
    rows = {task: by_name[name] for task, name in tasks.items()}
    # A model that says one answer to everything has as many right as are that answer.
    guesses = {t: max(row.chance or 0.0, row.most_frequent or 0.0) for t, row in rows.items()}
    for arm, by_seed in runs.items():
        values = {
            seed: with_mean({t: row.scores[models[run.folder]].value for t, row in rows.items()})
            for seed, run in by_seed.items()
        }
        for column, chance in with_mean(guesses).items():
            of_column = {seed: of_seed[column] for seed, of_seed in values.items()}
            yield Observed(
                quantity=column, arm=arm, by_seed=of_column, is_share=True, chance=chance
            )
