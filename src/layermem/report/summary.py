"""The page about runs side by side, from what was gathered of them alone.

What is missing is said where it would stand. Every number leads to the runs it is from.

It does not know: torch, models, run folders.
"""

import math
import shlex
from collections.abc import Collection, Mapping
from typing import Any

from layermem.intervals import Interval, interval, paired
from layermem.report import analysis, costs, curves, figures
from layermem.report.page import Card, Cell, Figure, Link, Page, Section, Table

# What a card shows, the first that is there.
_HEADLINES = ("right answers", "validation loss")
# Figures of learning: what goes up, in what, and how it reads.
_UP: tuple[tuple[str, str, figures.Scale], ...] = (
    ("val_loss", "validation loss", "number"),
    ("val_accuracy", "right answers", "share"),
)
_ACROSS = (("tokens", "tokens"), ("flops", "training FLOPs"))
INTERVALS = "95% intervals over seeds by Student's t; differences are taken seed by seed."
# What of a run's circumstances is shown.
_MADE_WITH = ("layermem", "commit", "torch", "machine")
Found = Mapping[str, Any]


def build(found: Found) -> Page:
    """Return the page."""
    settings, runs = found["settings"], found["runs"]
    several = len(settings) > 1
    sections = []
    for setting in settings:
        one = _Setting(setting, runs)
        said = f": {one.name}" if several else ""
        sections += [_results(one, said), _learning(one, said), _cost(one, said, found["costs"])]
    for one in found["analyses"]:
        words = ", ".join(one["asked"]["words"])
        said = f" ({words})" if len(found["analyses"]) > 1 else ""
        sections += analysis.sections(one, _marks(runs), said)
    if not found["analyses"]:
        sections.append(_no_inside(found))
    sections += [_runs(runs), Section(title="This page", commands=[found["command"]])]
    arms = dict.fromkeys(arm for setting in settings for arm in setting["arms"])
    names = "; ".join(_Setting(setting, runs).name for setting in settings)
    ended = sum(run["ended"] for run in runs.values())
    return Page(
        title=" against ".join(arms) if len(arms) < 4 else f"{len(arms)} arms side by side",
        lead=f"{names}. {len(runs)} runs, {ended} of them ended.",
        sections=sections,
    )


def tables(found: Found) -> list[Table]:
    """Return the tables of results."""
    return [
        table
        for setting in found["settings"]
        for table in _measured(_Setting(setting, found["runs"]))
    ]


class _Setting:
    """One setting with its runs: what has ended counts, the rest is said."""

    def __init__(self, setting: Found, runs: Found) -> None:
        learnt = setting["learnt"]
        options = " ".join(learnt["options"]) if setting["task"] else ""
        what = f"{setting['task']} {options}" if setting["task"] else learnt["source"]
        self.name = f"{setting['preset']} ({what.strip()})"
        self.costs = setting["costs"]
        self.arms: dict[str, dict[int, Found]] = {
            arm: {runs[name]["seed"]: {"name": name, **runs[name]} for name in names}
            for arm, names in setting["arms"].items()
        }
        self.ended = {
            arm: {seed: run for seed, run in by.items() if run["ended"] and run["measures"]}
            for arm, by in self.arms.items()
        }

    @property
    def measures(self) -> dict[str, bool]:
        """Name of each measure that ended runs have, to whether it is a share."""
        return {
            name: measure["is_share"]
            for by in self.ended.values()
            for run in by.values()
            for name, measure in run["measures"].items()
        }

    def values(self, arm: str, measure: str) -> dict[int, float]:
        """Return seed to value."""
        return {
            seed: run["measures"][measure]["value"]
            for seed, run in self.ended[arm].items()
            if measure in run["measures"]
        }

    def gap(self, arm: str, measure: str) -> Interval | None:
        """Return the difference to the first arm over the seeds both have; None: there is none."""
        first = next(iter(self.arms))
        ours, theirs = self.values(arm, measure), self.values(first, measure)
        common = [seed for seed in ours if seed in theirs]
        if arm == first or not common:
            return None
        return paired([ours[seed] for seed in common], [theirs[seed] for seed in common])

    def unended(self) -> list[Found]:
        """Return the runs that do not count yet."""
        return [
            run
            for arm, by in self.arms.items()
            for seed, run in by.items()
            if seed not in self.ended[arm]
        ]


