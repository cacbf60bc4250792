"""The page about runs side by side, from what was gathered of them alone.

What is missing is said where it would stand. Every number leads to the runs it is from.

It does not know: torch, models, run folders.
"""

import math
import shlex
from collections.abc import Collection, Mapping, Sequence

from layermem.intervals import Interval, interval
from layermem.report import analysis, costs, curves, figures
from layermem.report.page import Card, Cell, Figure, Link, Page, Section, Table
from layermem.report.settings import Found, Setting, settings_of

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


def build(found: Found) -> Page:
    """Return the page."""
    runs, settings = found["runs"], settings_of(found)
    sections: list[Section] = []
    if tried := _rates(found):
        sections.append(Section(title="Learning rates", tables=tried))
    for one in settings:
        said = f": {one.name}" if len(settings) > 1 else ""
        sections += [_results(one, said), _learning(one, said), _cost(one, said, found["costs"])]
    if found["costs"] is not None:
        command = found["costs"].get("command", "")
        sections.append(costs.given("Costs that were given", found["costs"], command))
    sections += _inside(found, settings) or [_no_inside(settings)]
    sections += [_runs(runs), Section(title="This page", commands=[found["command"]])]
    arms = dict.fromkeys(arm for one in settings for arm in one.arms)
    diverged = sum(bool(run["diverged"]) for run in runs.values())
    ended = sum(run["ended"] and not run["diverged"] for run in runs.values())
    lost = f", {diverged} diverged" if diverged else ""
    return Page(
        title=" against ".join(arms) if len(arms) < 4 else f"{len(arms)} arms side by side",
        lead=f"{'; '.join(one.name for one in settings)}. {len(runs)} runs, {ended} of them "
        f"ended{lost}.",
        sections=sections,
    )


def tables(found: Found) -> list[Table]:
    """Return the tables of results."""
    return [*_rates(found), *(table for one in settings_of(found) for table in _measured(one))]


def _rates(found: Found) -> list[Table]:
    """Return the learning rates tried, if any were, and what each arm took."""
    tried = found.get("rates", [])
    if not tried:
        return []
    header = [f"{rate:g}" for rate in tried[0]["rates"]]
    return [
        Table(
            header=["validation loss at rate", *header, "taken"],
            rows=[
                [each["arm"], *map(_loss, each["losses"]), f"{each['taken']:g}"] for each in tried
            ],
            caption="Each arm's rate was chosen on a seed that is in no other table. A run that "
            f"diverged says where in its diverged.json, in the folder rates.{_at_an_end(tried)}",
        )
    ]


def _at_an_end(tried: Sequence[Found]) -> str:
    """Say which arms took the lowest or the highest rate: a better one may lie beyond it."""
    found = [
        f"{each['arm']} took the {which}"
        for each in tried
        for which, end in (("lowest", min(each["rates"])), ("highest", max(each["rates"])))
        if each["taken"] == end
    ]
    return f" A better rate may lie beyond those tried: {', '.join(found)}." if found else ""


def _loss(value: float | None) -> str:
    return "diverged" if value is None else _number(value, False)


def _results(one: Setting, said: str) -> Section:
    drawn = _solved(one)
    return Section(
        title=f"What came out{said}",
        cards=_cards(one),
        paragraphs=[INTERVALS, *_missing(one)],
        tables=[*_measured(one), *_levels(one)],
        figures=[drawn] if drawn else [],
    )


def _missing(one: Setting) -> list[str]:
    """Say what is in no table, and why."""
    out = [run for runs in one.left_out().values() for run in runs]
    begun = [run for run in out if not run["ended"]]
    paragraphs = []
    if begun:
        at = (f"{r['name']} at step {r['steps']:,} of {r['max_steps']:,}" for r in begun)
        paragraphs.append(f"Not ended, and left out of the tables: {', '.join(at)}.")
    if blank := [run["name"] for run in out if run["ended"]]:
        paragraphs.append(f"Ended with no validation recorded, and left out: {', '.join(blank)}.")
    for measure in one.measures if any(one.ended.values()) else ():
        without = [
            run["name"]
            for by in one.ended.values()
            for run in by.values()
            if measure not in run["measures"]
        ]
        if without:
            paragraphs.append(
                f"Ended with no {measure} recorded, and left out: {', '.join(without)}."
            )
    if lost := [run for by in one.diverged.values() for run in by.values()]:
        at = (f"{r['name']} at step {r['diverged']['step']:,}" for r in lost)
        paragraphs.append(f"Diverged, and in no mean: {', '.join(at)}.")
    if not one.measures:
        paragraphs.append("No run has ended, so there is nothing to compare yet.")
    return paragraphs


