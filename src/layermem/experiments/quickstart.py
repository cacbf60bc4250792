"""The effect in minutes: a plain decoder and LIMe learn arithmetic from the same seed and data.

    layermem quickstart

Both are trained at once and solve the same expressions they have not seen. One seed is a
demonstration; what holds over seeds is in docs/results.md.

It does not know: how a run is done, tables, pages.
"""

import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from layermem.analysis.routing import mean_heatmap
from layermem.config import Run
from layermem.experiments import presets
from layermem.experiments.sweep import complete
from layermem.runs import RunFolder, write_atomically

logger = logging.getLogger(__name__)
VARIANTS = ("plain", "lime")
# Attempts of each kind that are shown.
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Quickstart:
    """Train a plain decoder and LIMe on arithmetic side by side, and write a page about it."""

    out: Path | None = None
    """Folder of runs and page; default: runs/quickstart-sSEED."""
    seed: int = 0
    """Seed of weights and order of the data, the same for both; 0 was not searched for."""
    epochs: int = 6
    """Passes over the expressions."""
    examples: int = 20_000
    """Expressions to learn from."""
    test: int = 2_000
    """Expressions to solve at the end."""
    jobs: int = 2
    """Runs at once."""

    @property
    def folder(self) -> Path:
        """Where runs, result and page lie."""
        return self.out or Path("runs") / f"quickstart-s{self.seed}"

    def runs(self) -> dict[str, Run]:
        """Return both runs: half of ``tiny-aet-4`` by default."""
        base = presets.lookup("tiny-aet-4")
        steps = max(1, self.epochs * self.examples // base.optim.batch_size)
        task = replace(base.task, examples=self.examples, test=self.test)
        base = replace(
            base, seed=self.seed, max_steps=steps, eval_every=max(1, steps // 12), task=task
        )
        return {variant: replace(base, variant=variant) for variant in VARIANTS}


def run(asked: Quickstart) -> dict[str, Any]:
    """Train what is not trained yet; return, and write to quickstart.json, what came out."""
    runs = asked.runs()
    logger.info(
        "training both on %s expressions of 4 operands, %d epochs; some minutes on two cores",
        f"{asked.examples:,}",
        asked.epochs,
    )
    transformers_logging.disable_progress_bar()
    folders = complete(runs, asked.folder, asked.jobs)
    attempts = {
        variant: [json.loads(line) for line in folder.attempts.read_text("utf-8").splitlines()]
        for variant, folder in folders.items()
    }
    asked_of = [[attempt["prompt"] for attempt in each] for each in attempts.values()]
    if any(prompts != asked_of[0] for prompts in asked_of):
        raise ValueError(
            f"the runs in {asked.folder} did not solve the same problems, by their attempts.jsonl; "
            "choose another --out"
        )
    model = AutoModelForCausalLM.from_pretrained(folders["lime"].final)
    result = {
        "seed": asked.seed,
        "epochs": asked.epochs,
        "examples": asked.examples,
        "results": {
            variant: json.loads(folder.result.read_text(encoding="utf-8"))
            for variant, folder in folders.items()
        },
        "validations": {variant: _validations(folder) for variant, folder in folders.items()},
        "heatmap": mean_heatmap(model).tolist(),
        "solved": _first(attempts, True),
        "failed": _first(attempts, False),
    }
    write_atomically(asked.folder / "quickstart.json", json.dumps(result, indent=1) + "\n")
    return result


def _first(attempts: dict[str, list[Any]], solved: bool) -> list[dict[str, Any]]:
    """Return every model's attempts at the first problems that LIMe solved, or failed."""
    chosen = [i for i, attempt in enumerate(attempts["lime"]) if attempt["steps"] is solved]
    return [{variant: all_[i] for variant, all_ in attempts.items()} for i in chosen[:_SHOWN]]


def _validations(folder: RunFolder) -> list[dict[str, Any]]:
    return [row for row in folder.rows() if "val_loss" in row]
