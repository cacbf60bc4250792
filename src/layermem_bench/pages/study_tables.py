"""Tables of a study: arms side by side, shapes, ranks, rates, runs.

Each is a list of columns over the lines of a comparison, or over what else was recorded.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from layermem_bench.pages.numbers import (
    format_interval,
    format_number,
    format_p,
    format_pairs,
    looks_note,
)
from layermem_bench.pages.page import Cell, Columns, Link, Table
from layermem_bench.studies.comparing import Line, compare, lines_of
from layermem_bench.studies.ranks import RankCorrelation, rank_correlations
from layermem_bench.studies.result import (
    BY_LEVEL,
    Arm,
    Board,
    Condition,
    Metric,
    RunRecord,
    StudyResult,
    TriedRates,
)

TITLES: Mapping[str, str] = {
    "tokens": "equal tokens",
    "time": "equal training time",
    "parameters": "equal parameters",
    "recorded": "as recorded",
}
"""What conditions are called."""
INTERVALS = (
    "95% intervals over seeds by Student's t, differences pair by pair; p-values are adjusted by "
    "Holm's method for the arms of the table, and from 0.05 on a difference is within noise."
)
"""How intervals and p-values of tables are computed."""
_BEST = " Against the best: for all pairs of arms, as which is best was picked from these numbers."
_RANKS = (
    "Spearman's correlation of the arms' ranks by their means: 1 where two boards rank them alike, "
    "0 where one says nothing about the other. Intervals are of 2,000 draws of as many seeds, with "
    "repetition, which lean to 0. Boards that rank the arms alike show a correlation above the "
    "last column in 95 of 100 studies."
)
_RUNS = (
    "An id stands for every option that decides about a run's weights. Tokens a second: the median "
    "of the wall time; no comparison. layermem train --config RUN/config.yaml --out NEW repeats a "
    "run."
)
_RATES = (
    "Each arm's learning rate, with that of the parameters that it adds (own) where it was tried, "
    "was chosen on a seed that is in no other table. Beyond the lowest or the highest a better one "
    "may lie."
)
# Columns that a page alone has room for.
_WIDE = ("each seed", "against the best", "seeds to settle it", "mlp")


def shown_metrics(result: StudyResult, board: Board, condition: Condition) -> list[str]:
    """Return the metrics that have a table of their own, that of the ranking first."""
    names = [n for n in result.metrics_of(board.name, condition.name) if BY_LEVEL not in n]
    return sorted(names or [board.metric], key=lambda name: name != board.metric)


def title_of(board: Board, condition: Condition) -> str:
    """Return what a board under a condition is called."""
    if condition.name == "recorded":
        return board.name
    return f"{board.name}, {TITLES[condition.name]}"


def arms_table(
    result: StudyResult, board: Board, condition: Condition, metric: str, *, narrow: bool = False
) -> Table:
    """Return the table of one metric of the arms of a board under a condition.

    Facts in which all arms are alike are said once, below it. ``narrow``: without what a page alone
    has room for.
    """
    lines, of = lines_of(result, board, condition, metric), result.metric(metric)
    title, runs = title_of(board, condition), result.of(board.name, condition.name)
    facts = _facts(board, condition)
    columns = _compared(title, metric, of, lines, condition.arms, runs, facts)
    # At equal parameters models are others than those that were measured.
    steps = board.steps if condition.name != "parameters" else None
    if steps is not None:
        columns["time"] = lambda line: f"{steps.ratios[line.arm]:.2f}"
    cells = {name: [write(line) for line in lines] for name, write in columns.items()}
    alike = {name: str(cells[name][0]) for name in facts if len(set(map(str, cells[name]))) == 1}
    dropped = {*alike, *(_WIDE if narrow else ())}
    if len(lines) < 3:
        # It is the difference from the first.
        dropped.add("against the best")
    if not any(line.pairs_to_settle for line in lines):
        dropped.add("seeds to settle it")
    cells = {name: column for name, column in cells.items() if any(column) and name not in dropped}
    caption = "" if narrow else INTERVALS
    caption += _BEST if "against the best" in cells else ""
    caption += "" if of.chance is None else f" A guess: {format_number(of.chance, of.is_share)}."
    common = ", ".join(f"{name} {value}" for name, value in alike.items() if value)
    caption += f" All arms: {common}." if common else ""
    caption += "" if board.before is None else f" Before the first step: {board.before:.4f}."
    caption += looks_note(condition.looks)
    if steps is not None:
        caption += f" Time: of a step, over the first arm's, on {steps.machine}."
    return Table.of_columns(cells, caption.strip())


def _compared(
    title: str,
    name: str,
    metric: Metric,
    lines: Sequence[Line],
    arms: Sequence[Arm],
    runs: Sequence[RunRecord] = (),
    facts: Columns[Line] = MappingProxyType({}),
) -> dict[str, Callable[[Line], Cell]]:
    """Return the columns of a comparison; ``facts``: those that stand before its values."""
    seeds = {seed for line in lines for seed in (*line.by_seed, *line.missing)}
    notes = {arm.name: arm.note for arm in arms}
    return {
        "": lambda line: "" if line.rank is None else str(line.rank),
        title: lambda line: line.arm,
        **facts,
        name: lambda line: _mean(line, name, metric.is_share, notes[line.arm], runs),
        "each seed": lambda line: _seeds(line, metric, runs),
        f"against {arms[0].name}": lambda line: _difference(line, metric, len(seeds)),
        "p (Holm)": lambda line: format_p(line.p),
        "against the best": lambda x: "best mean" if x.rank == 1 else format_p(x.p_to_best),
        "seeds to settle it": lambda line: format_pairs(line.difference, line.pairs_to_settle),
    }


def _facts(board: Board, condition: Condition) -> Columns[Line]:
    """Return the columns of what arms are."""
    arms = {arm.name: arm for arm in condition.arms}
    ends = {each.arm: end_of_range(each) for each in board.tried if each.chosen is not None}

    def rate(line: Line) -> str:
        rate, end = arms[line.arm].rate, ends.get(line.arm, "")
        return "" if rate is None else f"{rate:g}{end and f' (the {end})'}"

    return {
        "learning rate": rate,
        "steps": lambda line: f"{arms[line.arm].steps:,}",
        "mlp": lambda line: str(arms[line.arm].width_of_mlp or ""),
        "parameters": lambda x: f"{count:,}" if (count := arms[x.arm].parameters) else "",
    }


def _mean(line: Line, name: str, is_share: bool, note: str, runs: Sequence[RunRecord]) -> str:
    """Write a mean, and which of the arm's seeds are not in it."""
    states: dict[str, list[str]] = {}
    for run in runs:
        if run.arm == line.arm and run.seed in line.missing:
            state = f"no {name} recorded" if run.state == "ended" else run.state
            states.setdefault(state, []).append(str(run.seed))
    notes = [note] if note else []
    notes += [f"{state}: seed {', '.join(seeds)}" for state, seeds in states.items()]
    mean = format_interval(line.mean, is_share)
    return f"{mean} ({'; '.join(notes)})".strip() if notes else mean


