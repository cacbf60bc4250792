"""The page about an analysis, and its table on the screen: curves by layer, words, what is read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from layermem_bench.analysis.result import (
    FOLDS,
    Analysis,
    ByLayer,
    DepthMixture,
    ModelAnalysis,
    Representation,
    readings,
)
from layermem_bench.pages import figures
from layermem_bench.pages.page import Figure, Page, Section, Table
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
    "vector, the logarithm of the number of tokens if all are orthogonal."
)
_PROBES = (
    "Accuracy of a linear probe for {words}, by layer, {each} occurrences each, {folds} folds. The "
    "paper's probe is one epoch of Adam: with few occurrences it says more about itself than about "
    "the values. Chance is {chance:.1%}."
)
_ABOUT = ("class_name", "layers", "width", "parameters", "run_id")
_CAPTIONS = {
    "heatmap": "Absolute router weights, averaged over heads, each row divided by its sum.",
    "heads": "what each key-value head reads of each layer.",
    "words": "values that attention reads; t-SNE of vectors normalised to length 1.",
}
_READ = "Shares of absolute router weights; the effective number is exp of their entropy."
_MIXES = "Mean weights over the texts' tokens of what earlier layers left; analysis.json has more."


def build(analysis: Analysis) -> Page:
    """Return the page about an analysis."""
    options, models = analysis.options, analysis.models
    text = options.text or "the run's own problems, or the standard library's sources"
    lead = f"Text: {text}; {analysis.sequences} sequences of at most {options.length} tokens."
    about = [
        {"model": name, **{of.replace("_", " "): str(getattr(model, of) or "") for of in _ABOUT}}
        for name, model in models.items()
    ]
    first = next(iter(models.values())).separability["paper"]["routed"]
    probes = _PROBES.format(
        words=", ".join(options.words or ()), each=options.each, folds=FOLDS, chance=first.chance
    )
    entropy, paper, converged = (
        [
            figures.drawing(curves(analysis, measure, kind, up), f"{measure.capitalize()} of {of}.")
            for kind, of in _REPRESENTATIONS.items()
        ]
        for measure, up in zip(_MEASURES, ("entropy (nats)", "accuracy", "accuracy"), strict=True)
    )
    words = [
        figure
        for name, model in models.items()
        for figure in panels(
            Picture(
                kind="words",
                name=name,
                panels={f"layer {i}": points for i, points in model.layout.layers.items()},
                labels=model.layout.labels,
                words=options.words or (),
            )
        )
    ]
    shown, again = [Table.of(about), table(analysis)], [analysis.command]
    sections = [
        Section("What was analyzed", tables=shown, commands=again),
        Section("Entropy by layer", [_ENTROPY.format(alpha=options.alpha)], figures=entropy),
        Section("Separability of words", [probes], figures=[*paper, *converged]),
        Section("Layout of words", figures=words),
    ]
    for name, model in models.items():
        sections.append(routing_section(name, model))
        sections += [mixtures_section(name, model.mixtures)] if model.mixtures else []
    return Page(title=f"Inside {' against '.join(models)}", lead=lead, sections=sections)


def table(analysis: Analysis) -> Table:
    """Return entropy and both probes' accuracies of the routed values, layer by layer."""
    rows = []
    for i in range(max(model.layers for model in analysis.models.values())):
        row = {"layer": str(i)}
        for measure, read in _MEASURES.items():
            for name, model in analysis.models.items():
                values = read(model, "routed").mean[i : i + 1]
                spec = ".2f" if measure == "entropy" else ".1%"
                row[f"{measure}, {name}"] = "".join(format(value, spec) for value in values)
        rows.append(row)
    return Table.of(rows, "Of the values that attention reads.")


def curves(analysis: Analysis, measure: str, kind: Representation, up: str) -> figures.Plot:
    """Return a plot of a line for each model, in a band of one standard deviation."""
    series = {}
    for name, model in analysis.models.items():
        values = _MEASURES[measure](model, kind)
        pairs = enumerate(zip(values.mean, values.deviation, strict=True))
        series[name] = [(i, (mean - d, mean, mean + d)) for i, (mean, d) in pairs]
    return figures.curves(series, across="layer", up=up, is_share=measure != "entropy")


def panels(picture: Picture) -> list[Figure]:
    """Return the panels of what was seen inside a model, all but the last folded."""
    shown = []
    for name, rows in picture.panels.items():
        if picture.kind == "words":
            plot = figures.scatter(rows, picture.labels, picture.words)
        else:
            up = "head" if picture.kind == "heads" else "layer"
            plot = figures.heatmap(np.array(rows), across="source layer", up=up)
        caption = f"{picture.name}, {name}: {_CAPTIONS[picture.kind]}"
        shown.append(figures.drawing(plot, caption, figures.SQUARE))
    *others, last = shown
    return [*(replace(each, fold=each.caption.partition(":")[0]) for each in others), last]


def routing_section(name: str, model: ModelAnalysis) -> Section:
    """Return the section about a model's routers, or one that says why nothing is shown."""
    title = f"What {name} reads"
    routing = model.routing
    if routing is None:
        reason = "No router reads another layer: every layer reads its own keys and values."
        if model.mixtures:
            reason = f"It mixes over depth without routers: see What {name} mixes."
        if model.routing_unknown is not None:
            reason = f"It is not shown: {model.routing_unknown}."
        return Section(title, [reason])
    read = [
        {
            "layer": str(each.layer),
            "from earlier layers": f"{each.off_layer_share:.1%}",
            "effective number of layers": f"{each.effective:.2f}",
            "most read": ", ".join(map(str, each.sources)),
        }
        for each in readings(np.array(routing.heatmap))
    ]
    heatmaps = {"Keys and values": routing.heatmap} if routing.parts is None else routing.parts
    maps = panels(Picture(kind="heatmap", name=name, panels=heatmaps))
    # Layer 0 has nothing to choose from.
    heads = {f"layer {i}": heads for i, heads in enumerate(routing.heads) if i}
    maps += panels(Picture(kind="heads", name=f"{name}'s heads", panels=heads))
    return Section(title, tables=[Table.of(read, _READ)], figures=maps)


def mixtures_section(name: str, mixtures: Sequence[DepthMixture]) -> Section:
    """Return the section about the mean weights over depth of a model that has some."""
    rows = []
    for mixture in mixtures:
        for reader, weights in zip(mixture.readers, mixture.mean, strict=True):
            read = zip(mixture.sources, weights, strict=True)
            cells = {source: f"{weight:.2f}" for source, weight in read}
            rows.append({"place": mixture.place, "reader": reader, **cells})
    return Section(f"What {name} mixes", tables=[Table.of(rows, _MIXES)])
