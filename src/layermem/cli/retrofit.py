"""`layermem retrofit`: four ways of going on training a model, with layer memory and without.

It does not know: how runs are trained or ranked.
"""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import tyro

from layermem.cli.finetune import Finetune, to_run
from layermem.cli.screen import screen, show, write


@dataclass(frozen=True, kw_only=True)
class Retrofit:
    """Does layer memory pay on a model? Go on training it in four ways on the same data: plainly,
    with LoRA, with routers alone, with memory and all weights; each at its best learning rate, at
    equal tokens and at equal training time. Ended runs are not run again, begun ones are resumed.
    """

    model: tyro.conf.Positional[str]
    """Folder or hub name of a decoder, as in `layermem finetune`."""
    revision: str | None = None
    """Branch, tag or commit of a model on the hub."""
    text: str | None = None
    """Text to train on: "stdlib", a file, a folder or a data set."""
    validation: str | None = None
    """Text of the validation set; None: a share of the training set's."""
    validation_share: float | None = None
    """Share of the documents held out for validation (0.02), without --validation."""
    text_field: str = "text"
    """Column that holds the text."""
    block_size: int = 256
    """Tokens in a block of text."""
    max_documents: int | None = None
    """Most documents that are read; None: all."""
    eval_blocks: int | None = None
    """Validation blocks used; None: all."""
    cache: str | None = None
    """Folder of prepared blocks; None: ~/.cache/layermem, or LAYERMEM_CACHE."""
    task: Literal["arithmetic", "prosqa", "mqar", "chains", "mad"] | None = None
    """Task to train on, in place of text."""
    task_options: tuple[str, ...] = ()
    """Options of the task, each NAME=VALUE; `layermem tasks` lists them."""
    examples: int = 50_000
    """Problems in the training set of a task."""
    test: int = 2_000
    """Problems in its test set."""
    validation_problems: int = 500
    """Problems in its validation set."""
    memory: Literal["full", "last", "first"] = "full"
    """Earlier layers that a layer reads, in the ways with memory."""
    window: int | None = None
    """Number of layers that are read, the layer's own counted; with --memory last or first."""
    rates: tuple[float, ...] = (5e-5, 2e-4, 1e-3)
    """Learning rates that every way tries, but routers alone."""
    router_rates: tuple[float, ...] = (1e-3, 5e-3, 2e-2)
    """Learning rates that routers alone try."""
    weight_decay: float = 0.0
    """Weight decay of weight matrices; routers have none."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How learning rates fall after the warm-up."""
    warmup_steps: int = 200
    """Steps over which learning rates rise; at most a tenth of all steps."""
    batch_size: int = 32
    """Sequences in one step."""
    micro_batch: int = 32
    """Sequences computed at once; gradients are accumulated to --batch-size."""
    precision: Literal["float32", "bfloat16", "auto"] = "auto"
    """Floating-point format."""
    steps: int = 1000
    """Training steps at equal tokens."""
    eval_every: int = 100
    """Steps between two validations; there is one before the first step and after the last."""
    seeds: int = 5
    """Seeds, from 0 on, the same for every way."""
    jobs: int = 1
    """Runs at once."""
    out: Path | None = None
    """Folder of all runs, of retrofit.json and of the page; default: runs/retrofit-MODEL."""


def retrofit(options: Retrofit, command: str) -> None:
    """Train what is missing, print the rankings, and write the page."""
    if options.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {options.jobs}")
    shared = {field.name for field in fields(Finetune)} & {field.name for field in fields(Retrofit)}
    given = {name: getattr(options, name) for name in shared - {"out"}}
    base = to_run(Finetune(**given, train="all", log_every=max(1, options.steps // 50)))
    from layermem.experiments.retrofits import RetrofitStudy, compare_retrofits
    from layermem.report import retrofit as report

    study = RetrofitStudy(
        base=base, rates=options.rates, router_rates=options.router_rates, seeds=options.seeds
    )
    name = re.sub(r"[^\w.-]", "-", Path(options.model).name)
    out = options.out or Path("runs") / f"retrofit-{name}"
    result = compare_retrofits(study, out, options.jobs, command)
    for ranking in result.rankings:
        show(report.table(result, ranking))
    screen().print(f"before the first step: validation loss {result.before:.4f}")
    write(report.build(result), out)
