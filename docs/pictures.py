"""Draw the pictures of the pages from what was recorded: python THIS_FILE.

Each is a file below docs, with a title and a description in words; docs/notebook_page.py draws
those of the notebook.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args
from xml.sax.saxutils import escape

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from results_tables import answer, questions, recorded, recorded_lines

from layermem_bench.analysis.result import Analysis
from layermem_bench.config.typed_dicts import read_result
from layermem_bench.evals.result import EvalResult
from layermem_bench.pages import analysis, figures
from layermem_bench.pages.page import format_interval
from layermem_bench.pages.study import learning_curves
from layermem_bench.pages.study_tables import claim_text
from layermem_bench.statistics import Interval, interval, paired
from layermem_bench.studies.comparing import Verdict, judge
from layermem_bench.studies.result import ABOVE_PLAIN, LOSS, StudyResult

DOCS = Path(__file__).parent
RECORDS = DOCS / "records"
ANSWERS = ("right answers", "against plain's (right is better)")
LOSSES = (LOSS, "validation loss minus plain's (left is better)")


GROUNDS = (
    "<style>svg{background:#ffffff;color:#1a2b3c}"
    "@media(prefers-color-scheme:dark){svg{background:#1e2129;color:#dde3ea}}</style>"
)
# Of each row of a picture: its label, the arm whose colour it has, and its interval.
Rows = Sequence[tuple[str, str, Interval]]


@dataclass(frozen=True, kw_only=True)
class Part:
    """Arms of a record whose differences from its first arm are drawn."""

    record: str
    said: str
    """What stands above it."""
    board: str = ""
    """Of a record with several boards; empty: the only one."""
    condition: str = "recorded"


def main() -> None:
    for name, draw in PICTURES.items():
        (DOCS / name).write_text(draw(), encoding="utf-8")


def on_own_ground(svg: str, title: str = "", description: str = "") -> str:
    """Return an SVG for a file of its own, with a ground for light and one for dark.

    It begins with the version of matplotlib that drew it, whose releases place text differently.
    """
    about = f"<title>{escape(title)}</title>" if title else ""
    about += f"<desc>{escape(description)}</desc>" if description else ""
    start, _, rest = svg.partition(">")
    return f"<!-- matplotlib {matplotlib.__version__} -->\n{start}>{about}{GROUNDS}{rest}"


def study(name: str) -> StudyResult:
    return read_result(StudyResult, RECORDS / f"{name}.json")


def differences(part: Part, metric: str) -> Rows:
    """Return the differences of a part's arms from its first arm."""
    lines, _ = recorded_lines(part.record, part.board, part.condition, metric)
    # At equal time an arm is named by its steps.
    arms = {line.arm: line.arm.partition(":max_steps=")[0] for line in lines}
    return [(arms[of.arm], arms[of.arm], of.difference) for of in lines if of.difference]


def forest(title: str, *parts: Part, what: tuple[str, str] = LOSSES) -> str:
    """Draw differences of arms from the plain decoder, each part on axes of its own."""
    metric, across = what
    found = {part.said: differences(part, metric) for part in parts}
    return drawn(title, found, is_share=metric != LOSS, across=across)


def drawn(
    title: str,
    parts: Mapping[str, Rows],
    *,
    across: str,
    is_share: bool = False,
    one_scale: bool = False,
) -> str:
    """Draw named intervals in the colours of their arms, each part on axes of its own."""
    found = [each for of_part in parts.values() for each in of_part]
    styles = figures.styles_of(arm for _, arm, _ in found)
    of_labels = {label: styles[arm] for label, arm, _ in found}
    plots, heights = [], []
    for name, rows in parts.items():
        values = {label: each for label, _, each in rows}
        below = across if name == list(parts)[-1] else ""
        plot = figures.intervals(values, is_share=is_share, across=below, styles=of_labels)
        plots.append((name, plot))
        heights.append(figures.height_of(values))
    size = (6.0, 0.5 + sum(heights) + 0.4 * len(parts))
    svg = in_a_grid(plots, size, heights=heights, one_scale=one_scale)
    said = [
        f"{f'{name}, ' * bool(name)}{label}: {format_interval(each, is_share, '+')}"
        for name, rows in parts.items()
        for label, _, each in rows
    ]
    return on_own_ground(svg, title, "; ".join(said))


