"""The page about an analysis, its table on the screen, and its figure as a file."""

import math
from collections.abc import Iterator, Mapping, Sequence
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
from layermem_bench.results.analysis import Analysis, ByLayer, ModelAnalysis, Probe, Representation

_REPRESENTATIONS: dict[Representation, str] = {
    "routed": "values that attention reads",
    "hidden": "hidden states",
}
_PROBES: dict[Probe, str] = {
    "paper": "the paper's probe: a linear layer, one epoch of Adam",
    "converged": "a converged probe: logistic regression",
}
# The paper's probe, as in analysis/separability.py: the share of the occurrences that it is fitted
# to (four folds of five), and its batch size.
_FITTED, _BATCH = 0.8, 64


def build(analysis: Analysis) -> Page:
    """Return the page about an analysis alone."""
    return Page(
        title=f"Inside {' against '.join(analysis.models)}",
        lead=sentence(analysis),
        sections=sections(analysis, {}, {}),
    )


def sentence(analysis: Analysis) -> str:
    """Say what came out, in one sentence for each model."""
    words = ", ".join(analysis.options.words or ())
    told = []
    for name, model in analysis.models.items():
        accuracy = model.separability["converged"]["routed"].mean[-1]
        read = ""
        if model.routing is not None:
            mean = np.mean([r.off_layer_share for r in model.routing.readings if r.layer])
            read = f", and {mean:.0%} of what its layers read comes from earlier ones"
        told.append(
            f"The values of {name} have an entropy of {np.mean(model.entropy['routed'].mean):.2f} "
            f"nats, mean over layers; a converged probe tells {words} apart in those of the last "
            f"layer with an accuracy of {accuracy:.0%}{read}."
        )
    return " ".join(told)


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
    models = analysis.models.items()
    parts = [
        _models_section(analysis, marks),
        _entropy_section(analysis, line_styles),
        _separability_section(analysis, line_styles),
        _layout_section(analysis),
        *(routing_section(name, model) for name, model in models),
        *(mixtures_section(name, model.mixtures) for name, model in models if model.mixtures),
    ]
    return [replace(part, title=f"{part.title}{title_suffix}") for part in parts]


def table(analysis: Analysis) -> Table:
    """Return entropy and both probes' accuracies of the routed values, layer by layer."""
    columns = {f"entropy, {n}": (v, ".2f") for n, v in _entropies(analysis, "routed").items()}
    for probe in _PROBES:
        for name, values in _accuracies(analysis, probe, "routed").items():
            columns[f"{probe} probe, {name}"] = values, ".1%"
    layers = range(max(len(values.mean) for values, _ in columns.values()))
    cells = {
        header: [format(v.mean[i], spec) if i < len(v.mean) else "" for i in layers]
        for header, (v, spec) in columns.items()
    }
    return Table.of_columns(
        {"layer": list(map(str, layers)), **cells}, "Of the values that attention reads."
    )


def draw(analysis: Analysis, path: Path) -> None:
    """Draw entropy, the paper's probe, the last layer's layout of each model and what its routers
    read into one file."""
    words = analysis.options.words or ()
    entropy = _plot_by_layer(_entropies(analysis, "routed"), up="entropy of values (nats)")
    accuracy = _plot_by_layer(
        _accuracies(analysis, "paper", "routed"),
        up=f"accuracy for {', '.join(words)}",
        scale="share",
    )
    layouts = [_plot_last_layout(name, model, words) for name, model in analysis.models.items()]
    read = [
        plot for name, model in analysis.models.items() for plot in _plots_of_routing(name, model)
    ]
    figures.save([entropy, accuracy, *layouts, *read], path)


def _plots_of_routing(name: str, model: ModelAnalysis) -> Iterator[figures.Plot]:
    """Yield a plot of what routers read, or one of keys and one of values."""
    if model.routing is None:
        return
    read = model.routing.parts or {"": model.routing.heatmap}
    for part, shares in read.items():
        plot = figures.triangle(np.array(shares), across="source layer", up="layer")
        title = f"{name}, {part}s" if part else f"{name}, keys and values"

        def draw(axes: Axes, plot: figures.Plot = plot, title: str = title) -> None:
            plot(axes)
            axes.set_title(title, fontsize=10)

        yield draw


