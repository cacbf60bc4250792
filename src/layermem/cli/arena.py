"""`layermem arena`: variants on the same boards, on equal terms.

It does not know: how runs are trained, how arms are ranked.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from layermem.cli.screen import screen, show, write
from layermem.number_ranges import above, at_least, number

if TYPE_CHECKING:
    from layermem.experiments.arena import ArenaOptions


@dataclass(frozen=True, kw_only=True)
class Arena:
    """Rank variants at equal tokens, equal training time and equal parameters; resumable."""

    board: str = "tiny-lm,aet-4,chains,recall"
    """Boards: presets as `layermem train` takes them; recall is tiny-mqar. PRESET@LAYERSxWIDTH is a
    preset in another shape (tiny-lm@16x64,tiny-lm@64x32): those of one preset have equally many
    parameters, and are ranked together too."""
    variants: str = "all"
    """Variants, the first is what the others are compared with; options of one follow colons. all:
    every variant, the plain decoder first."""
    rates: tuple[float, ...] = number((1e-3, 3e-3, 1e-2, 3e-2), above(0))
    """Learning rates to try with every variant on a seed kept for that, at equal tokens."""
    seeds: int = number(5, at_least(1))
    """Seeds, from 0 on, the same for every variant."""
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print how many runs there would be, and about how long they would take here."""
    jobs: int = number(1, at_least(1))
    """Runs at once."""
    runs: tuple[Path, ...] = ()
    """Further folders whose runs are used where they are the same, such as a sweep's."""
    out: Path = Path("runs")
    """Folder of new runs, OUT/BOARD/RUN, and of the result, OUT/arena/BOARD+BOARD."""


def arena(options: Arena, command: str) -> None:
    """Train what is missing, print the rankings, and write the page."""
    from layermem.experiments.arena import ArenaOptions, compete, result_folder
    from layermem.report import arena as report

    asked = ArenaOptions(
        boards=tuple(filter(None, map(str.strip, options.board.split(",")))),
        variants=options.variants,
        rates=options.rates,
        seeds=options.seeds,
    )
    if options.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {options.jobs}")
    if options.dry_run:
        _estimate(asked, options)
        return
    result, failure = compete(asked, options.out, options.runs, options.jobs, command)
    for ranking in (*result.rankings, *result.shapes):
        show(report.table(ranking, result))
    write(report.build(result), result_folder(asked, options.out))
    if failure:
        raise RuntimeError(failure)


def _estimate(asked: "ArenaOptions", options: Arena) -> None:
    from layermem.experiments.arena import estimate
    from layermem.experiments.reproduction.recorded import check_folders
    from layermem.report.page import Table

    check_folders(options.out, options.runs)
    rows = [
        [at.board, f"{at.trials}", f"{at.counting}", f"{at.flops:.2e}", f"{at.hours:.3g}"]
        for at in estimate(asked)
    ]
    show(
        Table(
            header=[
                "board",
                "runs that choose rates",
                "runs that count, at most",
                "FLOPs",
                "hours",
            ],
            rows=rows,
            caption="Of one thread, or the GPU, for all runs, recorded or not. At equal time and "
            "at equal parameters fewer steps and smaller models are trained, and arms that they do "
            "not change are not trained again. From steps of the plain decoder that are timed now: "
            "within a factor of 2, and more for arms that are slower than their FLOPs say.",
        )
    )
    screen().print(f"{sum(int(row[1]) + int(row[2]) for row in rows)} runs at most")
