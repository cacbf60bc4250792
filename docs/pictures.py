"""Draw the pictures of the pages from what was recorded: python THIS_FILE.

Each is a file below docs, with a title and a description in words; docs/notebook_page.py draws
those of the notebook.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch
from results_tables import answer, questions

from layermem_bench.paper import names
from layermem_bench.report import analysis, drawings, figures
from layermem_bench.report.numbers import format_interval
from layermem_bench.report.paper_tables import claim_text
from layermem_bench.results.analysis import Analysis
from layermem_bench.results.comparing import Verdict, judge, lines_of
from layermem_bench.results.eval import EvalResult
from layermem_bench.results.files import read_result
from layermem_bench.results.intervals import Interval, interval, paired
from layermem_bench.results.study import ABOVE_PLAIN, LOSS, StudyResult

DOCS = Path(__file__).parent
RECORDS = DOCS / "records"
ANSWERS = ("right answers", "against plain's (right is better)")
LOSSES = (LOSS, "validation loss minus plain's (left is better)")


@dataclass(frozen=True, kw_only=True)
class Part:
    """Arms of a record whose differences from its first arm are drawn."""

    record: str
    said: str
    """What stands behind the name of an arm; with {arm}, in its place."""
    board: str = ""
    """Of a record with several boards; empty: the only one."""
    condition: str = "recorded"
    arms: Sequence[str] = ()
    """Empty: all."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A drawing, and what it shows in words."""

    svg: str
    title: str
    description: str

    def text(self) -> str:
        """Return the text of its file."""
        return figures.on_own_ground(self.svg, self.title, self.description)


def main() -> None:
    for name, draw in PICTURES.items():
        (DOCS / name).write_text(draw(), encoding="utf-8")


def differences(part: Part, metric: str) -> Iterator[tuple[str, str, Interval]]:
    """Yield a label, the arm and its difference from the first arm, for each that is drawn."""
    result, count = read_result(StudyResult, RECORDS / f"{part.record}.json"), 0
    for board in result.boards:
        for condition in board.conditions:
            if part.board not in ("", board.name) or part.condition != condition.name:
                continue
            for line in lines_of(result, board, condition, metric):
                is_chosen = not part.arms or line.arm in part.arms
                if line.difference is not None and is_chosen:
                    has_place = "{arm}" in part.said
                    label = part.said if has_place else f"{{arm}}, {part.said}"
                    yield label.format(arm=line.arm), line.arm, line.difference
                    count += 1
    if not count:
        raise SystemExit(f"{part.record} has no difference for {part}; name its condition")


def forest(title: str, parts: Sequence[Part], what: tuple[str, str] = LOSSES) -> str:
    """Draw differences of arms from the plain decoder, one below the other."""
    metric, across = what
    found = [each for part in parts for each in differences(part, metric)]
    return drawn_forest(title, found, is_share=metric != LOSS, across=across)


def drawn_forest(
    title: str, found: Sequence[tuple[str, str, Interval]], *, is_share: bool, across: str
) -> str:
    """Draw named intervals in the colours of their arms."""
    return drawn_forests(title, {"": found}, is_share=is_share, across=across)


def drawn_forests(
    title: str,
    parts: Mapping[str, Sequence[tuple[str, str, Interval]]],
    *,
    is_share: bool,
    across: str,
) -> str:
    """Draw named intervals in the colours of their arms, each part on an axis of its own."""
    found = [each for of_part in parts.values() for each in of_part]
    if len({label for label, _, _ in found}) < len(found):
        raise SystemExit(f"{title}: two rows have one name: {[label for label, _, _ in found]}")
    styles = figures.styles_of(arm for _, arm, _ in found)
    svg = figures.forests(
        {name: {label: each for label, _, each in of_part} for name, of_part in parts.items()},
        is_share=is_share,
        across=across,
        styles={label: styles[arm] for label, arm, _ in found},
    )
    said = [f"{label}: {format_interval(each, is_share, '+')}" for label, _, each in found]
    return Picture(svg=svg, title=title, description="; ".join(said)).text()


def answers() -> str:
    """Draw the answers in validation loss: early ones are much larger than later ones."""
    parts: dict[str, list[tuple[str, str, Interval]]] = {"after 400 steps": [], "later": []}
    # Memory that is attached, and trained with all weights, is LIMe's.
    arms = {"all": "lime"}
    for each in map(partial(answer, records=RECORDS), questions()):
        asked = each.question
        if asked.metric == LOSS and each.line and each.line.difference:
            part = "after 400 steps" if asked.stage == "early" else "later"
            # At equal time an arm is named by its steps, and looks as it does elsewhere.
            arm = asked.arm.partition(":max_steps=")[0]
            parts[part].append((asked.asks, arms.get(arm, arm), each.line.difference))
    title = "Differences in validation loss with 95% intervals"
    return drawn_forests(title, parts, is_share=False, across=LOSSES[1])