def _plot_last_layout(name: str, model: ModelAnalysis, words: Sequence[str]) -> figures.Plot:
    last = max(model.layout.layers)

    def plot(axes: Axes) -> None:
        figures.scatter(model.layout.layers[last], model.layout.labels, words)(axes)
        axes.set_title(f"{name}, layer {last}", fontsize=10)

    return plot


def _entropies(analysis: Analysis, kind: Representation) -> dict[str, ByLayer]:
    return {name: model.entropy[kind] for name, model in analysis.models.items()}


def _accuracies(analysis: Analysis, probe: Probe, kind: Representation) -> dict[str, ByLayer]:
    return {name: model.separability[probe][kind] for name, model in analysis.models.items()}


def _plot_by_layer(
    values: Mapping[str, ByLayer],
    *,
    up: str,
    scale: figures.Scale = "number",
    styles: Mapping[str, int] | None = None,
) -> figures.Plot:
    """Return a plot of a line for each model, in a band of one standard deviation."""
    series, bands = {}, {}
    for name, v in values.items():
        series[name] = range(len(v.mean)), v.mean
        pairs = list(zip(v.mean, v.deviation, strict=True))
        bands[name] = [mean - d for mean, d in pairs], [mean + d for mean, d in pairs]
    return figures.curves(series, across="layer", up=up, scale=scale, bands=bands, styles=styles)


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


def _entropy_section(analysis: Analysis, styles: Mapping[str, int] | None) -> Section:
    return Section(
        title="Entropy by layer",
        paragraphs=[
            "Matrix entropy in nats of each sequence's tokens: 0 if all are the same vector, the "
            "logarithm of the number of tokens if all are orthogonal. Where it is low, "
            "representations have collapsed."
        ],
        figures=[
            Figure(
                svg=figures.drawing(
                    _plot_by_layer(_entropies(analysis, kind), up="entropy (nats)", styles=styles)
                ),
                caption=f"Of {name}; order {analysis.options.alpha:g}, features standardised; "
                f"bands: standard deviation over {analysis.sequences} sequences.",
            )
            for kind, name in _REPRESENTATIONS.items()
        ],
    )


def _separability_section(analysis: Analysis, styles: Mapping[str, int] | None) -> Section:
    words, each = analysis.options.words or (), analysis.options.each
    steps = math.ceil(_FITTED * len(words) * each / _BATCH)
    plots = {
        f"By {name}; {description}.": _plot_by_layer(
            _accuracies(analysis, probe, kind), up="accuracy", scale="share", styles=styles
        )
        for probe, description in _PROBES.items()
        for kind, name in _REPRESENTATIONS.items()
    }
    return Section(
        title="Separability of words",
        paragraphs=[
            f"Accuracy of a linear probe for {', '.join(words)}, by layer, {each} occurrences "
            f"each, five folds. The paper's probe takes {steps} steps here: with few occurrences "
            "it says more about itself than about the values.",
            _describe_controls(analysis),
        ],
        figures=[
            Figure(svg=figures.drawing(plot), caption=f"{of} Bands: standard deviation over folds.")
            for of, plot in plots.items()
        ],
    )


def _describe_controls(analysis: Analysis) -> str:
    """Return sentences with chance and the accuracies for shuffled labels, of the first model."""
    of_first, first = next(iter(analysis.models.items()))
    sentences = []
    for probe in _PROBES:
        for kind, name in _REPRESENTATIONS.items():
            accuracy = first.separability[probe][kind]
            low, high = min(accuracy.shuffled), max(accuracy.shuffled)
            sentences.append(
                f"Of {name}, {probe}: chance {accuracy.chance:.1%}, with labels shuffled "
                f"{low:.1%} to {high:.1%}."
            )
    whose = f"Controls, of {of_first}. " if len(analysis.models) > 1 else ""
    return whose + " ".join(sentences)


def _layout_section(analysis: Analysis) -> Section:
    switches = []
    for name, model in analysis.models.items():
        shown = {f"layer {layer}": points for layer, points in model.layout.layers.items()}
        draw_layout = draw_words(model.layout.labels, analysis.options.words or ())
        switches.append(panels(name, shown, draw_layout, LAYOUT, first=-1))
    return Section(title="Layout of words", switches=switches)
