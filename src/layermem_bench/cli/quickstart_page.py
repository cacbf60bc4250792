"""The quickstart: a plain decoder and LIMe learn arithmetic from one seed, and the page about it.

The page is that of any study, with both models' shares and what LIMe's routers read.
"""

from dataclasses import replace

from transformers import AutoModelForCausalLM

from layermem_bench import presets
from layermem_bench.analysis.routing import mean_heatmap
from layermem_bench.pages import figures
from layermem_bench.pages import study as report
from layermem_bench.pages.page import Page, Section, Table
from layermem_bench.run.folder import RunFolder
from layermem_bench.run.solved import Solved
from layermem_bench.studies.boards import board_of, study_of_variants
from layermem_bench.studies.definition import Study
from layermem_bench.studies.result import RunRecord, StudyResult

NAMES = {"plain": "plain decoder", "lime": "LIMe"}
"""What the variants are called on the page."""
FURTHER = (
    "layermem study aet-4 --variants plain,lime --seeds 5 --jobs 2",
    "layermem study aet-6 --variants plain,lime --rates 3e-3 1e-2 --seeds 2 --jobs 2",
)
"""Commands that go on from here."""
ACTIVATE = ". .venv/bin/activate"
"""What puts the command layermem on the path, where `make quickstart` has installed it."""
_SAID = (
    "A plain decoder and LIMe, 4 layers of width 32, learnt to solve expressions step by step, "
    "with the same seed, data, order and shared first weights. After {steps:,} steps right answers "
    "are plain decoder {plain:.1%} and LIMe {lime:.1%}; a guess is worth {chance:.1%}. {ahead} One "
    "seed at the paper's learning rate is a demonstration, no evidence: docs/results.md has seeds, "
    "intervals and a rate chosen for each, with which both solve 6 operands."
)
_AHEAD = {
    "lime": "On this seed LIMe has learnt faster.",
    "plain": "On this seed the plain decoder has learnt faster.",
    "neither": "Their intervals overlap, so that neither is seen ahead.",
}
_READING = (
    "Each row is a layer, each column a layer whose keys and values it reads. A plain decoder "
    "would have ones on the diagonal and nothing else."
)


def study_of_quickstart(*, seed: int, epochs: int, examples: int, test: int) -> Study:
    """Return the study: half of ``tiny-aet-4`` by default."""
    base = presets.get_preset("tiny-aet-4")
    steps = max(1, epochs * examples // base.optim.batch_size)
    task = replace(base.task, examples=examples, test=test)
    base = replace(base, max_steps=steps, eval_every=max(1, steps // 12), task=task)
    board = board_of(base, ",".join(NAMES), name="quickstart")
    sizes = f"{examples:,} expressions of 4 operands, {epochs} epochs"
    title = f"Arithmetic, with and without layer memory: {sizes}"
    return replace(study_of_variants([board], [seed], ["tokens"]), title=title)


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


def sentence(result: StudyResult) -> str:
    """Say in four sentences what the figures show, and what they do not."""
    runs = _runs(result)
    (run, plain), (_, lime) = runs["plain"], runs["lime"]
    shares = {"plain": plain.accuracy, "lime": lime.accuracy, "chance": lime.chance}
    ahead = "neither"
    if lime.interval[0] > plain.interval[1] or plain.interval[0] > lime.interval[1]:
        ahead = "lime" if lime.accuracy > plain.accuracy else "plain"
    return _SAID.format(steps=run.steps, ahead=_AHEAD[ahead], **shares)


def build(result: StudyResult) -> Page:
    """Return the page: the study's own, with both models' shares and what the routers read."""
    page, ours = report.build(result), [_solving(result), _reading(_runs(result)["lime"][0])]
    last = Section(title="Further", commands=[ACTIVATE, *FURTHER])
    return replace(page, lead=sentence(result), sections=[*ours, *page.sections, last])


def _runs(result: StudyResult) -> dict[str, tuple[RunRecord, Solved]]:
    """Return the run of each variant and what it solves; raise where one has not ended."""
    runs = {}
    for run in result.runs:
        if run.solved is None:
            raise RuntimeError(f"{run.folder} {run.state}: {run.note}")
        runs[run.arm] = run, run.solved
    return runs


def _solving(result: StudyResult) -> Section:
    shares = {}
    for arm, (_, solved) in _runs(result).items():
        shares[NAMES[arm]] = solved.interval[0], solved.accuracy, solved.interval[1]
    caption = (
        "Right final answers with 95% intervals over expressions, not over seeds. Dotted: always "
        "giving the commonest answer."
    )
    across = "right answers"
    bars = figures.forest(shares, caption, is_share=True, across=across, line=solved.chance)
    title = f"{solved.count:,} expressions that neither has seen"
    return Section(title=title, tables=[table(result)], figures=[bars])


def _reading(run: RunRecord) -> Section:
    model = AutoModelForCausalLM.from_pretrained(RunFolder(run.folder).final)
    plot = figures.heatmap(mean_heatmap(model), across="source layer", up="layer")
    caption = "Absolute router weights, averaged over heads, each row divided by its sum."
    heatmap = figures.drawing(plot, caption, figures.SQUARE)
    title = "What LIMe's routers learnt to read"
    return Section(title=title, paragraphs=[_READING], figures=[heatmap])