def in_a_grid(
    plots: Sequence[tuple[str, figures.Plot]],
    size: tuple[float, float],
    *,
    columns: int = 1,
    heights: Sequence[float] | None = None,
    font: int = 10,
    one_scale: bool = False,
) -> str:
    """Return an SVG of plots with their titles, each on axes of its own."""
    with matplotlib.rc_context({**figures.RC, "font.size": font}):
        figure = Figure(figsize=size, layout="constrained")
        down = -(-len(plots) // columns)
        grid = figure.subplots(
            down, columns, squeeze=False, height_ratios=heights, sharex=one_scale
        )
        for axes, (title, plot) in zip(grid.flat, plots, strict=True):
            plot(axes)
            axes.set_title(title, fontsize=10)
            if columns == 1:
                axes.spines[["top", "right"]].set_visible(False)
        return figures.in_ink_of_the_page(figure)


def answers() -> str:
    """Draw the answers in validation loss: early ones are much larger than later ones."""
    titles = {
        "early": "after 400 steps",
        "later": "later",
        "added": "added to a pretrained model",
    }
    parts: dict[str, list[tuple[str, str, Interval]]] = {title: [] for title in titles.values()}
    # Memory that is attached, and trained with all weights, is LIMe's.
    arms = {"all": "lime"}
    for each in map(partial(answer, records=RECORDS), questions()):
        asked = each.question
        if asked.metric == LOSS and each.line and each.line.difference:
            # At equal time an arm is named by its steps, and looks as it does elsewhere.
            arm = asked.arm.partition(":max_steps=")[0]
            parts[titles[asked.stage]].append(
                (asked.asks, arms.get(arm, arm), each.line.difference)
            )
    title = "Differences in validation loss with 95% intervals"
    return drawn(title, parts, across=LOSSES[1])


def depths() -> str:
    """Draw the loss of both variants by depth."""
    series: dict[str, list[tuple[float, figures.Ends]]] = {}
    said = []
    rows = study("artefacts/fig6-tiny").rows
    for row in sorted(rows, key=lambda row: not row.arm.startswith("plain")):
        arm, layers = row.arm.removesuffix(" layers").split(", ")
        each = interval(list(row.by_seed.values()))
        ends = each.ends[0], each.mean, each.ends[1]
        series.setdefault(arm, []).append((int(layers), ends))
        said.append(f"{arm}, {layers} layers: {format_interval(each, False)}")
    plot = figures.curves(series, across="layers", up=LOSS)
    title = "Validation loss by depth, means of three seeds with 95% intervals"
    return on_own_ground(figures.drawing(plot).svg, title, "; ".join(said))


def windows() -> str:
    """Draw what routers of other sources come to, beside the full router."""
    found = [
        (claim_text(each), each.claim.arm, each.difference)
        for each in judge(study("artefacts/table7-tiny"))
        if each.difference is not None and "perplexity" in each.claim.quantity
    ]
    title = "Differences in validation perplexity that the paper claims, with 95% intervals"
    return drawn(title, {"": found}, across="difference (left is better)")


def positions() -> str:
    """Draw the loss of LIMe against the plain decoder's, by the tokens before."""
    result = read_result(EvalResult, RECORDS / "tiny-lm-4x-perplexity.json")
    found = []
    for name, row in result.of("loss").items():
        if name.startswith("after"):
            ours, plain = (
                [row.scores[model].value for model in result.arms[arm]] for arm in ("lime", "plain")
            )
            found.append((f"lime, {name}", "lime", paired(ours, plain)))
    title = "Loss of LIMe against the plain decoder's by position in the window, 95% intervals"
    return drawn(title, {"": found}, across="nats a token minus plain's (left is better)")


def prices() -> str:
    """Draw what a step takes above the plain decoder's."""
    found = []
    for row in study("artefacts/table9-tiny").rows:
        if ABOVE_PLAIN in row.metric and row.arm != "plain":
            label = f"{row.arm}, {row.metric.replace(ABOVE_PLAIN, '')}"
            found.append((label, row.arm, interval(list(row.by_seed.values()))))
    title = "Time and peak memory of a training step above the plain decoder's, 95% intervals"
    return drawn(title, {"": found}, is_share=True, across="above plain (left is better)")


def verdicts() -> str:
    """Draw how many of the paper's differences hold, for each of its tables and figures."""
    counts = {
        name: Counter[str](each.verdict for each in judge(results[0]))
        for name, results in recorded(RECORDS / "artefacts").items()
        if results[0].claims
    }
    verdicts = get_args(Verdict)

    def draw(axes: Axes) -> None:
        before = [0] * len(counts)
        for verdict, colour in zip(verdicts, ("#2a9d5c", "#d9622b", "#7a8594"), strict=True):
            widths = [counts[name][verdict] for name in counts]
            axes.barh(range(len(counts)), widths, left=before, color=colour, label=verdict)
            before = [start + width for start, width in zip(before, widths, strict=True)]
        axes.set_yticks(range(len(counts)), list(counts))
        axes.invert_yaxis()
        axes.set(xlabel="differences that the paper claims")
        figures.count_across(axes)
        axes.legend(frameon=False)

    total = sum(counts.values(), Counter[str]())
    said = "; ".join(f"{verdict}: {total[verdict]}" for verdict in verdicts)
    title = "Verdicts on the differences that each table and figure of the paper claims"
    return on_own_ground(figures.drawing(draw, size=(6.0, 4.2)).svg, title, said)


def caches(record: str, text: str) -> str:
    """Draw losses of a record's arms against the first, arms of equal caches together."""
    (board,) = study(record).boards
    held = {cost.arm: 2 * cost.cached for cost in board.costs}
    parts: dict[str, list[tuple[str, str, Interval]]] = {}
    for row in differences(Part(record=record, said=""), LOSS):
        title = f"{held[row[1]]:,} bytes of the cache for a token, in bfloat16"
        parts.setdefault(title, []).append(row)
    first = board.conditions[0].arms[0].name
    title = f"Validation loss on {text} minus that of {first}, which keeps {held[first]:,} bytes"
    across = f"validation loss minus that of {first} (left is better)"
    return drawn(title, parts, across=across, one_scale=True)


def learning() -> str:
    """Draw the leads of arms over 6,400 steps, mean over seeds."""
    result = study("quiet-books-longer")
    lead, *_ = learning_curves(result, result.boards[0])
    return on_own_ground(
        lead.svg, "Training loss on textbooks minus plain's, four seeds", lead.caption
    )


def inside() -> str:
    """Draw what goes on inside the recipe: entropy, the paper's probe, words, routers.

    Of the layouts of words the record has the last layer's, which alone is drawn.
    """
    result = read_result(Analysis, RECORDS / "inside" / "recipe.json")
    words = result.options.words or ()
    entropy = analysis.curves(result, "entropy", "routed", "entropy of values (nats)")
    accuracy = f"accuracy for {', '.join(words)}"
    plots = [("", entropy), ("", analysis.curves(result, "paper probe", "routed", accuracy))]
    for name, model in result.models.items():
        last = max(model.layout.layers)
        points = figures.scatter(model.layout.layers[last], model.layout.labels, words)
        plots.append((f"{name}, layer {last}", points))
    for name, model in result.models.items():
        read = model.routing and (model.routing.parts or {"": model.routing.heatmap})
        for part, shares in (read or {}).items():
            plot = figures.heatmap(np.array(shares), across="source layer", up="layer")
            plots.append((f"{name}, {f'{part}s' if part else 'keys and values'}", plot))
    down = -(-len(plots) // 2)
    return on_own_ground(in_a_grid(plots, (6.8, 3.1 * down), columns=2, font=9))


def scheme(*, attached: bool) -> str:
    """Draw slots, a router and attention; ``attached``: as memory begins in a pretrained model."""
    blue, orange = (colour for colour, *_ in figures.styles_of(["plain", "lime"]).values())
    # Widths of what the router reads: the identity, or an example.
    widths = (1.2, 1.2, 1.2, 3.0) if attached else (3.0, 1.0, 1.6, 2.4)
    top, y_axis = 5.25, [1.75 * layer for layer in range(4)]
    ink = {"arrowstyle": "-|>", "color": figures.INK, "shrinkA": 0, "shrinkB": 0}

    def box(axes: Axes, x: float, y: float, width: float, text: str, colour: str = "") -> None:
        edge, face = (colour, f"{colour}33") if colour else (figures.INK, "none")
        shape = FancyBboxPatch(
            (x, y), width, 1.0, boxstyle="round,pad=0.08", edgecolor=edge, facecolor=face
        )
        axes.add_patch(shape)
        axes.text(x + width / 2, y + 0.5, text, ha="center", va="center")

    def draw(axes: Axes) -> None:
        for layer, y in enumerate(y_axis):
            box(axes, 0.0, y, 2.3, f"pretrained\nlayer {layer}" if attached else f"layer {layer}")
            box(axes, 3.5, y, 2.1, f"slot {layer}\nkeys, values", blue)
            axes.annotate("", (3.4, y + 0.5), (2.4, y + 0.5), arrowprops=ink)
            if layer:
                axes.annotate("", (1.15, y - 0.1), (1.15, y - 0.66), arrowprops=ink)
            dashes = "--" if attached and layer < 3 else "-"
            look = {**ink, "color": orange, "linewidth": widths[layer], "linestyle": dashes}
            axes.annotate("", (7.1, top + 0.2 + 0.2 * layer), (5.7, y + 0.5), arrowprops=look)
        router = "router, new:\nthe identity" if attached else "router:\nweighted sum"
        box(axes, 7.2, top, 2.0, router, orange)
        box(axes, 7.2, top + 1.75, 2.0, "attention of\nlayer 3")
        axes.annotate("", (8.2, top + 1.65), (8.2, top + 1.1), arrowprops=ink)
        axes.text(8.35, top + 1.35, "keys, values", va="center")
        bent = {**ink, "connectionstyle": "angle,angleA=90,angleB=0"}
        axes.annotate("", (7.1, top + 2.25), (1.15, top + 1.1), arrowprops=bent)
        axes.text(1.3, top + 2.4, "query", va="bottom")
        notes = "every layer above\nthe first has a\nrouter of its own"
        if attached:
            notes = "dashed: weight 0,\nsolid: weight 1,\nat the start"
        axes.text(7.2, 1.6, notes, va="top")
        axes.set(xlim=(-0.2, 10.4), ylim=(-0.3, top + 3.0), xticks=[], yticks=[])
        axes.set_axis_off()

    title = "Layer memory: a router mixes the slots of all layers so far for attention"
    description = (
        "Each layer writes a slot, its keys and values. The router of layer 3 returns a "
        "weighted sum of the slots of layers 0 to 3, which its attention reads by its query."
    )
    if attached:
        title = "Memory attached to a pretrained model: a router that begins as the identity"
        description = (
            "The router of layer 3 stands between the slots of layers 0 to 3 and the attention of "
            "the pretrained layer. It begins with weight 1 for the own slot and 0 for the others."
        )
    return on_own_ground(figures.drawing(draw, size=(6.0, 4.2)).svg, title, description)


_TOKENS, _TIME = {"condition": "tokens"}, {"condition": "time"}
PICTURES: Mapping[str, Callable[[], str]] = {
    "answers.svg": answers,
    "mechanism.svg": partial(scheme, attached=False),
    "retrofit.svg": partial(scheme, attached=True),
    "results/half_cache.svg": partial(caches, "quiet-books-half", "textbooks"),
    "results/half_cache_code.svg": partial(caches, "quiet-code-half", "source code"),
    "recipe_inside.svg": inside,
    "results/text.svg": partial(
        forest,
        "Differences in validation loss on text, with 95% intervals",
        Part(record="study-tiny-lm", said="source code, 400 steps, equal tokens", **_TOKENS),
        Part(record="study-tiny-lm", said="source code, 400 steps, equal time", **_TIME),
        Part(record="tiny-lm-gqa", said="source code, 400 steps, grouped queries"),
        Part(record="quiet-code-asked", said="source code, 1,600 steps, equal tokens", **_TOKENS),
        Part(record="quiet-code", said="source code, 1,600 steps, equal time", **_TIME),
        Part(record="quiet-books-equal-time", said="textbooks, 1,600 steps, equal time"),
        Part(record="quiet-books-longer", said="textbooks, 6,400 steps", **_TOKENS),
    ),
    "results/text_curves.svg": learning,
    "results/arithmetic.svg": partial(
        forest,
        "Differences in right answers on arithmetic, with 95% intervals",
        Part(record="study-tiny-aet-4", said="equal tokens", **_TOKENS),
        Part(record="study-tiny-aet-4", said="equal training time", **_TIME),
        Part(record="tiny-aet-6", said="6 operands"),
        Part(record="tiny-aet-6-to-500", said="6 operands, values to 500"),
        what=ANSWERS,
    ),
    "results/depth.svg": depths,
    "results/routers.svg": windows,
    "results/recall.svg": partial(
        forest,
        "Differences in right answers on recall, chains and ProsQA, with 95% intervals",
        Part(record="tiny-mqar-2-layers", said="recall, 2 layers"),
        Part(record="tiny-mqar-4-layers", said="recall, 4 layers"),
        Part(record="tiny-chains-2-layers", said="chains, 2 layers"),
        Part(record="tiny-chains-4-layers", said="chains, 4 layers"),
        Part(record="prosqa-after-lines", said="ProsQA"),
        what=ANSWERS,
    ),
    "results/retrofit.svg": partial(
        forest,
        "Differences in validation loss from plain continued training, with 95% intervals",
        Part(record="retrofit-smollm2", said="SmolLM2, equal tokens", **_TOKENS),
        Part(record="retrofit-smollm2", said="SmolLM2, equal training time", **_TIME),
        Part(record="retrofit-stories260K", said="stories260K, equal tokens", **_TOKENS),
    ),
    "results/encoders.svg": partial(
        forest,
        "Differences in right labels of small encoders, with 95% intervals",
        Part(record="encoders-qnli", said="QNLI"),
        Part(record="encoders-wnli", said="WNLI"),
        what=(ANSWERS[0], "against no memory (right is better)"),
    ),
    "results/evaluations.svg": positions,
    "results/costs.svg": prices,
    "results/paper.svg": verdicts,
}
"""Files below docs, and what draws each."""


if __name__ == "__main__":
    main()
