"""The page about what goes on inside checkpoints, from analysis.json alone.

What a model has no figure for is said, and not left out.

It does not know: torch, models, how anything was computed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from layermem.report import figures
from layermem.report.page import Cell, Figure, Link, Page, Section, Switch, Table

_KINDS = {"routed": "values that attention reads", "hidden": "hidden states"}
_PROBES = {
    "paper": "the paper's probe: a linear layer, one epoch of Adam",
    "converged": "a converged probe: logistic regression",
}


def build(found: Mapping[str, Any]) -> Page:
    """Return the page."""
    names = " against ".join(found["models"])
    return Page(
        title=f"Inside {names}",
        lead=(
            "How many directions each layer's representations spread over, how well words are told "
            "apart by them, where words lie, and what routers read."
        ),
        sections=sections(found, {}),
    )


def sections(
    found: Mapping[str, Any],
    marks: Mapping[str, str],
    styles: Mapping[str, int] | None = None,
    said: str = "",
) -> list[Section]:
    """Return the parts of a page, their titles followed by what is ``said``.

    ``marks``: run id to where its run stands on the same page; ``styles``: run id to the style of
    its lines there.
    """
    # In the page's order and colours.
    order = list(marks)
    ids = {name: model["about"].get("run_id") for name, model in found["models"].items()}
    names = sorted(ids, key=lambda name: order.index(ids[name]) if ids[name] in marks else -1)
    chosen = {name: (styles or {})[ids[name]] for name in names if ids[name] in (styles or {})}
    found = {
        **found,
        "models": {name: found["models"][name] for name in names},
        "styles": chosen if len(chosen) == len(names) else None,
    }
    parts = [
        _models(found, marks),
        _entropy(found),
        _separability(found),
        _layout(found),
        *_routing(found),
    ]
    return [replace(part, title=f"{part.title}{said}") for part in parts]


def table(found: Mapping[str, Any]) -> Table:
    """Return the values attention reads, layer by layer: entropy and both probes, of each model."""
    models = found["models"]
    columns = [
        *(
            (f"entropy, {name}", model["entropy"]["routed"]["mean"], ".2f")
            for name, model in models.items()
        ),
        *(
            (f"{probe} probe, {name}", model["separability"][probe]["routed"]["mean"], ".1%")
            for probe in _PROBES
            for name, model in models.items()
        ),
    ]
    depth = max(len(values) for _, values, _ in columns)
    return Table(
        header=["layer", *(name for name, _, _ in columns)],
        rows=[
            [str(i), *(format(v[i], how) if i < len(v) else "" for _, v, how in columns)]
            for i in range(depth)
        ],
        caption="Of the values that attention reads.",
    )


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw entropy, the paper's probe and the last layers' layouts into one file."""
    figures.save(
        [
            lambda axes: figures.plot_curves(
                axes,
                _series(found, "entropy", "routed"),
                across="layer",
                up="entropy of values (nats)",
                bands=_bands(found, "entropy", "routed"),
            ),
            lambda axes: figures.plot_curves(
                axes,
                _series(found, "separability", "paper", "routed"),
                across="layer",
                up=f"{', '.join(found['asked']['words'])} told apart",
                scale="share",
                bands=_bands(found, "separability", "paper", "routed"),
            ),
            *(
                _last_layout(name, model, found["asked"]["words"])
                for name, model in found["models"].items()
            ),
        ],
        path,
    )


def _last_layout(
    name: str, model: Mapping[str, Any], words: Sequence[str]
) -> Callable[[Any], None]:
    layers = model["layout"]["layers"]
    last = list(layers)[-1]

    def plot(axes: Any) -> None:
        figures.plot_points(axes, layers[last], model["layout"]["labels"], words)
        axes.set_title(f"{name}, layer {last}", fontsize=10)

    return plot


def _models(found: Mapping[str, Any], marks: Mapping[str, str]) -> Section:
    rows = []
    for name, model in found["models"].items():
        about = model["about"]
        run_id = about.get("run_id")
        source: Cell = Link(run_id, marks[run_id]) if run_id in marks else run_id or "no run"
        sizes = str(about["layers"]), str(about["width"]), f"{about['parameters']:,}"
        rows.append([name, source, about["class"], *sizes])
    asked = found["asked"]
    text = asked["text"] or "the run's own problems, or the standard library's sources"
    return Section(
        title="What was looked at",
        tables=[
            Table(
                header=["", "run", "class", "layers", "width", "parameters"],
                rows=rows,
                caption=f"Text: {text}; {found['sequences']} sequences of at most "
                f"{asked['length']} tokens; seed {asked['seed']}.",
            )
        ],
        commands=[found["command"]] if found.get("command") else [],
    )


def _series(found: Mapping[str, Any], *path: str) -> dict[str, tuple[list[int], list[float]]]:
    """Return layers and means of each model, from where ``path`` leads."""
    series = {}
    for name, model in found["models"].items():
        part = model
        for step in path:
            part = part[step]
        series[name] = (list(range(len(part["mean"]))), part["mean"])
    return series


