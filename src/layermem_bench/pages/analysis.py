"""The page about an analysis, and its table on the screen."""

from collections.abc import Callable, Mapping

import numpy as np

from layermem_bench.analysis.result import FOLDS, Analysis, ByLayer, ModelAnalysis, Representation
from layermem_bench.pages import figures
from layermem_bench.pages.depth import mixtures_section, panels, routing_section
from layermem_bench.pages.page import Columns, Figure, Page, Section, Table
from layermem_bench.studies.result import Picture

_REPRESENTATIONS: Mapping[Representation, str] = {
    "routed": "values that attention reads",
    "hidden": "hidden states",
}
_MEASURES: Mapping[str, Callable[[ModelAnalysis, Representation], ByLayer]] = {
    "entropy": lambda model, kind: model.entropy[kind],
    "paper probe": lambda model, kind: model.separability["paper"][kind],
    "converged probe": lambda model, kind: model.separability["converged"][kind],
}
_ENTROPY = (
    "Matrix entropy in nats of each sequence's tokens, of order {alpha:g}: 0 if all are the same "
    "vector, the logarithm of the number of tokens if all are orthogonal. Where it is low, "
    "representations have collapsed."
)
_PROBES = (
    "Accuracy of a linear probe for {words}, by layer, {each} occurrences each, {folds} folds. The "
    "paper's probe is one epoch of Adam: with few occurrences it says more about itself than about "
    "the values. Chance is {chance:.1%}; with labels shuffled, accuracies are {low:.1%} to "
    "{high:.1%}."
)
_MODELS: Columns[tuple[str, ModelAnalysis]] = {
    "model": lambda named: named[0],
    "run": lambda named: named[1].run_id or "no run",
    "class": lambda named: named[1].class_name,
    "layers": lambda named: str(named[1].layers),
    "width": lambda named: str(named[1].width),
    "parameters": lambda named: f"{named[1].parameters:,}",
}


def build(analysis: Analysis) -> Page:
    """Return the page about an analysis."""
    options, words = analysis.options, analysis.options.words or ()
    layouts = [
        panels(
            Picture(
                kind="words",
                name=name,
                panels={f"layer {i}": points for i, points in model.layout.layers.items()},
                labels=model.layout.labels,
                words=words,
            )
        )
        for name, model in analysis.models.items()
    ]
    accuracies = [
        accuracy
        for model in analysis.models.values()
        for by_kind in model.separability.values()
        for accuracy in by_kind.values()
    ]
    shuffled = [share for accuracy in accuracies for share in accuracy.shuffled]
    probes = _PROBES.format(
        words=", ".join(words),
        each=options.each,
        folds=FOLDS,
        chance=accuracies[0].chance,
        low=min(shuffled),
        high=max(shuffled),
    )
    sections = [
        _curves_section("Entropy by layer", _ENTROPY.format(alpha=options.alpha), analysis),
        _curves_section("Separability of words", probes, analysis),
        Section(title="Layout of words", switches=layouts),
    ]
    for name, model in analysis.models.items():
        sections.append(routing_section(name, model))
        sections += [mixtures_section(name, model.mixtures)] if model.mixtures else []
    text = options.text or "the run's own problems, or the standard library's sources"
    caption = f"Text: {text}; {analysis.sequences} sequences of at most {options.length} tokens."
    models = Table.over(analysis.models.items(), _MODELS, caption)
    again = [analysis.command] if analysis.command else []
    analyzed = Section(title="What was analyzed", tables=[models], commands=again)
    title = f"Inside {' against '.join(analysis.models)}"
    return Page(title=title, lead=_lead(analysis), sections=[analyzed, *sections])


def _lead(analysis: Analysis) -> str:
    """Say of each model how much its values hold, and how well words are told apart in them."""
    return " ".join(
        f"The values of {name} have an entropy of {np.mean(model.entropy['routed'].mean):.2f} "
        "nats, mean over layers; a converged probe has an accuracy of "
        f"{model.separability['converged']['routed'].mean[-1]:.0%} in those of the last layer."
        for name, model in analysis.models.items()
    )


def table(analysis: Analysis) -> Table:
    """Return entropy and both probes' accuracies of the routed values, layer by layer."""
    depth = max(model.layers for model in analysis.models.values())
    columns = {"layer": list(map(str, range(depth)))}
    for measure, read in _MEASURES.items():
        spec = ".2f" if measure == "entropy" else ".1%"
        for name, model in analysis.models.items():
            cells = [format(value, spec) for value in read(model, "routed").mean]
            columns[f"{measure}, {name}"] = cells + [""] * (depth - len(cells))
    return Table.of_columns(columns, "Of the values that attention reads.")


def curves(analysis: Analysis, measure: str, kind: Representation, up: str) -> figures.Plot:
    """Return a plot of a line for each model, in a band of one standard deviation."""
    series, bands = {}, {}
    for name, model in analysis.models.items():
        values = _MEASURES[measure](model, kind)
        series[name] = range(len(values.mean)), values.mean
        pairs = list(zip(values.mean, values.deviation, strict=True))
        bands[name] = [mean - d for mean, d in pairs], [mean + d for mean, d in pairs]
    scale: figures.Scale = "number" if measure == "entropy" else "share"
    return figures.curves(series, across="layer", up=up, scale=scale, bands=bands)


def _curves_section(title: str, paragraph: str, analysis: Analysis) -> Section:
    """Return a section with a figure of each representation, by entropy or by both probes."""
    is_entropy, shown = title.startswith("Entropy"), []
    for measure in (m for m in _MEASURES if (m == "entropy") == is_entropy):
        for kind, name in _REPRESENTATIONS.items():
            up = "entropy (nats)" if is_entropy else "accuracy"
            svg = figures.drawing(curves(analysis, measure, kind, up))
            caption = f"{measure.capitalize()} of {name}; bands: one standard deviation."
            shown.append(Figure(svg=svg, caption=caption))
    return Section(title=title, paragraphs=[paragraph], figures=shown)
