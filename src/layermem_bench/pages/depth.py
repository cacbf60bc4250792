"""Sections of a page about depth: what a model's routers read, and what its places mix."""

from collections.abc import Sequence

import numpy as np

from layermem_bench.analysis.result import DepthMixture, ModelAnalysis, Rows
from layermem_bench.analysis.routing import Reading, readings
from layermem_bench.pages import figures
from layermem_bench.pages.page import Columns, Figure, Section, Switch, Table
from layermem_bench.studies.result import Picture

_CAPTIONS = {
    "heatmap": "Absolute router weights, averaged over heads, each row divided by its sum.",
    "heads": "what each key-value head reads of each layer.",
    "words": "values that attention reads; t-SNE of vectors normalised to length 1.",
}
_MIXES = (
    "Mean weights over the texts' tokens with which each place (row) mixes what earlier layers "
    "left (column). analysis.json has their standard deviations too."
)
_READINGS: Columns[Reading] = {
    "layer": lambda each: str(each.layer),
    "from earlier layers": lambda each: f"{each.off_layer_share:.1%}",
    "effective number of layers": lambda each: f"{each.effective:.2f}",
    "most read": lambda each: ", ".join(map(str, each.sources)),
}


def panels(picture: Picture) -> Switch:
    """Return the panels of what was seen inside a model, of which one is seen at a time."""
    options = []
    for name, rows in picture.panels.items():
        caption = f"{picture.name}, {name}: {_CAPTIONS[picture.kind]}"
        options.append((name, Figure(svg=_draw(picture, rows), caption=caption)))
    return Switch(label=picture.name, options=options)


def _draw(picture: Picture, rows: Rows) -> str:
    if picture.kind == "words":
        plot = figures.scatter(rows, picture.labels, picture.words)
        return figures.drawing(plot, (4.2, 3.8), spines=True)
    up = "head" if picture.kind == "heads" else "layer"
    return figures.heatmap(np.array(rows), across="source layer", up=up)


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
    heatmaps = {"Keys and values": routing.heatmap} if routing.parts is None else routing.parts
    # Layer 0 has nothing to choose from.
    heads = {f"layer {i}": heads for i, heads in enumerate(routing.heads) if i}
    caption = "Shares of absolute router weights; the effective number is exp of their entropy."
    return Section(
        title=title,
        tables=[Table.over(readings(np.array(routing.heatmap)), _READINGS, caption)],
        switches=[
            panels(Picture(kind="heatmap", name=name, panels=heatmaps)),
            panels(Picture(kind="heads", name=f"{name}'s heads", panels=heads)),
        ],
    )


def mixtures_section(name: str, mixtures: Sequence[DepthMixture]) -> Section:
    """Return the section about the mean weights over depth of a model that has some."""
    options = []
    for reader in dict.fromkeys(reader for mixture in mixtures for reader in mixture.readers):
        places, sources, matrix = tabulate(mixtures, reader)
        svg = figures.weights(matrix, across=sources, up=places)
        options.append((reader, Figure(svg=svg, caption=f"{name}, what the {reader} reads.")))
    switch = Switch(label=f"{name}, weights over depth", options=options)
    return Section(title=f"What {name} mixes", paragraphs=[_MIXES], switches=[switch])


def tabulate(
    mixtures: Sequence[DepthMixture], reader: str
) -> tuple[list[str], list[str], np.ndarray]:
    """Return the places and the sources of a reader, and [place, source]: NaN where none is read.

    Sources stand in the order in which the places name them first.
    """
    chosen = [mixture for mixture in mixtures if reader in mixture.readers]
    sources = list(dict.fromkeys(source for mixture in chosen for source in mixture.sources))
    matrix = np.full((len(chosen), len(sources)), np.nan)
    for row, mixture in zip(matrix, chosen, strict=True):
        columns = [sources.index(source) for source in mixture.sources]
        row[columns] = mixture.mean[mixture.readers.index(reader)]
    return [mixture.place for mixture in chosen], sources, matrix