def depths() -> str:
    """Draw the loss of both variants by depth."""
    rows = read_result(StudyResult, RECORDS / "artefacts" / "fig6-tiny.json").rows
    by_arm: dict[str, dict[int, Interval]] = {}
    for row in rows:
        arm, layers = row.arm.removesuffix(" layers").split(", ")
        by_arm.setdefault(arm, {})[int(layers)] = interval(list(row.by_seed.values()))
    series, bands = {}, {}
    for arm, of_arm in by_arm.items():
        series[arm] = list(of_arm), [each.mean for each in of_arm.values()]
        bands[arm] = (
            [each.mean - each.half for each in of_arm.values()],
            [each.mean + each.half for each in of_arm.values()],
        )
    plot = figures.curves(series, across="layers", up=LOSS, bands=bands)
    said = (
        f"{arm}, {layers} layers: {format_interval(each, False)}"
        for arm, of_arm in by_arm.items()
        for layers, each in of_arm.items()
    )
    title = "Validation loss by depth, means of three seeds with 95% intervals"
    svg = figures.drawing(plot)
    return Picture(svg=svg, title=title, description="; ".join(said)).text()


def windows() -> str:
    """Draw what routers of other sources come to, beside the full router."""
    result = read_result(StudyResult, RECORDS / "artefacts" / "table7-tiny.json")
    found = [
        (claim_text(each), each.claim.arm, each.difference)
        for each in judge(result)
        if each.difference is not None and "perplexity" in each.claim.quantity
    ]
    title = "Differences in validation perplexity that the paper claims, with 95% intervals"
    return drawn_forest(title, found, is_share=False, across="difference (left is better)")


def positions() -> str:
    """Draw the loss of LIMe against the plain decoder's, by the tokens before."""
    result = read_result(EvalResult, RECORDS / "tiny-lm-4x-perplexity.json")
    found = []
    for name, row in result.of("loss").items():
        if not name.startswith("after"):
            continue
        ours, plain = (
            [row.scores[model].value for model in result.arms[arm]] for arm in ("lime", "plain")
        )
        found.append((f"lime, {name}", "lime", paired(ours, plain)))
    title = "Loss of LIMe against the plain decoder's by position in the window, 95% intervals"
    across = "nats a token minus plain's (left is better)"
    return drawn_forest(title, found, is_share=False, across=across)


def prices() -> str:
    """Draw what a step takes above the plain decoder's."""
    result = read_result(StudyResult, RECORDS / "artefacts" / "table9-tiny.json")
    found = [
        (
            f"{row.arm}, {row.metric.replace(ABOVE_PLAIN, '')}",
            row.arm,
            interval(list(row.by_seed.values())),
        )
        for row in result.rows
        if ABOVE_PLAIN in row.metric and row.arm != "plain"
    ]
    title = "Time and peak memory of a training step above the plain decoder's, 95% intervals"
    return drawn_forest(title, found, is_share=True, across="above plain (left is better)")


def verdicts() -> str:
    """Draw how many of the paper's differences hold, for each of its tables and figures."""
    counts: dict[str, Counter[str]] = {}
    for name in names():
        for scale in ("paper", "small", "tiny"):
            path = RECORDS / "artefacts" / f"{name}-{scale}.json"
            if path.exists():
                of_name = Counter[str](
                    each.verdict for each in judge(read_result(StudyResult, path))
                )
                if of_name:
                    counts[name] = of_name
                break
    verdicts = get_args(Verdict)

    def draw(axes: Axes) -> None:
        for verdict, colour in zip(verdicts, ("#2a9d5c", "#d9622b", "#7a8594"), strict=True):
            widths = [counts[name][verdict] for name in counts]
            before = [
                sum(counts[name][other] for other in verdicts[: verdicts.index(verdict)])
                for name in counts
            ]
            axes.barh(range(len(counts)), widths, left=before, color=colour, label=verdict)
        axes.set_yticks(range(len(counts)), list(counts))
        axes.invert_yaxis()
        axes.set(xlabel="differences that the paper claims")
        figures.count_across(axes)
        axes.legend(frameon=False)

    total = sum(counts.values(), Counter[str]())
    said = "; ".join(f"{verdict}: {total[verdict]}" for verdict in verdicts)
    title = "Verdicts on the differences that each table and figure of the paper claims"
    svg = figures.drawing(draw, (6.0, 4.2))
    return Picture(svg=svg, title=title, description=said).text()


