"""The section of a page about what a model's routers read."""

import numpy as np

from layermem.report import figures
from layermem.report.page import Figure, Section, Switch, Table
from layermem.results.analysis import ModelAnalysis, Routing


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
    return Section(
        title=title,
        tables=[_readings_table(routing)],
        figures=_heatmaps(routing),
        switches=[_heads_switch(name, routing)],
        paragraphs=[_describe_circuits(routing)],
    )


def _heatmaps(routing: Routing) -> list[Figure]:
    """Return the heatmap of what is read, or that of keys and that of values if they differ."""
    caption = "Absolute router weights, averaged over heads, each row divided by its sum."
    shown = {caption: routing.heatmap}
    if routing.parts is not None:
        shown = {f"What {part}s read. {caption}": heat for part, heat in routing.parts.items()}
    return [
        Figure(
            svg=figures.heatmap(np.array(heat), across="source layer", up="layer"), caption=caption
        )
        for caption, heat in shown.items()
    ]


def _heads_switch(name: str, routing: Routing) -> Switch:
    """Return a drawing of every layer's heads; layer 0 has nothing to choose from."""
    heads = np.array(routing.heads)
    options = [
        (
            f"layer {layer}",
            Figure(
                svg=figures.rows(heads[layer], across="source layer", up="head"),
                caption=f"{name}, layer {layer}: what each key-value head reads.",
            ),
        )
        for layer in range(1, len(heads))
    ]
    return Switch(label="Heads of", options=options)


def _readings_table(routing: Routing) -> Table:
    return Table(
        header=["layer", "from earlier layers", "effective number of layers", "most read"],
        rows=[
            [
                str(reading.layer),
                f"{reading.off_layer_share:.1%}",
                f"{reading.effective:.2f}",
                ", ".join(map(str, reading.sources)),
            ]
            for reading in routing.readings
        ],
        caption="Shares of absolute router weights; the effective number is exp of their entropy.",
    )


def _describe_circuits(routing: Routing) -> str:
    paths = [
        f"{' from '.join(map(str, circuit.layers))} ({circuit.weight:.1%})"
        for circuit in routing.circuits[:5]
    ]
    if not paths:
        return "No path of two steps: the model has too few layers, or no layer reads another."
    return f"Heaviest paths of two steps: {'; '.join(paths)}."