def _bands(found: Mapping[str, Any], *path: str) -> dict[str, tuple[list[float], list[float]]]:
    """Return one deviation below and above the means of each model."""
    bands = {}
    for name, model in found["models"].items():
        part = model
        for step in path:
            part = part[step]
        both = list(zip(part["mean"], part["deviation"], strict=True))
        bands[name] = [m - d for m, d in both], [m + d for m, d in both]
    return bands


def _entropy(found: Mapping[str, Any]) -> Section:
    alpha = found["asked"]["alpha"]
    return Section(
        title="Entropy by layer",
        paragraphs=[
            "Matrix entropy in nats of each sequence's tokens: 0 if all are one vector, the "
            "logarithm of the number of tokens if all are at right angles. Where it is low, "
            "representations have collapsed."
        ],
        figures=[
            Figure(
                svg=figures.curves(
                    _series(found, "entropy", kind),
                    across="layer",
                    up="entropy (nats)",
                    bands=_bands(found, "entropy", kind),
                    styles=found["styles"],
                ),
                caption=f"Of {said}; order {alpha:g}, features standardised; bands: deviation over "
                f"{found['sequences']} sequences.",
            )
            for kind, said in _KINDS.items()
        ],
    )


def _separability(found: Mapping[str, Any]) -> Section:
    words = ", ".join(found["asked"]["words"])
    first = next(iter(found["models"].values()))["separability"]
    # Four folds of five, in batches of 64.
    steps = math.ceil(0.8 * len(found["asked"]["words"]) * found["asked"]["each"] / 64)
    lines = [
        f"Of {said}, {probe}: chance {first[probe][kind]['chance']:.1%}, with labels shuffled "
        f"{min(first[probe][kind]['shuffled']):.1%} to {max(first[probe][kind]['shuffled']):.1%}."
        for probe in _PROBES
        for kind, said in _KINDS.items()
    ]
    return Section(
        title="Words told apart",
        paragraphs=[
            f"Accuracy of a linear probe for {words}, by layer, {found['asked']['each']} "
            f"occurrences each, five folds. The paper's probe takes {steps} steps here: with few "
            "occurrences it says more about itself than about the values.",
            " ".join(lines),
        ],
        figures=[
            Figure(
                svg=figures.curves(
                    _series(found, "separability", probe, kind),
                    across="layer",
                    up="accuracy",
                    scale="share",
                    bands=_bands(found, "separability", probe, kind),
                    styles=found["styles"],
                ),
                caption=f"By {said}; {how}. Bands: deviation over folds.",
            )
            for probe, how in _PROBES.items()
            for kind, said in _KINDS.items()
        ],
    )


def _layout(found: Mapping[str, Any]) -> Section:
    words = found["asked"]["words"]
    switches = []
    for name, model in found["models"].items():
        layout = model["layout"]
        options = [
            (
                f"layer {layer}",
                Figure(
                    svg=figures.scatter(points, layout["labels"], words),
                    caption=f"{name}, values that attention reads at layer {layer}: t-SNE of "
                    "vectors divided by their length.",
                ),
            )
            for layer, points in layout["layers"].items()
        ]
        switches.append(Switch(label=name, options=options, first=len(options) - 1))
    return Section(title="Where words lie", switches=switches)


def _routing(found: Mapping[str, Any]) -> list[Section]:
    sections = []
    for name, model in found["models"].items():
        if "routing" not in model:
            why = "It has no routers: every layer reads its own keys and values."
            if "routing_unknown" in model:
                why = f"It is not shown: {model['routing_unknown']}."
            sections.append(Section(title=f"What {name} reads", paragraphs=[why]))
            continue
        routing = model["routing"]
        heads = np.array(routing["heads"])
        by_layer = [
            (
                f"layer {layer}",
                Figure(
                    svg=figures.rows(heads[layer], across="source layer", up="head"),
                    caption=f"{name}, layer {layer}: what each key-value head reads.",
                ),
            )
            for layer in range(1, len(heads))
        ]
        sections.append(
            Section(
                title=f"What {name} reads",
                tables=[_readings(routing)],
                figures=[
                    Figure(
                        svg=figures.heatmap(
                            np.array(routing["heatmap"]), across="source layer", up="layer"
                        ),
                        caption="Absolute router weights, averaged over heads, each row divided by "
                        "its sum.",
                    )
                ],
                switches=[Switch(label="Heads of", options=by_layer)],
                paragraphs=[_circuits(routing)],
            )
        )
    return sections


def _readings(routing: Mapping[str, Any]) -> Table:
    return Table(
        header=["layer", "from earlier layers", "effective number of layers", "most read"],
        rows=[
            [
                str(row["layer"]),
                f"{row['off_layer_share']:.1%}",
                f"{row['effective']:.2f}",
                ", ".join(map(str, row["sources"])),
            ]
            for row in routing["readings"]
        ],
        caption="Shares of absolute router weights; the effective number is exp of their entropy.",
    )


def _circuits(routing: Mapping[str, Any]) -> str:
    ways = [
        f"{' from '.join(map(str, way['layers']))} ({way['weight']:.1%})"
        for way in routing["circuits"][:5]
    ]
    return f"Heaviest ways of two steps: {'; '.join(ways)}." if ways else "Too few layers for ways."
