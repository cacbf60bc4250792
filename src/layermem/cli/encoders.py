"""`layermem encoders`: small BERTs on labelled records, with layer memory and without.

It does not know: how runs are trained or compared.
"""

from dataclasses import dataclass
from pathlib import Path

import tyro

from layermem.cli.screen import screen, show, write
from layermem.number_ranges import SHARE, above, at_least, number


@dataclass(frozen=True, kw_only=True)
class Encoders:
    """Compare small encoders with random weights on labelled records, with layer memory and
    without; ended runs are not run again, begun ones are resumed."""

    records: tyro.conf.Positional[str]
    """Records, as in `layermem finetune --records`."""
    validation: str | None = None
    """File of the validation records; None: a share of the records."""
    validation_share: float = number(0.2, SHARE)
    """Share of the records held out for validation, without --validation."""
    fields: tuple[str, ...] = ()
    """Names of the one or two fields that hold a record's texts; none: found by the usual names."""
    label: str | None = None
    """Name of the field that holds a record's label; None: label."""
    max_length: int = number(64, at_least(4))
    """Most tokens of a record."""
    arms: tuple[str, ...] = ("none", "full")
    """Memories: none, full, last:WINDOW, first:WINDOW; the others are compared with the first."""
    layers: int = number(4, at_least(2))
    """Layers of the encoder."""
    width: int = number(64, at_least(1))
    """Its width; the mlp is four times as wide."""
    heads: int = number(4, at_least(1))
    """Its attention heads."""
    vocabulary: int = number(4000, at_least(1))
    """Most ids of its tokenizer, pieces of words, which is trained on the training records."""
    rates: tuple[float, ...] = number((5e-4, 1e-3, 2e-3), above(0))
    """Learning rates that every arm tries on a seed kept for that; it takes the one with most right
    classes at the end."""
    router_lr: float = number(1e-2, at_least(0))
    """Learning rate of routers, which have no weight decay."""
    weight_decay: float = number(0.01, at_least(0))
    """Weight decay of weight matrices."""
    batch_size: int = number(32, at_least(1))
    """Records in one step."""
    steps: int = number(400, at_least(1))
    """Training steps."""
    seeds: int = number(5, at_least(1))
    """Seeds, from 0 on, the same for every arm."""
    jobs: int = number(1, at_least(1))
    """Runs at once."""
    out: Path = Path("runs/encoders")
    """Folder of all runs, of report.json and of the page."""


def encoders(options: Encoders, command: str) -> None:
    """Train what is missing, print the tables of results, and write the page about them."""
    from layermem.config import Optim, Records
    from layermem.experiments.encoders import EncoderSizes, EncoderStudy, compare_encoders
    from layermem.report import comparison as page
    from layermem.report.encoder_trials import trials_table
    from layermem.results.encoder_trials import EncoderTrials
    from layermem.results.files import read_result

    if options.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {options.jobs}")
    study = EncoderStudy(
        records=Records(
            source=options.records,
            validation=options.validation,
            validation_share=options.validation_share,
            fields=options.fields,
            label=options.label,
            max_length=options.max_length,
        ),
        sizes=EncoderSizes(
            layers=options.layers,
            width=options.width,
            heads=options.heads,
            vocabulary=options.vocabulary,
        ),
        optim=Optim(
            router_lr=options.router_lr,
            weight_decay=options.weight_decay,
            batch_size=options.batch_size,
        ),
        steps=options.steps,
        arms=options.arms,
        rates=options.rates,
        seeds=options.seeds,
    )
    comparison = compare_encoders(study, options.out, options.jobs, command)
    for table in page.tables(comparison):
        show(table)
    show(trials_table(read_result(EncoderTrials, options.out / "trials.json")))
    guesses = {run.solved.chance for run in comparison.runs.values() if run.solved}
    for guess in guesses:
        screen().print(f"always the most frequent label of the validation records: {guess:.1%}")
    write(page.build(comparison), options.out)
