"""The page about a quickstart, from what came out of it.

It does not know: torch, models, how anything was trained.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from layermem.report import figures
from layermem.report.page import Attempt, Figure, Page, Section, Table

NAMES = {"plain": "plain decoder", "lime": "LIMe"}
MEANING = (
    "What this shows: how far each is after the same few epochs. The paper finds both alike at 4 "
    "operands after 200 epochs, and a lasting gap at 5 and 6: so at 4 operands expect LIMe to "
    "learn faster, and no more. The learning rate is the paper's. One seed is a demonstration "
    "and no evidence; docs/results.md has seeds, intervals, and rates chosen for each."
)
_FAULTS = {
    "value": "a wrong result",
    "form": "not the expression before it with one operation carried out",
    "unreadable": "no expression",
    "unfinished": "ends before a number",
}
_SWEEPS = (
    "layermem sweep aet-4 --variants plain,lime --seeds 5 --jobs 2",
    "layermem sweep aet-6 --variants plain,lime --seeds 2 --jobs 2",
)


def table(found: Mapping[str, Any]) -> Table:
    """Return both models' shares with their intervals, and what a guess is worth."""
    rows = []
    for variant, result in found["results"].items():
        low, high = result["interval"]
        loss = found["validations"][variant][-1]["val_loss"]
        right = f"{result['accuracy']:.1%} ({low:.1%} to {high:.1%})"
        rows.append([NAMES[variant], right, f"{result['steps']:.1%}", f"{loss:.3f}"])
    rows.append(["commonest answer", f"{found['results']['lime']['chance']:.1%}", "", ""])
    return Table(
        header=["", "right answers (95% interval)", "every step right", "validation loss"],
        rows=rows,
        caption=_source(found),
    )


def build(found: Mapping[str, Any], command: str) -> Page:
    """Return the page."""
    return Page(
        title="Arithmetic, with and without layer memory",
        lead=(
            "A plain decoder and LIMe, 4 layers of width 32, learn to solve expressions of 4 "
            f"operands step by step: {found['examples']:,} expressions, {found['epochs']} epochs, "
            "the same seed, data, order and shared first weights."
        ),
        sections=[
            _solving(found),
            _learning(found),
            _reading(found),
            _attempts("The first three that LIMe solved", found["solved"]),
            _attempts("The first three that LIMe failed", found["failed"]),
            Section(title="Again, and further", commands=[command, *_SWEEPS]),
        ],
    )


def _source(found: Mapping[str, Any]) -> str:
    runs = ", ".join(result["run_id"] for result in found["results"].values())
    return f"Seed {found['seed']}, runs {runs}."


def _solving(found: Mapping[str, Any]) -> Section:
    results = found["results"]
    shares = {
        NAMES[variant]: (result["interval"][0], result["accuracy"], result["interval"][1])
        for variant, result in results.items()
    }
    return Section(
        title=f"{results['lime']['count']:,} expressions neither has seen",
        paragraphs=[MEANING],
        tables=[table(found)],
        figures=[
            Figure(
                svg=figures.bars(shares, up="right answers", chance=results["lime"]["chance"]),
                caption="Right final answers with 95% intervals over expressions, not over seeds. "
                "Dotted: always giving the commonest answer.",
            )
        ],
    )


def _learning(found: Mapping[str, Any]) -> Section:
    def curve(value: str) -> dict[str, tuple[list[float], list[float]]]:
        return {
            NAMES[variant]: ([row["step"] for row in rows], [row[value] for row in rows])
            for variant, rows in found["validations"].items()
        }

    loss = figures.curves(curve("val_loss"), across="steps", up="validation loss")
    right = figures.curves(curve("val_accuracy"), across="steps", up="right answers", scale="share")
    return Section(
        title="How they learn",
        figures=[
            Figure(svg=loss, caption=f"Loss on expressions set apart. {_source(found)}"),
            Figure(svg=right, caption=f"Right answers on the same. {_source(found)}"),
        ],
    )


def _reading(found: Mapping[str, Any]) -> Section:
    heatmap = figures.heatmap(np.array(found["heatmap"]), across="source layer", up="layer")
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
                f"sum. Run {found['results']['lime']['run_id']}.",
            )
        ],
    )


def _attempts(title: str, chosen: Sequence[Mapping[str, Any]]) -> Section:
    return Section(
        title=title,
        paragraphs=[] if chosen else ["There are none."],
        attempts=[
            Attempt(
                problem=by["lime"]["prompt"],
                expected=by["lime"]["solution"],
                written=[(NAMES[v], _text(attempt), _fault(attempt)) for v, attempt in by.items()],
            )
            for by in chosen
        ],
    )


def _text(attempt: Mapping[str, Any]) -> str:
    # The tokenizer joins with spaces.
    return str(attempt["text"]).replace("( ", "(").replace(" )", ")") or "(nothing)"


def _fault(attempt: Mapping[str, Any]) -> str:
    """Say what is wrong with the first bad step."""
    fault = attempt["fault"]
    return f"step {attempt['at']}, {_FAULTS.get(fault, fault)}" if fault else ""
