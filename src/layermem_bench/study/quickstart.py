"""The quickstart: a plain decoder and LIMe learn arithmetic from one seed, and the page about it.

The page is that of any study, with what the models wrote and what LIMe's routers read.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transformers import AutoModelForCausalLM

from layermem_bench import presets
from layermem_bench.analysis.routing import mean_heatmap
from layermem_bench.report import figures
from layermem_bench.report import study as report
from layermem_bench.report.page import Attempt, Figure, Page, Section, Table
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.results.solved import Solved
from layermem_bench.results.study import RunRecord, StudyResult
from layermem_bench.study.boards import board_of, study_of_variants
from layermem_bench.study.definition import Study

NAMES = {"plain": "plain decoder", "lime": "LIMe"}
"""What the variants are called on the page."""
FURTHER = (
    "layermem study aet-4 --variants plain,lime --seeds 5 --jobs 2",
    "layermem study aet-6 --variants plain,lime --rates 3e-3 1e-2 --seeds 2 --jobs 2",
)
"""Commands that go on from here."""
ACTIVATE = ". .venv/bin/activate"
"""What puts the command layermem on the path, where `make quickstart` has installed it."""
_BACKGROUND = (
    "One seed at the paper's learning rate is a demonstration, no evidence: docs/results.md has "
    "seeds, intervals and a rate chosen for each, with which both solve 6 operands."
)
_BEGINNING = (
    "A plain decoder and LIMe, 4 layers of width 32, learnt to solve expressions step by step, "
    "with the same seed, data, order and shared first weights."
)
_SAID = {
    "lime": "On this seed LIMe has learnt faster.",
    "plain": "On this seed the plain decoder has learnt faster.",
    None: "Their intervals overlap, so that neither is seen ahead.",
}
_FAULTS = {
    "value": "a wrong result",
    "form": "not the expression before it with one operation carried out",
    "unreadable": "no expression",
    "unfinished": "ends before a number",
}
# Attempts of each kind that are shown.
_SHOWN = 3
Row = Mapping[str, Any]
"""A line of attempts.jsonl."""


def study_of_quickstart(*, seed: int, epochs: int, examples: int, test: int) -> Study:
    """Return the study: half of ``tiny-aet-4`` by default."""
    base = presets.get_preset("tiny-aet-4")
    steps = max(1, epochs * examples // base.optim.batch_size)
    base = replace(
        base,
        max_steps=steps,
        eval_every=max(1, steps // 12),
        task=replace(base.task, examples=examples, test=test),
    )
    board = board_of(base, ",".join(NAMES), name="quickstart")
    study = study_of_variants([board], [seed], ["tokens"])
    sizes = f"{examples:,} expressions of 4 operands, {epochs} epochs"
    return replace(study, title=f"Arithmetic, with and without layer memory: {sizes}")


def table(result: StudyResult) -> Table:
    """Return both models' shares with their intervals, and what a guess is worth."""
    rows = []
    for variant, (run, solved) in _runs(result).items():
        low, high = solved.interval
        right = f"{solved.accuracy:.1%} ({low:.1%} to {high:.1%})"
        loss = run.validations[-1].val_loss
        rows.append([NAMES[variant], right, f"{solved.steps:.1%}", f"{loss:.3f}"])
    rows.append(["commonest answer", f"{solved.chance:.1%}", "", ""])
    return Table(
        header=["", "right answers (95% interval)", "every step right", "validation loss"],
        rows=rows,
        caption=f"{solved.count:,} expressions that neither has seen, seed {run.seed}.",
    )


def ahead(plain: Solved, lime: Solved) -> str | None:
    """Return the variant with more right answers; None: the intervals of both overlap."""
    if lime.interval[0] > plain.interval[1]:
        return "lime"
    return "plain" if plain.interval[0] > lime.interval[1] else None