def _results(one: _Setting, said: str) -> Section:
    waiting = [
        f"{run['name']} at step {run['steps']:,} of {run['max_steps']:,}" for run in one.unended()
    ]
    paragraphs = [INTERVALS]
    if waiting:
        paragraphs.append(f"Not ended, and left out of the tables: {', '.join(waiting)}.")
    if not one.measures:
        paragraphs.append("No run has ended, so there is nothing to compare yet.")
    drawn = _solved(one)
    return Section(
        title=f"What came out{said}",
        cards=_cards(one),
        paragraphs=paragraphs,
        tables=[*_measured(one), *_levels(one)],
        figures=[drawn] if drawn else [],
    )


def _cards(one: _Setting) -> list[Card]:
    measure = next((name for name in _HEADLINES if name in one.measures), None)
    if measure is None:
        return []
    share, cards = one.measures[measure], []
    first = next(iter(one.arms))
    for arm in one.arms:
        values = one.values(arm, measure)
        if not values:
            continue
        own = interval(list(values.values()))
        note = f"{measure} {_how_sure(own, share)}"
        if gap := one.gap(arm, measure):
            note += f"; against {first} {_said(gap, share, '+')}"
        value = _number(own.mean, share)
        cards.append(
            Card(
                name=arm,
                value=value,
                note=f"{note}.",
                sources=_links({arm: one.ended[arm].values()}),
            )
        )
    return cards


def _measured(one: _Setting) -> list[Table]:
    """Return a table of each measure: mean, every seed as a link, difference to the first arm."""
    found = []
    first = next(iter(one.arms))
    for measure, share in one.measures.items():
        rows: list[list[Cell]] = []
        for arm in one.arms:
            values = one.values(arm, measure)
            if not values:
                rows.append([arm, "no run has ended", "", ""])
                continue
            each = [
                Link(_number(value, share), _mark(one.ended[arm][seed]))
                for seed, value in values.items()
            ]
            mean, gap = interval(list(values.values())), one.gap(arm, measure)
            rows.append([arm, _said(mean, share), each, _said(gap, share, "+") if gap else ""])
        header = [measure, "mean", "each seed", f"against {first}"]
        found.append(Table(header=header, rows=rows))
    return found


def _levels(one: _Setting) -> list[Table]:
    """Return right answers by level (operands, steps), where there is more than one."""
    found: dict[str, dict[tuple[str, str], list[float]]] = {}
    for arm, by in one.ended.items():
        for run in by.values():
            for name, shares in (run["result"] or {}).get("by", {}).items():
                for level, got in shares.items() if len(shares) > 1 else ():
                    where = found.setdefault(name, {}).setdefault((arm, level), [])
                    where.append(got["accuracy"])
    return [
        Table(
            header=["", name, "right answers"],
            rows=[[arm, level, _said(interval(v), True)] for (arm, level), v in by.items()],
            caption="95% intervals over seeds.",
        )
        for name, by in found.items()
    ]


def _solved(one: _Setting) -> Figure | None:
    """Draw right answers with intervals and what a guess is worth; nothing for text."""
    measure = "right answers"
    if measure not in one.measures:
        return None
    shares, chances = {}, []
    for arm, by in one.ended.items():
        values = list(one.values(arm, measure).values())
        if not values:
            continue
        own = interval(values)
        low, high = own.mean - own.half, own.mean + own.half
        if math.isinf(own.half):
            low, high = next(iter(by.values()))["result"]["interval"]
        shares[arm] = max(0.0, low), own.mean, min(1.0, high)
        chances += [run["result"]["chance"] for run in by.values()]
    how = "over seeds" if all(len(by) > 1 for by in one.ended.values() if by) else "over problems"
    return Figure(
        svg=figures.bars(shares, up=measure, chance=max(chances)),
        caption=f"Right final answers with 95% intervals {how}; an interval over problems stands "
        "where there is one seed alone. Dotted: always giving the commonest answer.",
        sources=_links({arm: one.ended[arm].values() for arm in shares}),
    )