def _cards(one: Setting) -> list[Card]:
    measure = next((name for name in _HEADLINES if name in one.measures), None)
    if measure is None:
        return []
    share, cards = one.measures[measure], []
    first = next(iter(one.arms))
    for arm in one.arms:
        values, lost = one.values(arm, measure), one.diverging(arm, measure)
        if not values and not lost:
            continue
        value, note = "diverged", f"{measure}: {lost}"
        if values:
            own = interval(list(values.values()))
            value, note = _number(own.mean, share), f"{measure} {_how_sure(own, share)}"
            note += f"; {lost}: mean of the others" if lost else ""
        if gap := one.gap(arm, measure):
            note += f"; against {first} {_said(gap, share, '+', one.over(arm, measure))}"
        runs = [*one.ended[arm].values(), *one.diverged[arm].values()]
        cards.append(Card(name=arm, value=value, note=f"{note}.", sources=_links({arm: runs})))
    return cards


def _measured(one: Setting) -> list[Table]:
    """Return a table of each measure: mean, every seed as a link, difference to the first arm."""
    found = []
    first = next(iter(one.arms))
    for measure, share in one.measures.items():
        rows = [_row(one, arm, measure, share) for arm in one.arms]
        header = [measure, "mean", "each seed", f"against {first}"]
        found.append(Table(header=header, rows=rows))
    return found


def _row(one: Setting, arm: str, measure: str, share: bool) -> list[Cell]:
    values, lost = one.values(arm, measure), one.diverging(arm, measure)
    if not values and not lost:
        return [arm, "not recorded" if one.ended[arm] else "no run has ended", "", ""]
    texts = {seed: _number(value, share) for seed, value in values.items()}
    texts |= dict.fromkeys(one.diverged[arm], "diverged")
    each = [Link(texts[seed], _mark(one.arms[arm][seed])) for seed in sorted(texts)]
    if not values:
        return [arm, lost, each, ""]
    mean = _said(interval(list(values.values())), share)
    gap = one.gap(arm, measure)
    against = _said(gap, share, "+", one.over(arm, measure)) if gap else ""
    return [arm, f"{mean} ({lost}: mean of the others)" if lost else mean, each, against]


def _levels(one: Setting) -> list[Table]:
    """Return right answers by level (operands, steps), where there is more than one."""
    found: dict[str, dict[tuple[str, str], list[Found]]] = {}
    for arm, by in one.ended.items():
        for run in by.values():
            for name, shares in (run["result"] or {}).get("by", {}).items():
                for level in shares if len(shares) > 1 else ():
                    found.setdefault(name, {}).setdefault((arm, level), []).append(run)

    def row(name: str, arm: str, level: str, runs: list[Found]) -> list[Cell]:
        shares = [run["result"]["by"][name][level]["accuracy"] for run in runs]
        each = [Link(_number(v, True), _mark(run)) for v, run in zip(shares, runs, strict=True)]
        return [arm, level, _said(interval(shares), True), each]

    return [
        Table(
            header=["", name, "right answers", "each seed"],
            rows=[row(name, arm, level, runs) for (arm, level), runs in by.items()],
        )
        for name, by in found.items()
    ]


def _solved(one: Setting) -> Figure | None:
    """Draw right answers with intervals and what a guess is worth; nothing for text."""
    measure = "right answers"
    shares, chances, used, alone = {}, [], {}, []
    for arm, by in one.ended.items():
        values = list(one.values(arm, measure).values())
        runs = [run for run in by.values() if measure in run["measures"]]
        if not values:
            continue
        own = interval(values)
        low, high = own.mean - own.half, own.mean + own.half
        if math.isinf(own.half):
            alone.append(arm)
            low, high = runs[0]["result"]["interval"]
        shares[arm] = max(0.0, low), own.mean, min(1.0, high)
        chances += [run["result"]["chance"] for run in runs]
        used[arm] = runs
    if not shares:
        return None
    over = "over seeds"
    if alone:
        over += f" (of {', '.join(alone)}, one seed: over problems)"
    return Figure(
        svg=figures.bars(shares, up=measure, chance=max(chances)),
        caption=f"Right final answers with 95% intervals {over}. Dotted: a guess.",
        sources=_links(used),
    )


def _learning(one: Setting, said: str) -> Section:
    """Draw what is learnt per token and per FLOP, by the runs that ended, else by all there are."""
    used = {arm: list((by or one.arms[arm]).values()) for arm, by in one.ended.items()}
    note = _unfinished(one)
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
                    svg=figures.curves(
                        series, across=where, up=label, scale=scale, bands=bands, styles=one.styles
                    ),
                    caption=f"{label} by {where}: mean over seeds, in a band from the lowest to "
                    f"the highest.{note}",
                    sources=_links({arm: used[arm] for arm in series}),
                )
            )
    counted = "FLOPs are counted in closed form: three forwards a step, attention to all keys."
    return Section(title=f"How they learn{said}", paragraphs=[*missing, counted], figures=drawn)


