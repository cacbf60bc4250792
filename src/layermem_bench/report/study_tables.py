"""Tables of a study: arms side by side, levels, shapes, rates, costs, runs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from layermem_bench.report.numbers import (
    format_interval,
    format_number,
    format_p,
    format_pairs,
    in_bytes,
    looks_note,
)
from layermem_bench.report.page import Cell, Link, Table
from layermem_bench.results.comparing import Line, compare, lines_of
from layermem_bench.results.intervals import mean_by_seed
from layermem_bench.results.ranks import rank_correlations
from layermem_bench.results.study import (
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
_HOW: Mapping[str, str] = {
    "tokens": "Every arm has the same tokens in the same order.",
    "time": "Every arm has as many steps as take the time of the first one's, in a whole schedule "
    "of that length.",
    "parameters": "The mlp of an arm with more parameters than the plain decoder is narrower, and "
    "of one with fewer wider, to within 0.5% of its parameters.",
    "recorded": "",
}
INTERVALS = (
    "95% intervals over seeds by Student's t, differences pair by pair; p-values are adjusted by "
    "Holm's method for the arms of the table, and from 0.05 on a difference is within noise."
)
"""How intervals and p-values of tables are computed."""
_BEST = " Against the best: for all pairs of arms, as which is best was picked from these numbers."


def shown_metrics(result: StudyResult, board: Board, condition: Condition) -> list[str]:
    """Return the metrics that have a table of their own, that of the ranking first."""
    names = [n for n in result.metrics_of(board.name, condition.name) if BY_LEVEL not in n]
    return sorted(names or [board.metric], key=lambda name: name != board.metric)


def arms_table(
    result: StudyResult, board: Board, condition: Condition, metric: str, *, narrow: bool = False
) -> Table:
    """Return the table of one metric of the arms of a board under a condition.

    Columns in which all arms say the same are said once, below it. ``narrow``: without what a page
    alone has room for.
    """
    lines = lines_of(result, board, condition, metric)
    of, arms = result.metric(metric), {arm.name: arm for arm in condition.arms}
    first, runs = condition.arms[0].name, result.of(board.name, condition.name)
    columns: dict[str, list[Cell]] = {
        "": [_rank(line) for line in lines],
        title_of(board, condition): [line.arm for line in lines],
        **_facts(board, [arms[line.arm] for line in lines]),
        metric: [_mean(line, of, metric, arms[line.arm].note, runs) for line in lines],
        "each seed": [_seeds(line, of, runs) for line in lines],
        f"against {first}": [_difference(line, of, lines) for line in lines],
        "p (Holm)": [format_p(line.p) for line in lines],
        "against the best": [_to_best(line) for line in lines],
        "seeds to settle it": [format_pairs(x.difference, x.pairs_to_settle) for x in lines],
        **_prices(board, condition, lines),
    }
    common: list[str] = []
    for name in ("learning rate", "steps", "mlp", "parameters"):
        values = set(map(str, columns.get(name, [])))
        if len(values) == 1:
            columns.pop(name)
            common += [f"{name} {value}" for value in values if value]
    dropped = {"each seed", "against the best", "seeds to settle it", "mlp"} if narrow else set()
    if len(lines) < 3:
        # It is the difference from the first.
        dropped.add("against the best")
    if not any(line.pairs_to_settle for line in lines):
        dropped.add("seeds to settle it")
    columns = {n: c for n, c in columns.items() if any(c) and n not in dropped}
    caption = "" if narrow else " ".join(filter(None, (_HOW[condition.name], INTERVALS)))
    caption += _BEST if "against the best" in columns else ""
    caption += "" if of.chance is None else f" A guess: {format_number(of.chance, of.is_share)}."
    caption += f" All arms: {', '.join(common)}." if common else ""
    caption += "" if board.before is None else f" Before the first step: {board.before:.4f}."
    caption += looks_note(condition.looks)
    prices = " and ".join(name for name in ("time", "memory") if name in columns)
    caption += f" {prices.capitalize()} of a step: over the first arm's." if prices else ""
    made = Table.of_columns(columns, caption.strip())
    return replace(made, least=("memory", "time", "parameters", "steps", "learning rate"))


def title_of(board: Board, condition: Condition) -> str:
    """Return what a board under a condition is called."""
    if condition.name == "recorded":
        return board.name
    return f"{board.name}, {TITLES[condition.name]}"


def _facts(board: Board, arms: Sequence[Arm]) -> dict[str, list[Cell]]:
    ends = {each.arm: end_of_range(each) for each in board.tried if each.chosen is not None}

    def rate(arm: Arm) -> str:
        end = ends.get(arm.name, "")
        return "" if arm.rate is None else f"{arm.rate:g}{end and f' (the {end})'}"

    return {
        "learning rate": [rate(arm) for arm in arms],
        "steps": [f"{arm.steps:,}" for arm in arms],
        "mlp": ["" if arm.width_of_mlp is None else str(arm.width_of_mlp) for arm in arms],
        "parameters": ["" if arm.parameters is None else f"{arm.parameters:,}" for arm in arms],
    }


def _mean(line: Line, metric: Metric, name: str, note: str, runs: Sequence[RunRecord]) -> str:
    """Write a mean, and which of the arm's seeds are not in it."""
    notes = [note] if note else []
    states: dict[str, list[str]] = {}
    for run in runs:
        if run.arm == line.arm and run.seed in line.missing:
            state = f"no {name} recorded" if run.state == "ended" else run.state
            states.setdefault(state, []).append(str(run.seed))
    notes += [f"{state}: seed {', '.join(seeds)}" for state, seeds in states.items()]
    mean = format_interval(line.mean, metric.is_share)
    return f"{mean} ({'; '.join(notes)})".strip() if notes else mean