def _learning(one: _Setting, said: str) -> Section:
    """Draw what is learnt per token and per FLOP, by the runs that ended, else by all there are."""
    used = {arm: list((by or one.arms[arm]).values()) for arm, by in one.ended.items()}
    rows = {arm: [run["validations"] for run in runs] for arm, runs in used.items()}
    drawn, missing = [], []
    for up, label, scale in _UP:
        for across, where in _ACROSS:
            series, bands = curves.of_arms(rows, across, up)
            lacking = ", ".join(arm for arm in rows if arm not in series)
            if lacking and (series or up == "val_loss"):
                missing.append(f"{label} by {where}: nothing is recorded of {lacking}.")
            if not series:
                continue
            drawn.append(
                Figure(
                    svg=figures.curves(series, across=where, up=label, scale=scale, bands=bands),
                    caption=f"{label} by {where}: mean over seeds, in a band from the lowest to "
                    "the highest.",
                    sources=_links({arm: used[arm] for arm in series}),
                )
            )
    counted = "FLOPs are counted in closed form: three forwards a step, attention to all keys."
    return Section(title=f"How they learn{said}", paragraphs=[*missing, counted], figures=drawn)


def _cost(one: _Setting, said: str, measured: Found | None) -> Section:
    found = one.costs
    command = f"layermem costs {found['points'][0]['preset']} --measure --out costs.json"
    along = [found["layers"], found["width"]]
    return costs.section(f"What it costs{said}", found["points"], along, measured, command)


def _no_inside(found: Found) -> Section:
    """Say what would show what goes on inside, with the runs at hand."""
    by_variant = {run["variant"]: run["folder"] for run in found["runs"].values() if run["ended"]}
    plain = by_variant.pop("plain", None)
    words = ["layermem", "analyze", *list(by_variant.values())[:1]]
    if plain is not None:
        words += ["--against", plain] if by_variant else [plain]
    return Section(
        title="What goes on inside",
        paragraphs=[
            "Entropy, separability, layouts and routers by layer stand here where an analysis is "
            "given as --analysis. None was. This makes one:"
        ],
        commands=[shlex.join([*words, "--out", "analysis"])],
    )


def _runs(runs: Found) -> Section:
    rows, marks, commands = [], [], []
    for name, run in runs.items():
        about = run["about"]
        speed = run["tokens_per_second"]
        made = [f"{key} {about[key]}" for key in _MADE_WITH if about.get(key)]
        rows.append(
            [
                name,
                run["run_id"],
                str(run["seed"]),
                "ended" if run["ended"] else f"at step {run['steps']:,}",
                f"{run['max_steps']:,}",
                f"{speed:,.0f}" if speed else "not recorded",
                ", ".join(made) or "not recorded",
            ]
        )
        marks.append(_mark(run))
        commands.append(f"{name}  {about.get('command', 'not recorded')}")
    table = Table(
        header=["run", "id", "seed", "state", "steps", "tokens/s", "made with"],
        rows=rows,
        marks=marks,
        caption="An id stands for every option of a run. Tokens a second: the median of the wall "
        "time its machine took, whatever else that machine did; no comparison.",
    )
    return Section(
        title="The runs",
        paragraphs=["layermem train --config RUN/config.yaml --out NEW repeats a run."],
        tables=[table],
        commands=["\n".join(commands)],
    )


def _marks(runs: Found) -> dict[str, str]:
    """Return run id to mark, of the runs on this page."""
    return {run["run_id"]: _mark(run) for run in runs.values()}


def _mark(run: Found) -> str:
    return f"run-{run['run_id']}"


def _links(arms: Mapping[str, Collection[Found]]) -> list[Link]:
    """Return a link to each run: its seed, the first of an arm after the arm's name."""
    found = []
    for arm, runs in arms.items():
        texts = (f"{run['seed']}" for run in runs)
        links = zip(texts, map(_mark, runs), strict=True)
        found += [
            Link(text if i else f"{arm}: seed {text}", m) for i, (text, m) in enumerate(links)
        ]
    return found


def _said(asked: Interval, share: bool, sign: str = "") -> str:
    return f"{_number(asked.mean, share, sign)} {_how_sure(asked, share)}"


def _how_sure(asked: Interval, share: bool) -> str:
    return "(one seed)" if asked.count == 1 else f"± {_number(asked.half, share)}"


def _number(value: float, share: bool, sign: str = "") -> str:
    return format(value, f"{sign}.1%" if share else f"{sign}.4f")
