"""The page about evaluation tasks, and its tables on the screen, from an ``EvalResult`` alone.

It does not know: torch, models, how anything was computed.
"""

from collections.abc import Sequence

from layermem.report.page import Page, Section, Table
from layermem.results.eval import Accuracy, EvalResult, TaskDifference, TaskScore

_PREFIX, _SUFFIX = "bigbench_", "_multiple_choice"


def build(result: EvalResult) -> Page:
    """Return the page."""
    return Page(
        title=f"Evaluation of {' and '.join(result.models)}",
        lead="Right answers to evaluation tasks, beside chance, the most frequent "
        "answer, and the paper's figures.",
        sections=[section(result), Section(title="Again", commands=[result.command])],
    )


def section(result: EvalResult, title_suffix: str = "") -> Section:
    """Return the section of a page that shows the result."""
    return Section(
        title=f"Evaluation tasks{title_suffix}",
        paragraphs=[_how(result)],
        tables=tables(result),
    )


def tables(result: EvalResult) -> list[Table]:
    """Return the tables of scores, what to beware of, differences, and sources."""
    normed = any(s.accuracy_norm for scores in result.models.values() for s in scores.values())
    return [
        _scores(result),
        *_oddities(result),
        *([_norms(result)] if normed else []),
        *([_differences(result)] if result.differences else []),
        _sources(result),
    ]


def task_list(tasks: Sequence[tuple[str, str, float, dict[str, float], str, str]]) -> Table:
    """Return the table of tasks there are.

    Of each: name, tables of the paper, chance (0: it differs), the paper's figures, the files of
    its records or what they would be called, and the data set on the hub.
    """
    return Table(
        header=["task", "paper's table", "chance", "LLaMA", "HC", "LIMe", "records", "else"],
        rows=[
            [
                short_name(name),
                where,
                f"{chance:.1%}" if chance else "varies",
                *(f"{paper[model]:.2f}" for model in ("LLaMA", "HC", "LIMe")),
                files,
                f"hub: {data}" if data else "not on the hub",
            ]
            for name, where, chance, paper, files, data in tasks
        ],
        caption="Accuracies of the paper's 1B models in percent, 3-shot. A task with records runs "
        "offline; one without is fetched from the hub.",
    )


def short_name(task: str) -> str:
    """Return the name of a task without what all of BIG-bench have in theirs."""
    return task.removeprefix(_PREFIX).removesuffix(_SUFFIX)


def _how(result: EvalResult) -> str:
    options = result.options
    seeds = options.seeds if options.shots else 1
    limit = "" if options.limit is None else f", the first {options.limit} items of each task"
    return (
        f"{options.shots} examples before each item, drawn with {seeds} seeds{limit}; by lm-eval "
        f"{result.lm_eval}. An answer is the choice of the highest log-probability."
    )


def _oddities(result: EvalResult) -> list[Table]:
    """Return the table of what makes scores mean less than they seem to; none if nothing does."""
    rows = [
        [
            short_name(task),
            model,
            f"{score.truncated:,} of {score.requests:,}",
            f"{score.unknown_tokens:,}",
            f"{score.ties:,}",
        ]
        for model, scores in result.models.items()
        for task, score in scores.items()
        if score.truncated or score.unknown_tokens or score.ties
    ]
    if not rows:
        return []
    table = Table(
        header=["beware", "model", "prompts cut", "unknown tokens", "ties"],
        rows=rows,
        caption="Prompts that are longer than the model reads lack their start; unknown tokens "
        "stand for text which the tokenizer has no tokens for; of two equally probable best "
        "choices the first counts.",
    )
    return [table]


def _scores(result: EvalResult) -> Table:
    rows = [
        [
            short_name(task),
            f"{facts.items:,}",
            *(_share(scores[task].accuracy) for scores in result.models.values()),
            f"{facts.chance:.1%}",
            f"{facts.majority:.1%}",
            f"{facts.paper['LLaMA']:.1f} / {facts.paper['LIMe']:.1f}" if facts.paper else "",
        ]
        for task, facts in result.tasks.items()
    ]
    if len(result.tasks) > 1:
        facts_of = list(result.tasks.values())
        means = [
            sum(score.accuracy.mean for score in scores.values()) / len(scores)
            for scores in result.models.values()
        ]
        chance = sum(facts.chance for facts in facts_of) / len(facts_of)
        rows.append(["mean of these", "", *(f"{m:.1%}" for m in means), f"{chance:.1%}", "", ""])
    return Table(
        header=["task", "items", *result.models, "chance", "most frequent", "paper: LLaMA / LIMe"],
        rows=rows,
        caption="Right answers (acc): mean over seeds [95% over items; 95% over few-shot seeds]. "
        "The paper's figures are of 1B models after 50B tokens, 3-shot; it does not say whether by "
        "acc or acc_norm.",
    )


def _norms(result: EvalResult) -> Table:
    def cell(score: TaskScore) -> str:
        return _share(score.accuracy_norm) if score.accuracy_norm else ""

    return Table(
        header=["task", *result.models],
        rows=[
            [short_name(task), *(cell(scores[task]) for scores in result.models.values())]
            for task in result.tasks
            if any(scores[task].accuracy_norm for scores in result.models.values())
        ],
        caption="The same by log-probability per character of a choice (acc_norm).",
    )


def _differences(result: EvalResult) -> Table:
    first = next(iter(result.models))
    return Table(
        header=[f"against {first}", *result.differences],
        rows=[
            [short_name(task), *(_difference(each[task]) for each in result.differences.values())]
            for task in result.tasks
        ],
        caption="Difference of right answers [95% over items; 95% over seeds, paired]; p "
        "by McNemar's exact test on the items of the first seed, adjusted for the number of tasks "
        "by Holm's method.",
    )


def _sources(result: EvalResult) -> Table:
    return Table(
        header=["task", "items from", "examples from", "definition"],
        rows=[
            [short_name(task), facts.source, facts.few_shot_source, f"version {facts.version}"]
            for task, facts in result.tasks.items()
        ],
        caption="Where items and few-shot examples come from. An item is never its own example.",
    )


def _share(accuracy: Accuracy) -> str:
    return f"{accuracy.mean:.1%} {_ends(accuracy.over_items, accuracy.over_seeds)}"


def _difference(difference: TaskDifference) -> str:
    p = difference.p_value
    ends = _ends(difference.over_items, difference.over_seeds, "+")
    shown = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    return f"{difference.accuracy:+.1%} {ends} {shown}"


def _ends(over_items: Sequence[float], over_seeds: Sequence[float], sign: str = "") -> str:
    given = (ends for ends in (over_items, over_seeds) if ends)
    return "[" + "; ".join(f"{low:{sign}.1%} to {high:{sign}.1%}" for low, high in given) + "]"
