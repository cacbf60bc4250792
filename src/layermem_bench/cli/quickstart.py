"""`layermem quickstart`: a plain decoder and LIMe learn arithmetic from one seed; a page about it.

The page is that of any study, and what LIMe's routers read.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from layermem_base.number_ranges import SEED, at_least, number
from layermem_bench.cli.screen import show, write

if TYPE_CHECKING:
    from layermem_bench.pages.page import Page
    from layermem_bench.studies.definition import Study
    from layermem_bench.studies.result import StudyResult

logger = logging.getLogger(__name__)
_FURTHER = "layermem study aet-4 --variants plain,lime --seeds 5 --jobs 2"
_SAID = (
    "One seed at the paper's learning rate: a demonstration, no evidence: docs/results.md. "
    "A plain decoder and LIMe, 4 layers of width 32, learnt to solve expressions step by step, "
    "with the same seed, data, order and shared first weights. After {steps:,} steps the plain "
    "decoder solves {plain:.0%} and LIMe {lime:.0%} of {count:,} expressions that neither has "
    "seen; a guess is worth {chance:.1%}."
)
_READING = "Row: a layer. Column: a layer that it reads. A plain decoder reads the diagonal alone."


@dataclass(frozen=True, kw_only=True)
class Quickstart:
    """Train a plain decoder and LIMe on arithmetic side by side, and write a page about it."""

    seed: int = number(0, SEED)
    """Seed of weights and order of the data, the same for both; 0 was not searched for."""
    epochs: int = number(6, at_least(1))
    """Passes over the expressions."""
    examples: int = number(20_000, at_least(1))
    """Expressions in the training set."""
    test: int = number(2_000, at_least(1))
    """Expressions in the test set."""
    out: Path | None = None
    """Folder of runs and page; default: runs/quickstart-sSEED."""
    jobs: int = number(2, at_least(1))
    """Runs at once."""


def quickstart(options: Quickstart, command: str) -> None:
    """Show the mechanism at work."""
    from layermem_bench.pages import study as report
    from layermem_bench.studies.carrying_out import carry_out
    from layermem_bench.studies.executors import Launching, executor_of

    out = options.out or Path("runs") / f"quickstart-s{options.seed}"
    study, launcher = _study(options), executor_of(Launching(jobs=options.jobs))
    logger.info("%s; some minutes on two cores", study.title)
    result, failure = carry_out(study, out, command, launcher)
    if failure:
        raise RuntimeError(failure)
    for table in report.tables(result):
        show(table)
    logger.info("\n%s\n", sentence(result))
    write(_page(result), out)
    logger.info("to go on: %s", _FURTHER)


def _study(options: Quickstart) -> "Study":
    """Return the study: half of ``tiny-aet-4`` by default."""
    from layermem_bench.presets import get_preset
    from layermem_bench.studies.boards import board_of, study_of_variants

    base = get_preset("tiny-aet-4")
    steps = max(1, options.epochs * options.examples // base.optim.batch_size)
    task = replace(base.task, examples=options.examples, test=options.test)
    base = replace(base, max_steps=steps, eval_every=max(1, steps // 12), task=task)
    board = board_of(base, "plain,lime", name="quickstart")
    sizes = f"{options.examples:,} expressions of 4 operands, {options.epochs} epochs"
    title = f"Arithmetic, with and without layer memory: {sizes}"
    return replace(study_of_variants([board], [options.seed], ["tokens"]), title=title)


def sentence(result: "StudyResult") -> str:
    """Say what the figures show, and first that they are no evidence."""
    solved = {run.arm: run.solved for run in result.runs if run.solved}
    about = {"chance": solved["lime"].chance, "count": solved["lime"].count}
    shares = {arm: each.accuracy for arm, each in solved.items()}
    return _SAID.format(**about, **shares, steps=result.runs[0].steps)


def _page(result: "StudyResult") -> "Page":
    """Return the page: the study's own, with what the routers read."""
    from transformers import AutoModelForCausalLM

    from layermem_bench.analysis.routing import mean_heatmap
    from layermem_bench.pages import figures
    from layermem_bench.pages import study as report
    from layermem_bench.pages.page import Section
    from layermem_bench.run.folder import RunFolder

    (lime,) = (run for run in result.runs if run.arm == "lime")
    model = AutoModelForCausalLM.from_pretrained(RunFolder(lime.folder).final)
    plot = figures.heatmap(mean_heatmap(model), across="source layer", up="layer")
    caption = "Absolute router weights, averaged over heads, each row divided by its sum."
    heatmap = figures.drawing(plot, caption, figures.SQUARE)
    read = Section("What LIMe's routers learnt to read", [_READING], figures=[heatmap])
    page = report.build(result)
    further = Section(title="Further", commands=_FURTHER)
    return replace(page, lead=sentence(result), sections=[read, *page.sections, further])