def _difference(line: Line, metric: Metric, seeds: int) -> str:
    """Write the difference from the first arm, and over how many seeds where one lacks some."""
    written = format_interval(line.difference, metric.is_share, "+")
    if line.difference is None or line.difference.count in (1, seeds):
        return written
    return f"{written} (over {line.difference.count} of {seeds} seeds)"


def _seeds(line: Line, metric: Metric, runs: Sequence[RunRecord]) -> list[Link]:
    marks = {run.seed: run_mark(run) for run in runs if run.arm == line.arm}
    values = sorted(line.by_seed.items()) if marks else ()
    return [Link(format_number(value, metric.is_share), marks[seed]) for seed, value in values]


def run_mark(run: RunRecord) -> str:
    """Return what links to a run point at."""
    return f"run-{run.run_id}"


def shapes_tables(result: StudyResult) -> Iterator[tuple[Table, list[Line], Metric]]:
    """Yield wide against deep: all arms and shapes of a preset, at equal parameters."""
    by_preset: dict[str, list[tuple[Board, Condition]]] = {}
    for board in result.boards:
        for condition in board.conditions:
            if board.shape and condition.name == "parameters":
                by_preset.setdefault(board.preset, []).append((board, condition))
    for preset, shapes in by_preset.items():
        (first, _), name = shapes[0], shapes[0][0].metric
        values = {}
        for arm in first.conditions[0].arms:
            for board, condition in shapes:
                of_arms = result.values(board.name, condition.name, name)
                values[f"{arm.name}, {board.shape}"] = of_arms.get(arm.name, {})
        looks = max((condition.looks for _, condition in shapes), key=len)
        metric = result.metric(name)
        lines = compare(values, result.seeds, metric.better, looks)
        title = f"{preset}, arms and shapes, equal parameters"
        columns = _compared(title, name, metric, lines, [Arm(name=a, steps=0) for a in values])
        del columns["each seed"], columns["seeds to settle it"]
        if len(shapes) > 1:
            yield Table.over(lines, columns, INTERVALS + _BEST + looks_note(looks)), lines, metric


