"""`layermem retrofit`: four ways of going on training a model, with layer memory and without.

It does not know: how runs are trained or ranked.
"""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from layermem.cli.finetune import Finetune, to_run
from layermem.cli.host_options import HostOptions
from layermem.cli.screen import screen, show, write
from layermem.number_ranges import above, at_least, number


@dataclass(frozen=True, kw_only=True)
class Retrofit(HostOptions):
    """Does layer memory pay on a model? Go on training it in four ways on the same data: plainly,
    with LoRA, with routers alone, with memory and all weights; each at its best learning rate, at
    equal tokens and at equal training time. Ended runs are not run again, begun ones are resumed.
    """

    memory: Literal["full", "last", "first"] = "full"
    """Earlier layers that a layer reads, in the ways with memory."""
    rates: tuple[float, ...] = number((5e-5, 2e-4, 1e-3), above(0))
    """Learning rates that every way tries, but routers alone."""
    router_rates: tuple[float, ...] = number((1e-3, 5e-3, 2e-2), above(0))
    """Learning rates that routers alone try."""
    seeds: int = number(5, at_least(1))
    """Seeds, from 0 on, the same for every way."""
    jobs: int = number(1, at_least(1))
    """Runs at once."""
    out: Path | None = None
    """Folder of all runs, of retrofit.json and of the page; default: runs/retrofit-MODEL."""


def retrofit(options: Retrofit, command: str) -> None:
    """Train what is missing, print the rankings, and write the page."""
    if options.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {options.jobs}")
    given = {field.name: getattr(options, field.name) for field in fields(HostOptions)}
    log_every = max(1, options.steps // 50)
    base = to_run(Finetune(**given, memory=options.memory, train="all", log_every=log_every))
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
