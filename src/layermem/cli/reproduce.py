"""`layermem reproduce`: the paper's tables and figures, one command each.

It does not know: which artefacts there are, how runs are trained, how claims are judged.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from layermem.cli.screen import screen, show, write
from layermem.number_ranges import at_least, number
from layermem.results.artefact import Scale

if TYPE_CHECKING:
    from layermem.experiments.reproduce import EstimatedStudy


@dataclass(frozen=True, kw_only=True)
class Reproduce:
    """Reproduce a table or figure of the paper; recorded runs are not run again."""

    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="NAME")] = None
    """Fixed name of the artefact (table7, fig4, prosqa); --list shows all."""
    list: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """List every artefact: where it stands at each scale, what it needs, its command."""
    scale: Scale = "tiny"
    """Size of the runs: "tiny" for CPUs, "small" for one GPU, "paper" exactly as in the paper."""
    seeds: int | None = number(None, at_least(1))
    """Seeds, from 0 on (of fig6 at scale paper from 42); None: 5 (tiny), 3 (small) or 1 (paper)."""
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print what would be run, its parameters, tokens and FLOPs, and how long it would take here;
    train nothing but some timed steps."""
    jobs: int = number(1, at_least(1))
    """Runs at once."""
    runs: tuple[Path, ...] = ()
    """Further folders whose runs are used where they are the same, such as a sweep's."""
    records: tuple[str, ...] = ()
    """Records of evaluation tasks (tables 1 and 4 to 6), as for layermem eval; a task without any
    is fetched from the hub."""
    without: tuple[str, ...] = ()
    """Evaluation tasks that are left out, as where there are no records of them (MultiRC, WiC);
    averages, the paper's too, are those of the other tasks then."""
    out: Path = Path("runs")
    """Folder of new runs, OUT/STUDY/RUN, and of results, OUT/artefacts/NAME-SCALE. Runs that it
    holds are used, whatever their folders are called."""


def reproduce(options: Reproduce, command: str) -> None:
    """List artefacts, or estimate one, or reproduce it and write its page."""
    if options.list == (options.name is not None):
        raise ValueError("name one artefact, or give --list: layermem reproduce table7")
    if options.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {options.jobs}")
    if options.name is None:
        _list(options)
    elif options.dry_run:
        _estimate(options, options.name)
    else:
        _reproduce(options, options.name, command)


def _list(options: Reproduce) -> None:
    from layermem.experiments.reproduce import list_artefacts
    from layermem.report.page import Table

    listed = list_artefacts(options.out, options.runs, options.seeds)
    rows: list[list[str]] = []
    needs: dict[str, int] = {}
    for name, (artefact, scales) in listed.items():
        for at in scales:
            if at.needs:
                needs.setdefault(at.needs, len(needs) + 1)
            mark = f" [{needs[at.needs]}]" if at.needs else ""
            again = f"layermem reproduce {name} --scale {at.scale}{_folders(options)}"
            title = artefact.title if at is scales[0] else ""
            rows.append([name if title else "", title, at.scale, f"{at.state}{mark}", again])
    show(Table(header=["artefact", "title", "scale", "state", "command"], rows=rows))
    for need, place in needs.items():
        screen().print(f"[{place}] needs or lacks: {need}", markup=False, highlight=False)


def _folders(options: Reproduce) -> str:
    """Return the options that the folders were given with."""
    words = ["--out", str(options.out)] if options.out != Path("runs") else []
    words += ["--runs", *map(str, options.runs)] if options.runs else []
    return f" {shlex.join(words)}" if words else ""


def _estimate(options: Reproduce, name: str) -> None:
    from layermem.experiments.reproduce import estimate, tasks_to_answer
    from layermem.experiments.reproduction.estimates import UNCERTAINTY, machine
    from layermem.report.numbers import with_unit
    from layermem.report.page import Table

    tasks = tasks_to_answer(name, options.scale, options.records, options.without)
    studies = estimate(name, options.scale, options.seeds, options.out, options.runs)
    rows = [
        [
            study.study,
            f"{study.runs}",
            f"{study.recorded}",
            with_unit(study.cost.parameters, 3),
            with_unit(study.cost.tokens, 3),
            f"{study.cost.flops:.2e}",
            _hours(study),
        ]
        for study in studies
    ]
    header = ["study", "runs", "recorded", "parameters", "tokens", "FLOPs", "hours still to run"]
    bases = dict.fromkeys(study.speed.basis for study in studies)
    how = (f"{basis}: from {UNCERTAINTY[basis]}." for basis in bases)
    caption = f"Hours of {machine()}. {' '.join(how)}" if studies else "It trains nothing."
    show(Table(header=header, rows=rows, caption=caption))
    hours = sum(study.hours for study in studies)
    screen().print(f"{sum(study.runs for study in studies)} runs, about {hours:.3g} hours to come")
    if tasks:
        asked = f"{len(tasks)} evaluation tasks ({', '.join(tasks)})"
        screen().print(f"Then each model is asked {asked}, for which no time is estimated.")


def _hours(study: "EstimatedStudy") -> str:
    return f"{study.hours:.3g} ({study.speed.basis})"


def _reproduce(options: Reproduce, name: str, command: str) -> None:
    from layermem.experiments.reproduce import reproduce as run_artefact
    from layermem.experiments.reproduce import result_folder
    from layermem.report import artefacts as report
    from layermem.runs import write_atomically

    result, failure = run_artefact(
        name,
        options.scale,
        options.seeds,
        options.out,
        options.runs,
        options.jobs,
        command,
        options.records,
        options.without,
    )
    show(report.claims(result))
    show(report.numbers(result))
    folder = result_folder(options.out, name, options.scale)
    write_atomically(folder / "artefact.md", report.markdown(result))
    write(report.build(result), folder)
    if failure:
        raise RuntimeError(failure)
    if result.missing:
        raise RuntimeError(f"{name} is not whole: {result.missing}")
