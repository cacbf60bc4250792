"""Draws what runs came to: cards, a table for each metric, right answers by level, bars.

Every number leads to the runs it is from; what is missing is said where it would stand.

It does not know: torch, models, run folders.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from layermem.intervals import Interval, interval
from layermem.report import figures
from layermem.report.numbers import format_p, looks_note
from layermem.report.page import Card, Cell, Figure, Link, Section, Table
from layermem.report.settings import Setting
from layermem.results.run_record import LOSS, RIGHT_ANSWERS, RunRecord

INTERVALS = "95% intervals over seeds by Student's t; differences are taken seed by seed."
# What a card shows: the first metric that there is.
_HEADLINES = (RIGHT_ANSWERS, LOSS)


def outcome_section(setting: Setting, title_suffix: str) -> Section:
    """Return the part of a page about what the runs of a setting came to."""
    bars = _bars(setting)
    return Section(
        title=f"What came out{title_suffix}",
        cards=_cards(setting),
        paragraphs=[INTERVALS, *_missing(setting)],
        tables=[*metric_tables(setting), *_level_tables(setting)],
        figures=[bars] if bars else [],
    )


def metric_tables(setting: Setting) -> list[Table]:
    """Return a table of each metric: mean, every seed as a link, difference to the first arm.

    p-values say which differences are more than noise, wherever there are two pairs of seeds.
    """
    tables = []
    for metric, is_share in setting.metrics.items():
        header = [metric, "mean", "each seed", f"against {setting.first}"]
        rows = [_metric_row(setting, arm, metric, is_share) for arm in setting.arms]
        p_values = setting.adjusted_p_values(metric)
        caption = ""
        if p_values:
            header.append("p (Holm)")
            for arm, row in zip(setting.arms, rows, strict=True):
                row.append(format_p(p_values.get(arm)))
            count = len(p_values)
            caption = (
                f"p-values of the {count} differences by Student's t over pairs of seeds, adjusted "
                "for their number by Holm's method."
                if count > 1
                else "p-value of the difference by Student's t over pairs of seeds."
            )
            caption += f" From 0.05 on a difference is within noise.{looks_note(setting.looks)}"
        tables.append(Table(header=header, rows=rows, caption=caption))
    return tables


def run_mark(run: RunRecord) -> str:
    """Return what links to a run point at."""
    return f"run-{run.run_id}"


def run_links(arms: Mapping[str, Collection[RunRecord]]) -> list[Link]:
    """Return a link to each run: its seed, the first of an arm after the arm's name."""
    return [
        Link(f"{run.seed}" if i else f"{arm}: seed {run.seed}", run_mark(run))
        for arm, runs in arms.items()
        for i, run in enumerate(runs)
    ]


def format_number(value: float, is_share: bool, sign: str = "") -> str:
    """Write a metric: a share in percent, a loss with four digits."""
    return format(value, f"{sign}.1%" if is_share else f"{sign}.4f")


def _cards(setting: Setting) -> list[Card]:
    metric = next((name for name in _HEADLINES if name in setting.metrics), None)
    if metric is None:
        return []
    is_share, cards = setting.metrics[metric], []
    p_values = setting.adjusted_p_values(metric)
    for arm in setting.arms:
        values = setting.values(arm, metric)
        divergence = setting.divergence_note(arm, metric)
        if not values and not divergence:
            continue
        value, note = "diverged", f"{metric}: {divergence}"
        if values:
            mean = interval(list(values.values()))
            value = format_number(mean.mean, is_share)
            note = f"{metric} {_half_width(mean, is_share)}"
            note += f"; {divergence}: mean of the others" if divergence else ""
        if difference := setting.difference(arm, metric):
            over = setting.seed_count(arm, metric)
            against = _format_interval(difference, is_share, "+", over)
            note += f"; against {setting.first} {against}"
            note += f", p {format_p(p_values[arm])}" if arm in p_values else ""
        runs = [*setting.ended[arm].values(), *setting.diverged[arm].values()]
        cards.append(Card(name=arm, value=value, note=f"{note}.", sources=run_links({arm: runs})))
    return cards


def _missing(setting: Setting) -> list[str]:
    """Say what is in no table, and why."""
    return [
        *_left_out_notes(setting),
        *_unrecorded_notes(setting),
        *_divergence_notes(setting),
        *([] if setting.metrics else ["No run has ended, so there is nothing to compare yet."]),
    ]


def _left_out_notes(setting: Setting) -> Iterator[str]:
    left_out = setting.left_out()
    if unfinished := [run for run in left_out if not run.ended]:
        at = (f"{run.name} at step {run.steps:,} of {run.max_steps:,}" for run in unfinished)
        yield f"Not ended, and left out of the tables: {', '.join(at)}."
    if unvalidated := [run.name for run in left_out if run.ended]:
        yield f"Ended with no validation recorded, and left out: {', '.join(unvalidated)}."


