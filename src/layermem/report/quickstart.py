"""The page about a quickstart, from a ``QuickstartResult`` alone."""

from collections.abc import Mapping, Sequence

import numpy as np

from layermem.report import figures
from layermem.report.page import Attempt as ShownAttempt
from layermem.report.page import Figure, Page, Section, Table
from layermem.results.quickstart import Attempt, QuickstartResult

NAMES = {"plain": "plain decoder", "lime": "LIMe"}
_BACKGROUND = (
    "The learning rate is the paper's. One seed is a demonstration, no evidence. The paper finds "
    "both alike at 4 operands after 200 epochs, and a lasting gap at 5 and 6. docs/results.md has "
    "seeds, intervals, and rates chosen for each: with these, both solve 6 operands here."
)
_SAID = {
    "lime": "on this seed LIMe has learnt faster",
    "plain": "on this seed the plain decoder has learnt faster",
    None: "their intervals overlap, so that neither is seen ahead",
}
_FAULTS = {
    "value": "a wrong result",
    "form": "not the expression before it with one operation carried out",
    "unreadable": "no expression",
    "unfinished": "ends before a number",
}
_STUDIES = (
    "layermem study aet-4 --variants plain,lime --seeds 5 --jobs 2",
    "layermem study aet-6 --variants plain,lime --rates 3e-3 1e-2 --seeds 2 --jobs 2",
)


def table(result: QuickstartResult) -> Table:
    """Return both models' shares with their intervals, and what a guess is worth."""
    rows = []
    for variant, solved in result.results.items():
        low, high = solved.interval
        loss = result.validations[variant][-1].val_loss
        right = f"{solved.accuracy:.1%} ({low:.1%} to {high:.1%})"
        rows.append([NAMES[variant], right, f"{solved.steps:.1%}", f"{loss:.3f}"])
    rows.append(["commonest answer", f"{result.results['lime'].chance:.1%}", "", ""])
    return Table(
        header=["", "right answers (95% interval)", "every step right", "validation loss"],
        rows=rows,
        caption=_source(result),
    )


def ahead(result: QuickstartResult) -> str | None:
    """Return the variant with more right answers; None: the intervals of both overlap."""
    lime, plain = (result.results[variant].interval for variant in ("lime", "plain"))
    if lime[0] > plain[1]:
        return "lime"
    return "plain" if plain[0] > lime[1] else None


def meaning(result: QuickstartResult) -> str:
    """Say what the figures show, and what they do not."""
    shares = " and ".join(
        f"{NAMES[variant]} {solved.accuracy:.1%}" for variant, solved in result.results.items()
    )
    epochs = result.options.epochs
    said = _SAID[ahead(result)]
    return f"Right answers after {epochs} epochs: {shares}; {said}. {_BACKGROUND}"


def build(result: QuickstartResult) -> Page:
    """Return the page."""
    return Page(
        title="Arithmetic, with and without layer memory",
        lead=(
            "A plain decoder and LIMe, 4 layers of width 32, learn to solve expressions of 4 "
            f"operands step by step: {result.options.examples:,} expressions, "
            f"{result.options.epochs} epochs, the same seed, data, order and shared first weights."
        ),
        sections=[
            _solving(result),
            _learning(result),
            _reading(result),
            _attempts("The first three that LIMe solved", result.solved),
            _attempts("The first three that LIMe failed", result.failed),
            Section(title="Again, and further", commands=[result.command, *_STUDIES]),
        ],
    )


def _source(result: QuickstartResult) -> str:
    runs = ", ".join(str(solved.run_id) for solved in result.results.values())
    return f"Seed {result.options.seed}, runs {runs}."


def _solving(result: QuickstartResult) -> Section:
    shares = {
        NAMES[variant]: (solved.interval[0], solved.accuracy, solved.interval[1])
        for variant, solved in result.results.items()
    }
    lime = result.results["lime"]
    return Section(
        title=f"{lime.count:,} expressions neither has seen",
        paragraphs=[meaning(result)],
        tables=[table(result)],
        figures=[
            Figure(
                svg=figures.bars(shares, up="right answers", chance=lime.chance),
                caption="Right final answers with 95% intervals over expressions, not over seeds. "
                "Dotted: always giving the commonest answer.",
            )
        ],
    )


def _learning(result: QuickstartResult) -> Section:
    losses = {
        NAMES[variant]: ([v.step for v in validations], [v.val_loss for v in validations])
        for variant, validations in result.validations.items()
    }
    shares = {
        NAMES[variant]: ([v.step for v, _ in solved], [accuracy for _, accuracy in solved])
        for variant, validations in result.validations.items()
        if (solved := [(v, v.val_accuracy) for v in validations if v.val_accuracy is not None])
    }
    loss = figures.curves(losses, across="steps", up="validation loss")
    right = figures.curves(shares, across="steps", up="right answers", scale="share")
    return Section(
        title="How they learn",
        figures=[
            Figure(svg=loss, caption=f"Loss on expressions set apart. {_source(result)}"),
            Figure(svg=right, caption=f"Right answers on the same. {_source(result)}"),
        ],
    )


def _reading(result: QuickstartResult) -> Section:
    heatmap = figures.heatmap(np.array(result.heatmap), across="source layer", up="layer")
    return Section(
        title="What LIMe's routers learnt to read",
        paragraphs=[
            "Each row is a layer, each column a layer whose keys and values it reads. A plain "
            "decoder would have ones on the diagonal and nothing else."
        ],
        figures=[
            Figure(
                svg=heatmap,
                caption="Absolute router weights, averaged over heads, each row divided by its "
                f"sum. Run {result.results['lime'].run_id}.",
            )
        ],
    )


def _attempts(title: str, chosen: Sequence[Mapping[str, Attempt]]) -> Section:
    return Section(
        title=title,
        paragraphs=[] if chosen else ["There are none."],
        attempts=[
            ShownAttempt(
                problem=by_variant["lime"].prompt,
                expected=by_variant["lime"].solution,
                written=[
                    (NAMES[variant], _text(attempt), _describe_fault(attempt))
                    for variant, attempt in by_variant.items()
                ],
            )
            for by_variant in chosen
        ],
    )


def _text(attempt: Attempt) -> str:
    # The tokenizer joins with spaces.
    return attempt.text.replace("( ", "(").replace(" )", ")") or "(nothing)"


def _describe_fault(attempt: Attempt) -> str:
    """Say what is wrong with the first wrong step; nothing if none is."""
    if not attempt.fault:
        return ""
    return f"step {attempt.at}, {_FAULTS.get(attempt.fault, attempt.fault)}"
