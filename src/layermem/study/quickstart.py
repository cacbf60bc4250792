"""Trains a plain decoder and LIMe on arithmetic from the same seed and data, in minutes.

    layermem quickstart

Both are trained at once and solve the same test set. One seed is a demonstration; what holds over
seeds is in docs/results.md.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from layermem import presets
from layermem.analysis.routing import mean_heatmap
from layermem.results.files import to_json
from layermem.results.quickstart import Attempt, QuickstartOptions, QuickstartResult
from layermem.runs import RunFolder, write_atomically
from layermem.study.boards import board_of, study_of_variants
from layermem.study.carrying_out import carry_out
from layermem.study.definition import Study
from layermem.typed_dicts import from_dict

logger = logging.getLogger(__name__)
VARIANTS = ("plain", "lime")
# Attempts of each kind that are shown.
_SHOWN = 3


def study_of_quickstart(options: QuickstartOptions) -> Study:
    """Return the study: half of ``tiny-aet-4`` by default."""
    base = presets.get_preset("tiny-aet-4")
    steps = max(1, options.epochs * options.examples // base.optim.batch_size)
    base = replace(
        base,
        max_steps=steps,
        eval_every=max(1, steps // 12),
        task=replace(base.task, examples=options.examples, test=options.test),
    )
    board = board_of(base, ",".join(VARIANTS), name="quickstart")
    return study_of_variants([board], [options.seed], ["tokens"])


def train_quickstart(
    options: QuickstartOptions, out: Path, *, jobs: int = 2, command: str = ""
) -> QuickstartResult:
    """Train the runs that have not ended; return the result, and write it to quickstart.json."""
    logger.info(
        "training both on %s expressions of 4 operands, %d epochs; some minutes on two cores",
        f"{options.examples:,}",
        options.epochs,
    )
    transformers_logging.disable_progress_bar()
    study, failure = carry_out(study_of_quickstart(options), out, jobs=jobs, command=command)
    runs = {run.arm: run for run in study.runs}
    for run in runs.values():
        if failure or run.solved is None:
            raise RuntimeError(failure or f"{run.folder} {run.state}: {run.note}")
    folders = {arm: RunFolder(run.folder) for arm, run in runs.items()}
    attempts = {arm: _read_attempts(folder) for arm, folder in folders.items()}
    prompts = [[attempt.prompt for attempt in each] for each in attempts.values()]
    if any(others != prompts[0] for others in prompts):
        raise ValueError(
            f"the runs in {out} did not solve the same problems, by their attempts.jsonl; choose "
            "another --out"
        )
    model = AutoModelForCausalLM.from_pretrained(folders["lime"].final)
    result = QuickstartResult(
        command=command,
        options=options,
        results={arm: run.solved for arm, run in runs.items() if run.solved},
        validations={arm: run.validations for arm, run in runs.items()},
        heatmap=tuple(map(tuple, mean_heatmap(model).tolist())),
        solved=_first_problems(attempts, solved=True),
        failed=_first_problems(attempts, solved=False),
    )
    write_atomically(out / "quickstart.json", to_json(result))
    return result


def _read_attempts(folder: RunFolder) -> list[Attempt]:
    lines = folder.attempts.read_text(encoding="utf-8").splitlines()
    return [from_dict(Attempt, json.loads(line), "") for line in lines]


def _first_problems(
    attempts: Mapping[str, list[Attempt]], *, solved: bool
) -> tuple[dict[str, Attempt], ...]:
    """Return both models' attempts at the first problems that LIMe solved, or failed."""
    chosen = [i for i, attempt in enumerate(attempts["lime"]) if attempt.steps is solved]
    return tuple(
        {variant: of_variant[i] for variant, of_variant in attempts.items()}
        for i in chosen[:_SHOWN]
    )