def _unrecorded_notes(setting: Setting) -> Iterator[str]:
    for metric in setting.metrics if any(setting.ended.values()) else ():
        without = [
            run.name
            for runs in setting.ended.values()
            for run in runs.values()
            if metric not in run.metrics
        ]
        if without:
            yield f"Ended with no {metric} recorded, and left out: {', '.join(without)}."


def _divergence_notes(setting: Setting) -> Iterator[str]:
    at = [
        f"{run.name} at step {run.diverged.step:,}"
        for runs in setting.diverged.values()
        for run in runs.values()
        if run.diverged
    ]
    if at:
        yield f"Diverged, and in no mean: {', '.join(at)}."


def _metric_row(setting: Setting, arm: str, metric: str, is_share: bool) -> list[Cell]:
    values, divergence = setting.values(arm, metric), setting.divergence_note(arm, metric)
    if not values and not divergence:
        return [arm, "not recorded" if setting.ended[arm] else "no run has ended", "", ""]
    texts = {seed: format_number(value, is_share) for seed, value in values.items()}
    texts |= dict.fromkeys(setting.diverged[arm], "diverged")
    links = [Link(texts[seed], run_mark(setting.arms[arm][seed])) for seed in sorted(texts)]
    if not values:
        return [arm, divergence, links, ""]
    mean = _format_interval(interval(list(values.values())), is_share)
    difference = setting.difference(arm, metric)
    against = ""
    if difference:
        over = setting.seed_count(arm, metric)
        against = _format_interval(difference, is_share, "+", over)
    note = f" ({divergence}: mean of the others)" if divergence else ""
    return [arm, f"{mean}{note}", links, against]


def _level_tables(setting: Setting) -> list[Table]:
    """Return right answers by level (operands, steps), where there is more than one."""
    runs_by_level: dict[str, dict[tuple[str, str], list[RunRecord]]] = {}
    for arm, runs in setting.ended.items():
        for run in runs.values():
            for name, levels in (run.solved.by if run.solved else {}).items():
                for level in levels if len(levels) > 1 else ():
                    by_level = runs_by_level.setdefault(name, {})
                    by_level.setdefault((arm, level), []).append(run)
    return [
        Table(
            header=["", name, "right answers", "each seed"],
            rows=[_level_row(name, arm, level, runs) for (arm, level), runs in by_level.items()],
        )
        for name, by_level in runs_by_level.items()
    ]


def _level_row(name: str, arm: str, level: str, runs: Sequence[RunRecord]) -> list[Cell]:
    shares = [run.solved.by[name][level].accuracy for run in runs if run.solved]
    links = [
        Link(format_number(share, True), run_mark(run))
        for share, run in zip(shares, runs, strict=True)
    ]
    return [arm, level, _format_interval(interval(shares), True), links]


def _bars(setting: Setting) -> Figure | None:
    """Draw right answers with intervals and what a guess is worth; nothing for text."""
    bars, chances, runs_of_arm, of_one_seed = {}, [], {}, []
    for arm, by_seed in setting.ended.items():
        values = list(setting.values(arm, RIGHT_ANSWERS).values())
        solved = [run.solved for run in by_seed.values() if run.solved]
        if not values:
            continue
        mean = interval(values)
        low, high = mean.mean - mean.half, mean.mean + mean.half
        if math.isinf(mean.half):
            of_one_seed.append(arm)
            low, high = solved[0].interval
        bars[arm] = max(0.0, low), mean.mean, min(1.0, high)
        chances += [result.chance for result in solved]
        runs_of_arm[arm] = [run for run in by_seed.values() if run.solved]
    if not bars:
        return None
    over = "over seeds"
    if of_one_seed:
        over += f" (of {', '.join(of_one_seed)}, one seed: over problems)"
    return Figure(
        svg=figures.bars(bars, up=RIGHT_ANSWERS, chance=max(chances)),
        caption=f"Right final answers with 95% intervals {over}. Dotted: a guess.",
        sources=run_links(runs_of_arm),
    )


def _format_interval(
    value: Interval, is_share: bool, sign: str = "", seeds: int | None = None
) -> str:
    """Write an interval; ``seeds``: how many there are, said where it is over fewer."""
    fewer = f" (over {value.count} of {seeds} seeds)" if seeds and 1 < value.count < seeds else ""
    return f"{format_number(value.mean, is_share, sign)} {_half_width(value, is_share)}{fewer}"


def _half_width(value: Interval, is_share: bool) -> str:
    return "(one seed)" if value.count == 1 else f"± {format_number(value.half, is_share)}"
