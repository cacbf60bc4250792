"""The page about runs side by side, from a ``Comparison`` alone.

What is missing is said where it would stand. Every number leads to the runs it is from.

It does not know: torch, models, run folders.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from layermem.report import (
    analysis,
    cost_tables,
    figures,
    learning_rates,
    minimal_pairs,
    perplexity,
)
from layermem.report import eval as tasks
from layermem.report.curves import curves_of_arms
from layermem.report.outcomes import (
    metric_tables,
    outcome_section,
    run_links,
    run_mark,
)
from layermem.report.page import Figure, Page, Section, Table
from layermem.report.settings import Setting, settings_of
from layermem.results.comparison import Comparison
from layermem.results.run_record import RunRecord

# Figures of learning: the field of a validation that goes up, its label, how numbers are written.
_UP: tuple[tuple[str, str, figures.Scale], ...] = (
    ("val_loss", "validation loss", "number"),
    ("val_accuracy", "right answers", "share"),
)
_ACROSS = (("tokens", "tokens"), ("flops", "training FLOPs"))
_R = TypeVar("_R")
# What is shown of the circumstances of a run.
_MADE_WITH = ("layermem", "commit", "torch", "machine")


def build(comparison: Comparison) -> Page:
    """Return the page."""
    runs, settings = comparison.runs, settings_of(comparison)
    sections: list[Section] = []
    if tried := comparison.learning_rates:
        sections.append(Section(title="Learning rates", tables=[learning_rates.table(tried)]))
    for setting in settings:
        suffix = f": {setting.name}" if len(settings) > 1 else ""
        sections += [
            outcome_section(setting, suffix),
            _learning_section(setting, suffix),
            _cost_section(setting, suffix, measured=comparison.costs is not None),
        ]
    if comparison.costs is not None:
        sections.append(cost_tables.given_section("Costs that were given", comparison.costs))
    sections += _evaluation_sections(comparison)
    sections += _analysis_sections(comparison, settings) or [_no_analysis(settings)]
    sections += [_runs_section(runs), Section(title="This page", commands=[comparison.command])]
    arms = dict.fromkeys(arm for setting in settings for arm in setting.arms)
    diverged = sum(run.diverged is not None for run in runs.values())
    ended = sum(run.ended and not run.diverged for run in runs.values())
    note = f", {diverged} diverged" if diverged else ""
    return Page(
        title=" against ".join(arms) if len(arms) < 4 else f"{len(arms)} arms side by side",
        lead=f"{'; '.join(setting.name for setting in settings)}. {len(runs)} runs, {ended} of "
        f"them ended{note}.",
        sections=sections,
    )


def tables(comparison: Comparison) -> list[Table]:
    """Return the tables of results."""
    settings = settings_of(comparison)
    return [
        *([learning_rates.table(tried)] if (tried := comparison.learning_rates) else []),
        *(table for setting in settings for table in metric_tables(setting)),
    ]


def _learning_section(setting: Setting, title_suffix: str) -> Section:
    """Draw loss and right answers per token and per FLOP, of runs that ended, else of all."""
    runs_of_arm = {
        arm: list((runs or setting.arms[arm]).values()) for arm, runs in setting.ended.items()
    }
    validations = {arm: [run.validations for run in runs] for arm, runs in runs_of_arm.items()}
    note = _unfinished(setting)
    drawn, missing = [], []
    for up, label, scale in _UP:
        for across, x_label in _ACROSS:
            series, bands = curves_of_arms(validations, across, up)
            without = ", ".join(arm for arm in runs_of_arm if arm not in series)
            if without and (series or up == "val_loss"):
                missing.append(f"{label} by {x_label}: nothing is recorded of {without}.")
            if not series:
                continue
            svg = figures.curves(
                series, across=x_label, up=label, scale=scale, bands=bands, styles=setting.styles
            )
            drawn.append(
                Figure(
                    svg=svg,
                    caption=f"{label} by {x_label}: mean over seeds, in a band from the lowest to "
                    f"the highest.{note}",
                    sources=run_links({arm: runs_of_arm[arm] for arm in series}),
                )
            )
    counted = "FLOPs are counted in closed form: three forwards a step, attention to all keys."
    return Section(
        title=f"How they learn{title_suffix}", paragraphs=[*missing, counted], figures=drawn
    )


def _unfinished(setting: Setting) -> str:
    """Say of which arms the curves are not those of all seeds to the last step."""
    ended, diverged = setting.ended, setting.diverged
    running = [arm for arm, runs in ended.items() if not runs and not diverged[arm]]
    partly = [arm for arm, runs in diverged.items() if runs and ended[arm]]
    wholly = [arm for arm, runs in diverged.items() if runs and not ended[arm]]
    notes = (
        ("Not ended yet, as far as all seeds go", running),
        ("Without the seeds that diverged", partly),
        ("Diverged, as far as all seeds go", wholly),
    )
    return "".join(f" {note}: {', '.join(arms)}." for note, arms in notes if arms)


def _cost_section(setting: Setting, title_suffix: str, *, measured: bool) -> Section:
    costs = setting.costs
    if not costs.points:
        return Section(
            title=f"What it costs{title_suffix}",
            paragraphs=[
                "Costs are not counted in closed form: the arms are models of transformers. "
                "Training FLOPs take three forwards for a step, whichever weights are trained."
            ],
        )
    command = costs.measure_command or (
        "layermem costs PRESET --measure, for a preset of these sizes"
    )
    how = "" if measured else f"Time and memory of a step were not measured. To do it: {command}"
    return cost_tables.counted_section(
        f"What it costs{title_suffix}", costs.points, [costs.layers, costs.width], how
    )


def _evaluation_sections(comparison: Comparison) -> list[Section]:
    """Return what perplexities, judged pairs and answers to tasks show."""
    return [
        *_sections(comparison.perplexities, perplexity.section),
        *_sections(comparison.minimal_pairs, minimal_pairs.section),
        *_sections(comparison.evaluations, tasks.section),
    ]


def _sections(results: Sequence[_R], section: Callable[[_R, str], Section]) -> list[Section]:
    """Return the sections of results of one kind, numbered where there are several."""
    several = len(results) > 1
    return [section(each, f" ({i})" if several else "") for i, each in enumerate(results, 1)]


def _analysis_sections(comparison: Comparison, settings: Sequence[Setting]) -> list[Section]:
    """Return what analyses show, each of their models in the colour of its run."""
    styles = {
        run.run_id: setting.styles[arm]
        for setting in settings
        for arm, runs in setting.arms.items()
        for run in runs.values()
    }
    marks = {run.run_id: run_mark(run) for run in comparison.runs.values()}
    words = [", ".join(each.options.words or ()) for each in comparison.analyses]
    sections = []
    for shown, title in zip(comparison.analyses, words, strict=True):
        if words.count(title) > 1:
            title = f"{title}; {shown.folder}"
        suffix = f" ({title})" if len(words) > 1 else ""
        sections += analysis.sections(shown, marks, styles, suffix)
    return sections


def _no_analysis(settings: Sequence[Setting]) -> Section:
    """Say which command would show what goes on inside, with the runs at hand."""
    note = (
        "Entropy, separability, layouts and routers by layer stand here where an analysis is given "
        "as --analysis. None was."
    )
    for setting in settings:
        firsts = [next(iter(runs.values())).folder for runs in setting.ended.values() if runs]
        if firsts:
            # The last arm beside the first: the plain decoder, where there is one.
            words = ["layermem", "analyze", firsts[-1]]
            words += ["--against", firsts[0]] if len(firsts) > 1 else []
            return Section(
                title="What goes on inside",
                paragraphs=[f"{note} This makes one:"],
                commands=[shlex.join([*words, "--out", "analysis"])],
            )
    return Section(
        title="What goes on inside",
        paragraphs=[f"{note} Once a run has ended, layermem analyze RUN --out analysis makes one."],
    )


def _runs_section(runs: Mapping[str, RunRecord]) -> Section:
    made_with = {
        name: ", ".join(f"{key} {run.about[key]}" for key in _MADE_WITH if run.about.get(key))
        for name, run in runs.items()
    }
    table = Table(
        header=["run", "id", "seed", "state", "steps", "tokens/s", "made with"],
        rows=[
            [
                name,
                run.run_id,
                str(run.seed),
                _state(run),
                f"{run.max_steps:,}",
                f"{run.tokens_per_second:,.0f}" if run.tokens_per_second else "not recorded",
                made_with[name] or "not recorded",
            ]
            for name, run in runs.items()
        ],
        marks=[run_mark(run) for run in runs.values()],
        caption="An id stands for every option of a run. Tokens a second: the median of the wall "
        "time its machine took, whatever else that machine did; no comparison.",
    )
    paragraphs = ["layermem train --config RUN/config.yaml --out NEW repeats a run."]
    if len(set(made_with.values())) > 1:
        paragraphs.insert(0, "Not all of them were made with the same versions and machine.")
    commands = (f"{name}  {run.about.get('command', 'not recorded')}" for name, run in runs.items())
    return Section(
        title="The runs",
        paragraphs=paragraphs,
        tables=[table],
        commands=["\n".join(commands)],
    )


def _state(run: RunRecord) -> str:
    if run.diverged:
        return f"diverged at step {run.diverged.step:,}"
    return "ended" if run.ended else f"at step {run.steps:,}"