def _unfinished(one: Setting) -> str:
    """Say of which arms the curves are not those of all seeds to the last step."""
    going = [arm for arm, by in one.ended.items() if not by and not one.diverged[arm]]
    partly = [arm for arm, by in one.diverged.items() if by and one.ended[arm]]
    wholly = [arm for arm, by in one.diverged.items() if by and not one.ended[arm]]
    said = (
        ("Not ended yet, as far as all seeds go", going),
        ("Without the seeds that diverged", partly),
        ("Diverged, as far as all seeds go", wholly),
    )
    return "".join(f" {what}: {', '.join(arms)}." for what, arms in said if arms)


def _cost(one: Setting, said: str, measured: Found | None) -> Section:
    found = one.costs
    how = found["measure"] or "layermem costs PRESET --measure, for a preset of these sizes"
    how = "" if measured else f"Time and memory of a step were not measured. To do it: {how}"
    along = [found["layers"], found["width"]]
    return costs.section(f"What it costs{said}", found["points"], along, how)


def _inside(found: Found, settings: Sequence[Setting]) -> list[Section]:
    """Return what analyses say, each of its models in the colour of its run."""
    styles = {
        run["run_id"]: one.styles[arm]
        for one in settings
        for arm, by in one.arms.items()
        for run in by.values()
    }
    marks = {run["run_id"]: _mark(run) for run in found["runs"].values()}
    sections = []
    words = [", ".join(each.options.words or ()) for each in found["analyses"]]
    for each, said in zip(found["analyses"], words, strict=True):
        if words.count(said) > 1:
            said = f"{said}; {each.folder}"
        title = f" ({said})" if len(words) > 1 else ""
        sections += analysis.sections(each, marks, styles, title)
    return sections


def _no_inside(settings: Sequence[Setting]) -> Section:
    """Say what would show what goes on inside, with the runs at hand."""
    said = (
        "Entropy, separability, layouts and routers by layer stand here where an analysis is given "
        "as --analysis. None was."
    )
    for one in settings:
        firsts = [next(iter(by.values()))["folder"] for by in one.ended.values() if by]
        if firsts:
            # The last arm beside the first: the plain decoder, where there is one.
            words = ["layermem", "analyze", firsts[-1]]
            words += ["--against", firsts[0]] if len(firsts) > 1 else []
            return Section(
                title="What goes on inside",
                paragraphs=[f"{said} This makes one:"],
                commands=[shlex.join([*words, "--out", "analysis"])],
            )
    return Section(
        title="What goes on inside",
        paragraphs=[f"{said} Once a run has ended, layermem analyze RUN --out analysis makes one."],
    )


def _runs(runs: Found) -> Section:
    rows, marks, commands, makers = [], [], [], set()
    for name, run in runs.items():
        about = run["about"]
        speed = run["tokens_per_second"]
        made = [f"{key} {about[key]}" for key in _MADE_WITH if about.get(key)]
        makers.add(tuple(made))
        rows.append(
            [
                name,
                run["run_id"],
                str(run["seed"]),
                _state(run),
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
    paragraphs = ["layermem train --config RUN/config.yaml --out NEW repeats a run."]
    if len(makers) > 1:
        paragraphs.insert(0, "Not all of them were made with the same versions and machine.")
    return Section(
        title="The runs",
        paragraphs=paragraphs,
        tables=[table],
        commands=["\n".join(commands)],
    )


def _state(run: Found) -> str:
    if run["diverged"]:
        return f"diverged at step {run['diverged']['step']:,}"
    return "ended" if run["ended"] else f"at step {run['steps']:,}"


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


def _said(asked: Interval, share: bool, sign: str = "", of: int | None = None) -> str:
    """Write an interval; ``of``: how many seeds there are, said where it is over fewer."""
    fewer = f" (over {asked.count} of {of} seeds)" if of and 1 < asked.count < of else ""
    return f"{_number(asked.mean, share, sign)} {_how_sure(asked, share)}{fewer}"


def _how_sure(asked: Interval, share: bool) -> str:
    return "(one seed)" if asked.count == 1 else f"± {_number(asked.half, share)}"


def _number(value: float, share: bool, sign: str = "") -> str:
    return format(value, f"{sign}.1%" if share else f"{sign}.4f")