def _difference(line: Line, metric: Metric, lines: Sequence[Line]) -> str:
    """Write the difference from the first arm, and over how many seeds where one lacks some."""
    written = format_interval(line.difference, metric.is_share, "+")
    seeds = {seed for each in lines for seed in (*each.by_seed, *each.missing)}
    if line.difference is None or line.difference.count in (1, len(seeds)):
        return written
    return f"{written} (over {line.difference.count} of {len(seeds)} seeds)"


def _seeds(line: Line, metric: Metric, runs: Sequence[RunRecord]) -> list[Link]:
    marks = {run.seed: run_mark(run) for run in runs if run.arm == line.arm}
    return [
        Link(format_number(value, metric.is_share), marks[seed])
        for seed, value in sorted(line.by_seed.items())
    ]


def run_mark(run: RunRecord) -> str:
    """Return what links to a run point at."""
    return f"run-{run.run_id}"


def _prices(board: Board, condition: Condition, lines: Sequence[Line]) -> dict[str, list[Cell]]:
    """Return what a step takes of the first arm's; at equal parameters models are others."""
    if board.steps is None or condition.name == "parameters":
        return {}
    columns: dict[str, list[Cell]] = {
        "time": [f"{board.steps.ratios[line.arm]:.2f}" for line in lines]
    }
    peaks = board.memory.peaks if board.memory else {}
    if first := peaks.get(condition.arms[0].name):
        of_arms = [peaks.get(line.arm) for line in lines]
        columns["memory"] = [f"{peak / first:.2f}" if peak else "" for peak in of_arms]
    return columns


def levels_tables(result: StudyResult, board: Board, condition: Condition) -> Iterator[Table]:
    """Yield right answers by level of the problems (operands, steps): a column for each level."""
    by_kind: dict[str, dict[str, list[Cell]]] = {}
    arms = [arm.name for arm in condition.arms]
    for name in result.metrics_of(board.name, condition.name):
        if BY_LEVEL in name:
            kind, _, level = name.rpartition(": ")
            values = result.values(board.name, condition.name, name)
            of_arms = [values.get(arm, {}) for arm in arms]
            # Means over other seeds are not beside each other without a word.
            seeds = set().union(*of_arms)
            columns = by_kind.setdefault(kind, {kind: list(arms)})
            columns[level] = [
                format_interval(mean_by_seed(by_seed), True) + _lacking(seeds - by_seed.keys())
                for by_seed in of_arms
            ]
    yield from map(Table.of_columns, by_kind.values())


def _lacking(seeds: Iterable[int]) -> str:
    """Say which seeds a mean lacks that others have."""
    lacking = ", ".join(map(str, sorted(seeds)))
    return lacking and f" (without seed {lacking})"


