"""The paper's tables and figures as data: each one's claim, numbers, boards and drawings.

An artefact is a function of the scale, in the ``ARTEFACTS`` of one of three files, whose docstring
is its title; the tables of evaluation tasks are rows of ``evaluated.TABLES``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from layermem_base.plugins import unknown_name
from layermem_bench.config.typed_dicts import read_result
from layermem_bench.paper import costs, evaluated, inside, trained
from layermem_bench.paper.artefact import FINEWEB, SEEDS, Artefact
from layermem_bench.studies.carrying_out import result_folder
from layermem_bench.studies.result import Scale, StudyResult

_ARTEFACTS: Mapping[str, Callable[[Scale], Artefact]] = {
    artefact.__name__: artefact for file in (trained, inside, costs) for artefact in file.ARTEFACTS
}
_ON_TEXT = {"tiny": "", "small": FINEWEB, "paper": f"{FINEWEB}; weeks of many GPUs"}


def names() -> list[str]:
    """Return the fixed names: figures, then other results, then tables, each by its number."""
    known = [*_ARTEFACTS, *evaluated.TABLES]
    return sorted(known, key=lambda name: (name.rstrip("0123456789"), len(name), name))


def get_artefact(
    name: str,
    scale: Scale,
    seeds: int | None = None,
    records: Sequence[str] = (),
    without: Sequence[str] = (),
) -> Artefact:
    """Return the artefact of a fixed name; ``seeds``: how many (None: as many as the scale has).

    Seeds start with that of its presets, which is 0 but for the paper's 42. ``records`` of its
    evaluation tasks, and those that are asked ``without``, are as in `layermem study`.
    """
    if name in evaluated.TABLES:
        artefact = evaluated.table(name, scale, records, without)
    elif name not in _ARTEFACTS:
        raise unknown_name("artefact", name, names())
    elif records or without:
        option = f"--records {records[0]}" if records else f"--without {without[0]}"
        raise ValueError(f"{option}: {name} asks no evaluation tasks; leave it out")
    else:
        artefact = _ARTEFACTS[name](scale)
    bases = [board.base for board in artefact.boards]
    first = max((base.seed for base in bases), default=0)
    is_on_text = any(base.task.name is None for base in bases)
    return replace(
        artefact,
        name=f"paper/{name}-{scale}",
        title=artefact.title or (_ARTEFACTS[name].__doc__ or "").rstrip("."),
        scale=scale,
        seeds=tuple(range(first, first + (seeds or SEEDS[scale]))),
        needs=artefact.needs or (_ON_TEXT[scale] if is_on_text else ""),
    )


def check_artefact(artefact: Artefact, records: Sequence[str], *, dry_run: bool) -> None:
    """Raise, before anything is trained, if an artefact cannot be had here: for lack of a GPU, or
    of the records of a task."""
    from layermem_bench.evals.benchmarks import load_tasks

    if not dry_run and artefact.needs and not torch.cuda.is_available():
        raise ValueError(
            f"{artefact.name} needs {artefact.needs}, and there is no GPU here; --dry-run says "
            "what it would cost, --scale tiny runs on a CPU"
        )
    if artefact.tasks and (records or not dry_run):
        load_tasks([evaluated.COLUMNS[task][0] for task in artefact.tasks], records)


def state_of(artefact: Artefact, out: Path) -> str:
    """Return what the recorded result of an artefact has."""
    file = result_folder(artefact, out) / "study.json"
    if not file.exists():
        return "not begun"
    try:
        result = read_result(StudyResult, file)
    except (ValueError, OSError):
        # One result of many: the others are listed all the same.
        return f"damaged: delete {file}"
    ended = sum(run.state in ("ended", "diverged") for run in result.runs)
    if ended < len(result.runs):
        return f"{ended} of {len(result.runs)} runs"
    asked = len(artefact.seeds)
    counted = not result.runs or len(result.seeds) == asked
    return "done" if counted else f"done with {len(result.seeds)} seeds, {asked} are asked for"
