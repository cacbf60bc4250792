"""Sections of a page about depth: what a model's routers read, and what its places mix."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from layermem_bench.report import figures
from layermem_bench.report.page import Columns, Figure, Section, Switch, Table
from layermem_bench.results.analysis import DepthMixture, ModelAnalysis, Reading

Rows = Sequence[Sequence[float]]
HEATMAP = "Absolute router weights, averaged over heads, each row divided by its sum."
LAYOUT = "values that attention reads; t-SNE of vectors normalised to length 1."
"""Captions of heatmaps, and of layouts of words."""
_READINGS: Columns[Reading] = {
    "layer": lambda each: str(each.layer),
    "from earlier layers": lambda each: f"{each.off_layer_share:.1%}",
    "effective number of layers": lambda each: f"{each.effective:.2f}",
    "most read": lambda each: ", ".join(map(str, each.sources)),
}


def panels(
    label: str, shown: Mapping[str, Rows], draw: Callable[[Rows], str], caption: str, first: int = 0
) -> Switch:
    """Return a drawing for each name of ``shown``, of which one is seen at a time."""
    options = [
        (name, Figure(svg=draw(rows), caption=f"{label}, {name}: {caption}"))
        for name, rows in shown.items()
    ]
    return Switch(label=label, options=options, first=first % max(1, len(options)))


def draw_heads(shares: Rows) -> str:
    """Return an SVG of the shares that each head of a layer reads."""
    return figures.rows(np.array(shares), across="source layer", up="head")


def draw_layers(shares: Rows) -> str:
    """Return an SVG of the shares that each layer reads."""
    return figures.heatmap(np.array(shares), across="source layer", up="layer")


def draw_words(labels: Sequence[int], words: Sequence[str]) -> Callable[[Rows], str]:
    """Return what makes an SVG of where words lie; ``labels``: the word of each point."""
    return lambda points: figures.drawing(
        figures.scatter(points, labels, words), (4.2, 3.8), spines=True
    )


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
        return Section(title=title, paragraphs=[reason])
    heatmaps = {HEATMAP: routing.heatmap}
    of_heads = "what each key-value head reads"
    if routing.parts is not None:
        heatmaps = {f"What {part}s read. {HEATMAP}": heat for part, heat in routing.parts.items()}
        of_heads += ", averaged over keys and values, which have routers of their own"
    paths = [
        f"{' from '.join(map(str, circuit.layers))} ({circuit.weight:.1%})"
        for circuit in routing.circuits[:5]
    ]
    told = f"Heaviest paths of two steps: {'; '.join(paths) or 'none, or too few layers'}."
    # Layer 0 has nothing to choose from.
    heads = {f"layer {i}": heads for i, heads in enumerate(routing.heads) if i}
    caption = "Shares of absolute router weights; the effective number is exp of their entropy."
    return Section(
        title=title,
        tables=[Table.over(routing.readings, _READINGS, caption)],
        figures=[Figure(svg=draw_layers(heat), caption=of) for of, heat in heatmaps.items()],
        switches=[panels(name, heads, draw_heads, f"{of_heads}.")],
        paragraphs=[told],
    )


def mixtures_section(name: str, mixtures: Sequence[DepthMixture]) -> Section:
    """Return the section about the weights over depth of a model that has some."""
    kind = "They are the same for all tokens."
    switches = [_mixtures("Mean weights of", name, mixtures, deviation=False)]
    if any(any(map(any, mixture.deviation)) for mixture in mixtures):
        kind = "They depend on the token: means and standard deviations are over the texts' tokens."
        switches.append(_mixtures("Deviation of", name, mixtures, deviation=True))
    return Section(
        title=f"What {name} mixes",
        paragraphs=[f"Weights with which each place mixes what earlier layers left. {kind}"],
        switches=switches,
    )


def _mixtures(
    label: str, name: str, mixtures: Sequence[DepthMixture], *, deviation: bool
) -> Switch:
    options = []
    for reader in dict.fromkeys(reader for mixture in mixtures for reader in mixture.readers):
        places, sources, matrix = tabulate(mixtures, reader, deviation=deviation)
        svg = figures.rows(matrix, across=sources, up=places, signed=True)
        caption = f"{name}, what the {reader} reads at each place (row) of each source (column)."
        options.append((reader, Figure(svg=svg, caption=caption)))
    return Switch(label=label, options=options)


def tabulate(
    mixtures: Sequence[DepthMixture], reader: str, *, deviation: bool
) -> tuple[list[str], list[str], np.ndarray]:
    """Return the places and the sources of a reader, and [place, source]: NaN where none is read.

    Sources stand in the order in which the places name them first.
    """
    chosen = [mixture for mixture in mixtures if reader in mixture.readers]
    sources = list(dict.fromkeys(source for mixture in chosen for source in mixture.sources))
    matrix = np.full((len(chosen), len(sources)), np.nan)
    for row, mixture in zip(matrix, chosen, strict=True):
        values = mixture.deviation if deviation else mixture.mean
        columns = [sources.index(source) for source in mixture.sources]
        row[columns] = values[mixture.readers.index(reader)]
    return [mixture.place for mixture in chosen], sources, matrix