def shapes_tables(result: StudyResult) -> Iterator[tuple[Table, list[Line], Metric]]:
    """Yield wide against deep, at equal parameters: all arms and shapes of a preset together, then
    the shapes of each arm."""
    by_preset: dict[str, list[tuple[Board, Condition]]] = {}
    for board in result.boards:
        for condition in board.conditions:
            if board.shape and condition.name == "parameters":
                by_preset.setdefault(board.preset, []).append((board, condition))
    for preset, boards in by_preset.items():
        if len(boards) < 2:
            continue
        first, name = boards[0][0], boards[0][0].metric
        values = {
            (arm.name, board.shape): result.values(board.name, "parameters", name).get(arm.name, {})
            for arm in first.conditions[0].arms
            for board, _ in boards
        }
        metric = result.metric(name)
        looks = max((condition.looks for _, condition in boards), key=len)
        parts = {"arms and shapes": {f"{arm}, {shape}": v for (arm, shape), v in values.items()}}
        for arm in dict.fromkeys(arm for arm, _ in values):
            parts[f"shapes of {arm}"] = {s: v for (other, s), v in values.items() if other == arm}
        for part, of_part in parts.items():
            lines = compare(of_part, result.seeds, metric.better, max(1, len(looks)))
            title = f"{preset}, {part}, equal parameters"
            table = _shapes_table(title, name, metric, lines)
            yield replace(table, caption=table.caption + looks_note(looks)), lines, metric


def ranks_table(result: StudyResult) -> Table | None:
    """Return a table of how alike two boards rank the arms; None: no two can be compared."""
    pairs = rank_correlations(result)
    columns: dict[str, list[Cell]] = {
        "boards": [" and ".join(each.boards) for each in pairs],
        "arms": [str(each.arms) for each in pairs],
        "rank correlation": [f"{each.value:.2f}" for each in pairs],
        "95% interval": [
            "none: all arms tie in some draws"
            if each.low is None or each.high is None
            else f"{each.low:.2f} to {each.high:.2f}"
            for each in pairs
        ],
        "if they rank alike": [
            "cannot be said: arms tie, or differ by no more than seeds"
            if each.if_alike is None
            else f"above {each.if_alike:.2f}"
            for each in pairs
        ],
    }
    caption = (
        "Spearman's correlation of the arms' ranks by their means: 1 where two boards rank "
        "them alike, 0 where one says nothing about the other. Intervals are of 2,000 draws of as "
        "many seeds, with repetition. Draws are noisier than the means, and lean to 0: an upper "
        "end below 1 does not show that two boards rank the arms otherwise. A correlation below "
        "the last column does: given the noise of seeds, taken to be as large for every arm, "
        "boards that rank the arms alike show one above it in 95 of 100 studies."
    )
    return Table.of_columns(columns, caption) if pairs else None


def _shapes_table(title: str, name: str, metric: Metric, lines: Sequence[Line]) -> Table:
    first = next((line.arm for line in lines if line.difference is None), "")
    is_share = metric.is_share
    columns: dict[str, list[Cell]] = {
        "": [_rank(line) for line in lines],
        title: [line.arm for line in lines],
        name: [format_interval(line.mean, is_share) for line in lines],
        f"against {first}": [format_interval(line.difference, is_share, "+") for line in lines],
        "p (Holm)": [format_p(line.p) for line in lines],
        "against the best": [_to_best(line) for line in lines],
    }
    return Table.of_columns(columns, INTERVALS + _BEST)


def _rank(line: Line) -> str:
    return "" if line.rank is None else str(line.rank)


def _to_best(line: Line) -> str:
    return "best mean" if line.rank == 1 else format_p(line.p_to_best)