def sentence(result: StudyResult) -> str:
    """Say in four sentences what the figures show, and what they do not."""
    runs = _runs(result)
    solved = {variant: each for variant, (_, each) in runs.items()}
    shares = " and ".join(f"{NAMES[v]} {each.accuracy:.1%}" for v, each in solved.items())
    guess = f"a guess is worth {solved['lime'].chance:.1%}"
    return (
        f"{_BEGINNING} After {runs['lime'][0].steps:,} steps right answers are {shares}; {guess}. "
        f"{_SAID[ahead(**solved)]} {_BACKGROUND}"
    )


def build(result: StudyResult) -> Page:
    """Return the page: the study's own, with both models' attempts and what the routers read."""
    further = [
        _reading(_runs(result)["lime"][0]),
        *attempt_sections(result),
    ]
    page = report.build(result, further)
    last = Section(title="Further", commands=[ACTIVATE, *FURTHER])
    sections = [_solving(result), *page.sections, last]
    return replace(page, lead=sentence(result), sections=sections)


def _runs(result: StudyResult) -> dict[str, tuple[RunRecord, Solved]]:
    """Return the run of each variant and what it solves; raise where one has not ended."""
    runs = {}
    for run in result.runs:
        if run.solved is None:
            raise RuntimeError(f"{run.folder} {run.state}: {run.note}")
        runs[run.arm] = run, run.solved
    return runs


def _solving(result: StudyResult) -> Section:
    shares = {
        NAMES[variant]: (solved.interval[0], solved.accuracy, solved.interval[1])
        for variant, (_, solved) in _runs(result).items()
    }
    _, solved = _runs(result)["lime"]
    bars = Figure(
        svg=figures.bars(shares, up="right answers", chance=solved.chance),
        caption="Right final answers with 95% intervals over expressions, not over seeds. Dotted: "
        "always giving the commonest answer.",
    )
    return Section(
        title=f"{solved.count:,} expressions that neither has seen",
        tables=[table(result)],
        figures=[bars],
    )


def _reading(run: RunRecord) -> Section:
    model = AutoModelForCausalLM.from_pretrained(RunFolder(run.folder).final)
    heatmap = Figure(
        svg=figures.heatmap(mean_heatmap(model), across="source layer", up="layer"),
        caption="Absolute router weights, averaged over heads, each row divided by its sum. Run "
        f"{run.run_id}.",
    )
    return Section(
        title="What LIMe's routers learnt to read",
        paragraphs=[
            "Each row is a layer, each column a layer whose keys and values it reads. A plain "
            "decoder would have ones on the diagonal and nothing else."
        ],
        figures=[heatmap],
    )


def _read_attempts(run: RunRecord) -> dict[str, Row]:
    """Return the attempts of a run by their problems."""
    lines = RunFolder(run.folder).attempts.read_text(encoding="utf-8").splitlines()
    return {row["prompt"]: row for row in map(json.loads, lines)}


def attempt_sections(result: StudyResult) -> list[Section]:
    """Return both models' attempts at the first problems that LIMe solved, and that it failed."""
    attempts = {variant: _read_attempts(run) for variant, (run, _) in _runs(result).items()}
    sections = []
    for kind, solved in (("solved", True), ("failed", False)):
        chosen = [row for row in attempts["lime"].values() if row["steps"] is solved][:_SHOWN]
        shown = [
            Attempt(
                problem=row["prompt"],
                expected=row["solution"],
                written=[
                    (NAMES[variant], *_written(of_variant[row["prompt"]]))
                    for variant, of_variant in attempts.items()
                ],
            )
            for row in chosen
        ]
        sections.append(
            Section(
                title=f"The first three that LIMe {kind}",
                paragraphs=[] if chosen else ["There are none."],
                attempts=shown,
            )
        )
    return sections


def _written(attempt: Row) -> tuple[str, str]:
    """Return what a model wrote, and what is wrong with its first wrong step, if any is."""
    # The tokenizer joins with spaces.
    text = attempt["text"].replace("( ", "(").replace(" )", ")") or "(nothing)"
    fault = attempt.get("fault")
    return text, f"step {attempt['at']}, {_FAULTS.get(fault, fault)}" if fault else ""
