"""The section of a page about what the places of a model mix over depth: a map for each reader."""

from collections.abc import Sequence

import numpy as np

from layermem.report import figures
from layermem.report.page import Figure, Section, Switch
from layermem.results.analysis import DepthMixture


def mixtures_section(name: str, mixtures: Sequence[DepthMixture]) -> Section:
    """Return the section about the weights over depth of a model that has some."""
    readers = list(dict.fromkeys(reader for mixture in mixtures for reader in mixture.readers))
    constant = not any(any(map(any, mixture.deviation)) for mixture in mixtures)
    switches = [_switch("Mean weights of", name, mixtures, readers, deviation=False)]
    if not constant:
        switches.append(_switch("Deviation of", name, mixtures, readers, deviation=True))
    kind = (
        "They are the same for all tokens."
        if constant
        else "They depend on the token: means and standard deviations are over the texts' tokens."
    )
    return Section(
        title=f"What {name} mixes",
        paragraphs=[f"Weights with which each place mixes what earlier layers left. {kind}"],
        switches=switches,
    )


def _switch(
    label: str,
    name: str,
    mixtures: Sequence[DepthMixture],
    readers: Sequence[str],
    *,
    deviation: bool,
) -> Switch:
    options = []
    for reader in readers:
        places, sources, matrix = tabulate(mixtures, reader, deviation=deviation)
        drawing = figures.signed_rows(matrix, across=sources, up=places)
        caption = f"{name}, what the {reader} reads at each place (row) of each source (column)."
        options.append((reader, Figure(svg=drawing, caption=caption)))
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