def rates_table(board: Board) -> Table:
    """Return a table of each arm's loss, or right answers, at each learning rate it tried."""
    tried = board.tried
    rates = list(dict.fromkeys(rate for each in tried for rate in each.rates))
    with_decay = " and weight decay" if any(each.decay is not None for each in tried) else ""
    if any(each.own_rates for each in tried):
        with_decay = ", and that of the parameters that it adds (own),"
    by_right = any(each.right for each in tried)
    what = "right answers" if by_right else "validation loss"
    at_end = ", ".join(f"{x.arm} took the {end}" for x in tried if (end := end_of_range(x)))
    beyond = at_end and f" A better learning rate may lie beyond those tried: {at_end}."
    rows = []
    for each in tried:
        arm = each.arm if each.decay is None else f"{each.arm}, weight decay {each.decay:g}"
        chosen = "" if each.chosen is None else f"{each.chosen:g}"
        own = f", own {each.own_chosen:g}" if chosen and each.own_chosen else ""
        rows.append([arm, *(_outcome(each, rate) for rate in rates), f"{chosen}{own}"])
    return Table(
        header=[f"{board.name}: {what} at learning rate", *(f"{r:g}" for r in rates), "chosen"],
        rows=rows,
        caption=f"Each arm's learning rate{with_decay} was chosen on a seed that is in no other "
        f"table. A run that diverged says where in its diverged.json, in a folder rates.{beyond}",
    )


def end_of_range(tried: TriedRates) -> str:
    """Return "lowest" or "highest" where that rate of those tried was chosen, also of the rates of
    what the arm adds; else nothing."""
    if tried.chosen is None or len(tried.rates) < 2:
        return ""
    found = []
    for what, chosen, rates in (
        ("", tried.chosen, tried.rates),
        (" of its own rates", tried.own_chosen, tried.own_rates),
    ):
        if chosen is not None and rates:
            ends = {min(rates): f"lowest{what}", max(rates): f"highest{what}"}
            found += [ends[chosen]] if chosen in ends else []
    return " and the ".join(found)


def _outcome(tried: TriedRates, rate: float) -> str:
    if rate not in tried.rates:
        return ""
    place = tried.rates.index(rate)
    value = (tried.right or tried.losses)[place]
    shown = "diverged" if value is None else format_number(value, bool(tried.right))
    return f"{shown} (own {tried.own_rates[place]:g})" if tried.own_rates else shown


def steps_table(board: Board) -> Table | None:
    """Return a table of what a step of each arm takes; None: it was not measured."""
    steps = board.steps
    if steps is None:
        return None
    peaks = board.memory.peaks if board.memory else {}
    # The file of steps may have arms of earlier studies too.
    here = {arm.name for condition in board.conditions for arm in condition.arms}
    arms = [arm for arm in steps.seconds if arm in here]
    return Table.of_columns(
        {
            "arm": arms,
            "seconds of a step": [format_number(steps.seconds[arm], False) for arm in arms],
            "over the first arm's": [f"{steps.ratios[arm]:.3f}" for arm in arms],
            "peak memory": [in_bytes(peak) if (peak := peaks.get(arm)) else "" for arm in arms],
        },
        f"{steps.machine}: medians of {steps.rounds} rounds, one step of each arm in each. "
        "Memory is that of model, optimiser and a step, in a process of its own.",
    )


def runs_table(result: StudyResult) -> Table:
    """Return a table of the runs, to which numbers of other tables lead."""
    rows, made_with = [], set[str]()
    shown = ("layermem", "commit", "torch", "machine", "processor")
    for run in result.runs:
        made = ", ".join(f"{key} {run.about[key]}" for key in shown if run.about.get(key))
        # Runs that chose a rate keep nothing of this, nor do those that have not begun.
        code = [str(run.about.get(key, "")) for key in ("sources", "plugins")]
        made_with |= {" ".join([made, *code])} if made else set()
        state = f"{run.state}: {run.note}" if run.note else run.state
        steps = f"{run.max_steps:,}" if run.max_steps else ""
        speed = f"{run.tokens_per_second:,.0f}" if run.tokens_per_second else ""
        rows.append([run.name, run.run_id, str(run.seed), state, steps, speed, made])
    differ = " Not all of them were made with the same versions and machine."
    return Table(
        header=["run", "id", "seed", "state", "steps", "tokens/s", "made with"],
        rows=rows,
        marks=[run_mark(run) for run in result.runs],
        caption="An id stands for every option that decides about a run's weights. Tokens a "
        "second: the median of the wall time its machine took, whatever else that machine did; no "
        "comparison. layermem train --config RUN/config.yaml --out NEW repeats a run."
        f"{differ if len(made_with) > 1 else ''}",
    )
