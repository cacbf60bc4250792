"""`layermem sweep`: variants on one preset, seed by seed, as a table and a page.

It does not know: how runs are trained or compared.
"""

from dataclasses import dataclass
from pathlib import Path

import tyro

from layermem.cli.screen import show, write
from layermem.cli.starting_run import StartingRun, resolve_run
from layermem.number_ranges import above, at_least, number


@dataclass(frozen=True, kw_only=True)
class Sweep(StartingRun):
    """Compare variants seed by seed; ended runs are not run again, begun ones are resumed.

    Every other option is a field of the runs' config, as in `layermem train`.
    """

    variant: tyro.conf.Suppress[str] = "lime"
    variants: str = "plain,lime"
    """Variants, the first is what the others are compared with; options of one follow colons
    (lime:router=last:router_window=4). all: every variant."""
    seeds: int = number(5, at_least(1))
    """Seeds, from --seed on, the same for every variant."""
    rates: tuple[float, ...] = number((), above(0))
    """Learning rates to try with every variant on a seed kept for that; each then takes its best by
    validation loss. None given: all take --optim.lr."""
    decays: tuple[float, ...] = number((), at_least(0))
    """Weight decays to try with every rate of --rates; each variant takes the best of all pairs.
    None given: all take --optim.weight-decay."""
    jobs: int = number(1, at_least(1))
    """Runs at once."""
    out: Path | None = None
    """Folder of all its runs; default: runs/PRESET."""


def sweep(options: Sweep, command: str) -> None:
    """Train what is missing, print the tables of results, and write the page about them."""
    from layermem.experiments import arms
    from layermem.experiments.comparison import compare_runs
    from layermem.experiments.learning_rates import best_learning_rate, best_rate_and_decay
    from layermem.report import comparison as page

    base = resolve_run(options)
    if options.seeds < 1 or options.jobs < 1:
        raise ValueError(
            f"--seeds and --jobs must be at least 1, got {options.seeds}, {options.jobs}"
        )
    seeds = range(base.seed, base.seed + options.seeds)
    out = options.out or Path("runs") / base.preset
    if options.decays and not options.rates:
        raise ValueError("--decays are tried with every learning rate: name some with --rates")
    losses, by_decay = {}, {}
    if options.rates:
        if arms.CHOOSING_SEED in seeds:
            raise ValueError(
                f"seed {arms.CHOOSING_SEED} is kept for choosing learning rates; choose other "
                "--seeds"
            )
        tried = base, options.variants, options.rates
        if options.decays:
            by_decay = arms.try_rates_and_decays(*tried, options.decays, out, options.jobs)
        else:
            losses = arms.try_learning_rates(*tried, out, options.jobs)
    best = {arm: best_rate_and_decay(of_arm) for arm, of_arm in by_decay.items()}
    rates = {arm: best_learning_rate(by_rate) for arm, by_rate in losses.items()}
    rates |= {arm: rate for arm, (rate, _) in best.items()}
    decays = {arm: decay for arm, (_, decay) in best.items()}
    folders = arms.train_arms(base, options.variants, seeds, out, options.jobs, rates, decays)
    comparison = compare_runs(
        [folder.path for folder in folders],
        out,
        learning_rates=losses,
        decays=by_decay,
        command=command,
    )
    for table in page.tables(comparison):
        show(table)
    write(page.build(comparison), out)