def caches(record: str, text: str) -> str:
    """Draw the loss of a record's arms on a text against what their caches hold."""
    result = read_result(StudyResult, RECORDS / f"{record}.json")
    (board,) = result.boards
    (condition,) = board.conditions
    held = {arm: cache.held for point in board.costs.points for arm, cache in point.cache.items()}
    points = {
        line.arm: (2.0 * held[line.arm], line.mean)
        for line in lines_of(result, board, condition, LOSS)
        if line.mean is not None
    }
    across = "bytes of the cache for a token, in bfloat16"
    svg = figures.against(points, across=across, up=LOSS)
    said = (f"{arm}: {x:.0f} bytes, {format_interval(y, False)}" for arm, (x, y) in points.items())
    title = f"Validation loss on {text} against the bytes of the cache, with 95% intervals"
    return Picture(svg=svg, title=title, description="; ".join(said)).text()


def learning() -> str:
    """Draw how arms learn, mean over seeds."""
    result = read_result(StudyResult, RECORDS / "tiny-lm-16x.json")
    (board,) = result.boards
    first, *_ = drawings.learning_curves(result, board)
    title = "Learning curves on textbooks, five seeds"
    return Picture(svg=first.svg, title=title, description=first.caption).text()


def inside() -> str:
    """Draw what goes on inside the recipe, as ``layermem analyze --figure`` does.

    Of the layouts of words the record has the last layer's, which alone is drawn.
    """
    with TemporaryDirectory() as folder:
        out = Path(folder) / "inside.svg"
        analysis.draw(read_result(Analysis, RECORDS / "inside" / "recipe.json"), out)
        return out.read_text(encoding="utf-8")


def scheme(*, attached: bool) -> str:
    """Draw slots, a router and attention; ``attached``: as memory begins in a pretrained model."""
    last = 3
    blue, orange = (figures.STYLES[i][0] for i in figures.styles_of(["plain", "lime"]).values())
    # Widths of what the router reads: an example, and the identity.
    widths = {0: 1.2, 1: 1.2, 2: 1.2, 3: 3.0} if attached else {0: 3.0, 1: 1.0, 2: 1.6, 3: 2.4}

    def box(axes: Axes, x: float, y: float, width: float, text: str, colour: str = "") -> None:
        axes.add_patch(
            FancyBboxPatch(
                *((x, y), width, 1.0),
                boxstyle="round,pad=0.08",
                edgecolor=colour or figures.INK,
                facecolor=f"{colour}33" if colour else "none",
            )
        )
        axes.text(x + width / 2, y + 0.5, text, ha="center", va="center")

    def arrow(
        axes: Axes, start: tuple[float, float], end: tuple[float, float], **look: object
    ) -> None:
        style = {"arrowstyle": "-|>", "color": figures.INK, "shrinkA": 0, "shrinkB": 0, **look}
        axes.annotate("", end, start, arrowprops=style)

    def draw(axes: Axes) -> None:
        heights = {layer: 1.75 * layer for layer in range(last + 1)}
        for layer, y in heights.items():
            box(axes, 0.0, y, 2.3, f"pretrained\nlayer {layer}" if attached else f"layer {layer}")
            box(axes, 3.5, y, 2.1, f"slot {layer}\nkeys, values", blue)
            arrow(axes, (2.4, y + 0.5), (3.4, y + 0.5))
            if layer:
                arrow(axes, (1.15, y - 0.66), (1.15, y - 0.1))
            is_dashed = attached and layer < last
            look = {"linewidth": widths[layer], "linestyle": "--" if is_dashed else "-"}
            arrow(
                axes, (5.7, y + 0.5), (7.1, heights[last] + 0.2 + 0.2 * layer), color=orange, **look
            )
        top = heights[last]
        router = "router, new:\nthe identity" if attached else "router:\nweighted sum"
        box(axes, 7.2, top, 2.0, router, orange)
        box(axes, 7.2, top + 1.75, 2.0, f"attention of\nlayer {last}")
        arrow(axes, (8.2, top + 1.1), (8.2, top + 1.65))
        axes.text(8.35, top + 1.35, "keys, values", va="center")
        arrow(
            axes, (1.15, top + 1.1), (7.1, top + 2.25), connectionstyle="angle,angleA=90,angleB=0"
        )
        axes.text(1.3, top + 2.4, "query", va="bottom")
        notes = (
            ("dashed: weight 0,", "solid: weight 1,", "at the start")
            if attached
            else ("every layer above", "the first has a", "router of its own")
        )
        axes.text(7.2, 1.6, "\n".join(notes), va="top")
        axes.set(xlim=(-0.2, 10.4), ylim=(-0.3, top + 3.0), xticks=[], yticks=[])
        axes.set_axis_off()

    if attached:
        title = "Memory attached to a pretrained model: a router that begins as the identity"
        description = (
            "The router of layer 3 stands between the slots of layers 0 to 3 and the attention of "
            "the pretrained layer. It begins with weight 1 for the own slot and 0 for the others."
        )
    else:
        title = "Layer memory: a router mixes the slots of all layers so far for attention"
        description = (
            "Each layer writes a slot, its keys and values. The router of layer 3 returns a "
            "weighted sum of the slots of layers 0 to 3, which its attention reads by its query."
        )
    svg = figures.drawing(draw, (6.0, 4.2))
    return Picture(svg=svg, title=title, description=description).text()


