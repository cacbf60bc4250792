"""The page about an analysis, its table on the screen, and its figure as a file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from layermem_bench.report import figures
from layermem_bench.report.depth import (
    LAYOUT,
    draw_words,
    mixtures_section,
    panels,
    routing_section,
)
from layermem_bench.report.page import Cell, Figure, Link, Page, Section, Table
from layermem_bench.results.analysis import FOLDS, Analysis, ByLayer, ModelAnalysis, Representation

_REPRESENTATIONS: dict[Representation, str] = {
    "routed": "values that attention reads",
    "hidden": "hidden states",
}
_MEASURES: dict[str, Callable[[ModelAnalysis, Representation], ByLayer]] = {
    "entropy": lambda model, kind: model.entropy[kind],
    "paper probe": lambda model, kind: model.separability["paper"][kind],
    "converged probe": lambda model, kind: model.separability["converged"][kind],
}
_ENTROPY = (
    "Matrix entropy in nats of each sequence's tokens: 0 if all are the same vector, the "
    "logarithm of the number of tokens if all are orthogonal. Where it is low, representations "
    "have collapsed."
)


def build(analysis: Analysis) -> Page:
    """Return the page about an analysis alone."""
    words, told = ", ".join(analysis.options.words or ()), []
    for name, model in analysis.models.items():
        read = ""
        if model.routing is not None:
            mean = np.mean([r.off_layer_share for r in model.routing.readings if r.layer])
            read = f", and {mean:.0%} of what its layers read comes from earlier ones"
        told.append(
            f"The values of {name} have an entropy of {np.mean(model.entropy['routed'].mean):.2f} "
            f"nats, mean over layers; a converged probe tells {words} apart in those of the last "
            f"layer with an accuracy of {model.separability['converged']['routed'].mean[-1]:.0%}"
            f"{read}."
        )
    title = f"Inside {' against '.join(analysis.models)}"
    return Page(title=title, lead=" ".join(told), sections=sections(analysis, {}, {}))


def sections(
    analysis: Analysis, marks: Mapping[str, str], styles: Mapping[str, int], title_suffix: str = ""
) -> list[Section]:
    """Return the sections of a page that show an analysis.

    ``marks``: run id to the table row on the same page that describes the run. The models are shown
    in the order of these runs. ``styles``: run id to the index of its line style on the page; used
    if every model has one. ``title_suffix`` is added to every title.
    """
    # Models of no run that is on the page come first.
    places = {run_id: place for place, run_id in enumerate(marks)}
    run_ids = {name: model.about.run_id or "" for name, model in analysis.models.items()}
    names = sorted(run_ids, key=lambda name: places.get(run_ids[name], -1))
    analysis = replace(analysis, models={name: analysis.models[name] for name in names})
    model_styles = {name: styles[run] for name, run in run_ids.items() if run in styles}
    line_styles = model_styles if len(model_styles) == len(run_ids) else None
    models, options = analysis.models.items(), analysis.options
    words = options.words or ()
    probes = (
        f"Accuracy of a linear probe for {', '.join(words)}, by layer, {options.each} occurrences "
        f"each, {FOLDS} folds. The paper's probe is one epoch of Adam: with few occurrences it "
        f"says more about itself than about the values. {_controls(analysis)}"
    )
    layouts = [
        panels(
            name,
            {f"layer {layer}": points for layer, points in model.layout.layers.items()},
            draw_words(model.layout.labels, words),
            LAYOUT,
            first=-1,
        )
        for name, model in models
    ]
    parts = [
        _models_section(analysis, marks),
        _curves_section("Entropy by layer", _ENTROPY, analysis, ["entropy"], line_styles),
        _curves_section(
            "Separability of words", probes, analysis, list(_MEASURES)[1:], line_styles
        ),
        Section(title="Layout of words", switches=layouts),
        *(routing_section(name, model) for name, model in models),
        *(mixtures_section(name, model.mixtures) for name, model in models if model.mixtures),
    ]
    return [replace(part, title=f"{part.title}{title_suffix}") for part in parts]


def table(analysis: Analysis) -> Table:
    """Return entropy and both probes' accuracies of the routed values, layer by layer."""
    depth = max(model.about.layers for model in analysis.models.values())
    columns = {"layer": list(map(str, range(depth)))}
    for measure, read in _MEASURES.items():
        spec = ".2f" if measure == "entropy" else ".1%"
        for name, model in analysis.models.items():
            cells = [format(value, spec) for value in read(model, "routed").mean]
            columns[f"{measure}, {name}"] = cells + [""] * (depth - len(cells))
    return Table.of_columns(columns, "Of the values that attention reads.")


