"""Where every artefact of the paper stands at each scale: what its result has, what it needs."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from layermem_bench.config.result_files import read_result
from layermem_bench.paper import get_artefact, names
from layermem_bench.paper.artefact import SCALES
from layermem_bench.studies.carrying_out import result_folder
from layermem_bench.studies.result import Scale, StudyResult


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where an artefact stands at one scale."""

    name: str
    title: str
    scale: Scale
    state: str
    needs: str
    """What it needs; empty: nothing but this machine."""


def standings(out: Path, seeds: int | None = None) -> Iterator[Standing]:
    """Yield where each artefact stands at each scale; ``seeds``: as many as are asked for."""
    for name in names():
        artefact = get_artefact(name)
        for scale in SCALES:
            study = artefact.study(name, scale, seeds)
            state = _state(result_folder(study, out) / "study.json", len(study.seeds))
            needs = "; ".join(filter(None, (artefact.needs.get(scale, ""), artefact.missing)))
            yield Standing(name=name, title=artefact.title, scale=scale, state=state, needs=needs)


def _state(file: Path, asked: int) -> str:
    """Return what the recorded result has."""
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
    counted = not result.runs or len(result.seeds) == asked
    return "done" if counted else f"done with {len(result.seeds)} seeds, {asked} are asked for"