_FAMILY = "study-tiny-lm"
_SUMS = "study-tiny-aet-4"
_NARROW, _WIDE = "code-8x32-400", "code-8x64-400"
_LENGTHS = "arena-lengths"
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
        (
            Part(record=_FAMILY, condition="tokens", said="equal tokens"),
            Part(record=_FAMILY, condition="time", said="equal training time"),
            Part(record="tiny-lm-gqa", said="grouped queries"),
            Part(record="tiny-lm-16x", said="6,400 steps"),
        ),
    ),
    "results/text_curves.svg": learning,
    "results/arena.svg": partial(
        forest,
        "Differences in validation loss at two widths, with 95% intervals",
        (
            Part(record="arena-400", board=_NARROW, condition="tokens", said="width 32"),
            Part(record="arena-400", board=_WIDE, condition="tokens", said="width 64"),
        ),
    ),
    "results/arena_lengths.svg": partial(
        forest,
        "Differences in validation loss after two lengths, with 95% intervals",
        (
            Part(record=_LENGTHS, board="code-8x64-400", condition="tokens", said="400 steps"),
            Part(record=_LENGTHS, board="code-8x64-1600", condition="tokens", said="1,600 steps"),
        ),
    ),
    "results/arithmetic.svg": partial(
        forest,
        "Differences in right answers on arithmetic, with 95% intervals",
        (
            Part(record=_SUMS, condition="tokens", said="equal tokens"),
            Part(record=_SUMS, condition="time", said="equal training time"),
            Part(record="tiny-aet-6", said="6 operands"),
            Part(record="tiny-aet-6-to-500", said="6 operands, values to 500"),
        ),
        ANSWERS,
    ),
    "results/depth.svg": depths,
    "results/routers.svg": windows,
    "results/recall.svg": partial(
        forest,
        "Differences in right answers on recall, chains and ProsQA, with 95% intervals",
        (
            Part(record="tiny-mqar-2-layers", said="recall, 2 layers"),
            Part(record="tiny-mqar-4-layers", said="recall, 4 layers"),
            Part(record="tiny-chains-2-layers", said="chains, 2 layers"),
            Part(record="tiny-chains-4-layers", said="chains, 4 layers"),
            Part(record="prosqa-after-lines", said="ProsQA"),
        ),
        ANSWERS,
    ),
    "results/retrofit.svg": partial(
        forest,
        "Differences in validation loss from plain continued training, with 95% intervals",
        (
            Part(record="retrofit-smollm2", condition="tokens", said="SmolLM2, {arm}"),
            Part(record="retrofit-smollm2", condition="time", said="SmolLM2, {arm}, equal time"),
            Part(record="retrofit-stories260K", condition="tokens", said="stories, {arm}"),
        ),
    ),
    "results/encoders.svg": partial(
        forest,
        "Differences in right labels of small encoders, with 95% intervals",
        (
            Part(record="encoders-qnli", said="{arm} memory, QNLI"),
            Part(record="encoders-wnli", said="{arm} memory, WNLI"),
        ),
        (ANSWERS[0], "against no memory (right is better)"),
    ),
    "results/evaluations.svg": positions,
    "results/costs.svg": prices,
    "results/paper.svg": verdicts,
}
"""Files below docs, and what draws each."""


if __name__ == "__main__":
    main()