def draw(analysis: Analysis, path: Path) -> None:
    """Draw entropy, the paper's probe, the last layer's layout of each model and what its routers
    read into one file."""
    words = analysis.options.words or ()
    plots = [
        _curves(analysis, "entropy", "routed", "entropy of values (nats)"),
        _curves(analysis, "paper probe", "routed", f"accuracy for {', '.join(words)}"),
    ]
    for name, model in analysis.models.items():
        last = max(model.layout.layers)
        points = figures.scatter(model.layout.layers[last], model.layout.labels, words)
        plots.append(_titled(points, f"{name}, layer {last}"))
    for name, model in analysis.models.items():
        read = model.routing and (model.routing.parts or {"": model.routing.heatmap})
        for part, shares in (read or {}).items():
            plot = figures.triangle(np.array(shares), across="source layer", up="layer")
            plots.append(_titled(plot, f"{name}, {f'{part}s' if part else 'keys and values'}"))
    figures.save(plots, path)


def _titled(plot: figures.Plot, title: str) -> figures.Plot:
    def titled(axes: Axes) -> None:
        plot(axes)
        axes.set_title(title, fontsize=10)

    return titled


def _curves(
    analysis: Analysis,
    measure: str,
    kind: Representation,
    up: str,
    styles: Mapping[str, int] | None = None,
) -> figures.Plot:
    """Return a plot of a line for each model, in a band of one standard deviation."""
    series, bands = {}, {}
    for name, model in analysis.models.items():
        values = _MEASURES[measure](model, kind)
        series[name] = range(len(values.mean)), values.mean
        pairs = list(zip(values.mean, values.deviation, strict=True))
        bands[name] = [mean - d for mean, d in pairs], [mean + d for mean, d in pairs]
    scale: figures.Scale = "number" if measure == "entropy" else "share"
    return figures.curves(series, across="layer", up=up, scale=scale, bands=bands, styles=styles)


def _curves_section(
    title: str,
    paragraph: str,
    analysis: Analysis,
    measures: Sequence[str],
    styles: Mapping[str, int] | None,
) -> Section:
    """Return a section with a figure of each measure and representation."""
    shown = []
    for measure in measures:
        up = "entropy (nats)" if measure == "entropy" else "accuracy"
        order = f" of order {analysis.options.alpha:g}" if measure == "entropy" else ""
        for kind, name in _REPRESENTATIONS.items():
            svg = figures.drawing(_curves(analysis, measure, kind, up, styles))
            caption = f"{measure.capitalize()}{order} of {name}; bands: one standard deviation."
            shown.append(Figure(svg=svg, caption=caption))
    return Section(title=title, paragraphs=[paragraph], figures=shown)


def _models_section(analysis: Analysis, marks: Mapping[str, str]) -> Section:
    rows: list[list[Cell]] = []
    for name, model in analysis.models.items():
        about = model.about
        run_id = about.run_id or "no run"
        run = Link(run_id, marks[run_id]) if run_id in marks else run_id
        sizes = str(about.layers), str(about.width), f"{about.parameters:,}"
        rows.append([name, run, about.class_name, *sizes])
    options = analysis.options
    text = options.text or "the run's own problems, or the standard library's sources"
    models = Table(
        header=["", "run", "class", "layers", "width", "parameters"],
        rows=rows,
        caption=f"Text: {text}; {analysis.sequences} sequences of at most {options.length} tokens; "
        f"seed {options.seed}.",
    )
    commands = [analysis.command] if analysis.command else []
    return Section(title="What was analyzed", tables=[models], commands=commands)


def _controls(analysis: Analysis) -> str:
    """Return a sentence with chance and the accuracies for shuffled labels, of all models."""
    accuracies = [
        accuracy
        for model in analysis.models.values()
        for by_kind in model.separability.values()
        for accuracy in by_kind.values()
    ]
    shuffled = [share for accuracy in accuracies for share in accuracy.shuffled]
    return (
        f"Chance is {accuracies[0].chance:.1%}; with labels shuffled, accuracies are "
        f"{min(shuffled):.1%} to {max(shuffled):.1%}."
    )