def ranks_table(result: StudyResult) -> Table | None:
    """Return a table of how alike two boards rank the arms; None: no two can be compared."""
    no_interval = "none: all arms tie in some draws"
    unsaid = "cannot be said: arms tie, or differ by no more than seeds"
    columns: Columns[RankCorrelation] = {
        "boards": lambda each: " and ".join(each.boards),
        "arms": lambda each: str(each.arms),
        "rank correlation": lambda each: f"{each.value:.2f}",
        "95% interval": lambda x: "{:.2f} to {:.2f}".format(*x.ends) if x.ends else no_interval,
        "if they rank alike": lambda x: unsaid if x.if_alike is None else f"above {x.if_alike:.2f}",
    }
    pairs = rank_correlations(result)
    return Table.over(pairs, columns, _RANKS) if pairs else None


def rates_table(board: Board) -> Table:
    """Return a table of each arm's loss at each learning rate it tried."""

    def chosen(each: TriedRates) -> str:
        own = "" if each.own_chosen is None else f", own {each.own_chosen:g}"
        return "" if each.chosen is None else f"{each.chosen:g}{own}"

    def loss(rate: float, each: TriedRates) -> str:
        if rate not in each.rates:
            return ""
        place = each.rates.index(rate)
        value = each.losses[place]
        shown = "diverged" if value is None else format_number(value, False)
        return f"{shown} (own {each.own_rates[place]:g})" if each.own_rates else shown

    rates = dict.fromkeys(rate for each in board.tried for rate in each.rates)
    columns: Columns[TriedRates] = {
        f"{board.name}: validation loss at learning rate": lambda each: each.arm,
        **{f"{rate:g}": partial(loss, rate) for rate in rates},
        "chosen": chosen,
    }
    return Table.over(board.tried, columns, _RATES)


def end_of_range(tried: TriedRates) -> str:
    """Return "lowest" or "highest" where that rate of those tried was chosen, also of the rates of
    what the arm adds; else nothing."""
    ends = []
    for what, chosen, rates in (
        ("", tried.chosen, tried.rates),
        (" of its own rates", tried.own_chosen, tried.own_rates),
    ):
        if len(set(rates)) > 1 and chosen in (min(rates), max(rates)):
            ends.append(f"{'lowest' if chosen == min(rates) else 'highest'}{what}")
    return " and the ".join(ends)


def runs_table(result: StudyResult) -> Table:
    """Return a table of the runs, to which numbers of other tables lead."""
    shown = ("layermem", "commit", "torch", "machine", "processor")

    def made_with(run: RunRecord) -> str:
        return ", ".join(f"{key} {run.about[key]}" for key in shown if run.about.get(key))

    columns: Columns[RunRecord] = {
        "run": lambda run: run.name,
        "id": lambda run: run.run_id,
        "seed": lambda run: str(run.seed),
        "state": lambda run: f"{run.state}: {run.note}" if run.note else run.state,
        "steps": lambda run: f"{run.max_steps:,}" if run.max_steps else "",
        "tokens/s": lambda r: f"{r.tokens_per_second:,.0f}" if r.tokens_per_second else "",
        "made with": made_with,
    }
    made = Table.over(result.runs, columns, _RUNS)
    return replace(made, marks=[run_mark(run) for run in result.runs])
