"""Where every artefact of the paper stands at each scale: what is recorded, what it needs."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from layermem_bench.paper import get_artefact, names
from layermem_bench.paper.artefact import SCALES
from layermem_bench.results.files import read_result
from layermem_bench.results.study import RunRecord, Scale, StudyResult
from layermem_bench.study.carrying_out import result_folder
from layermem_bench.study.definition import Study
from layermem_bench.study.estimates import Planned, is_recorded, planned_states
from layermem_bench.study.gathering import RESULT
from layermem_bench.study.planning import PlannedRun
from layermem_bench.study.records import RecordedRuns

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where an artefact stands at one scale."""

    name: str
    """Fixed name of the artefact."""
    title: str
    """What it shows."""
    scale: Scale
    """The scale."""
    state: str
    """Where it stands, in a few words."""
    needs: str
    """What it needs; empty: nothing but this machine."""


def standings(out: Path, runs: Sequence[Path] = (), seeds: int | None = None) -> list[Standing]:
    """Return where each artefact stands at each scale."""
    recorded, listed = RecordedRuns(out, runs), []
    for name in names():
        artefact = get_artefact(name)
        for scale in SCALES:
            study = artefact.study(name, scale, seeds)
            planned = planned_states(study, recorded)
            needs = filter(None, (artefact.needs.get(scale, ""), artefact.missing))
            listed.append(
                Standing(
                    name=name,
                    title=artefact.title,
                    scale=scale,
                    state=_result_state(study, out, planned) or _progress(planned),
                    needs="; ".join(needs),
                )
            )
    return listed


def _progress(planned: Planned) -> str:
    """Return how many of the planned runs are recorded, those that choose rates included."""
    states = [state for _, state in planned.values()]
    recorded, count = sum(map(is_recorded, states)), len(states)
    failed = sum(state.state == "failed" for state in states)
    failures = f", {failed} failed" if failed else ""
    if recorded:
        return f"{recorded} of {count} runs{failures}"
    return f"not begun{failures} ({f'0 of {count}' if count else 'no'} runs)"


def _result_state(study: Study, out: Path, planned: Planned) -> str:
    """Return what the recorded result is good for; nothing: there is none, or it lacks runs."""
    file = result_folder(study, out) / RESULT
    if not file.exists():
        return ""
    try:
        result = read_result(StudyResult, file)
    except (ValueError, OSError) as error:
        # One result of many: the others are listed all the same.
        logger.warning("%s", error)
        return f"damaged: delete {file}"
    then = {run.name: run for run in result.runs}
    now = [
        (run, state)
        for run, state in planned.values()
        if run.trial is not None or run.run.seed in result.seeds
    ]
    if any(is_recorded(s) and _differs(then.get(s.name), s, run, study) for run, s in now):
        return "out of date: run it again"
    if not all(is_recorded(state) for _, state in now):
        return ""
    if planned and len(result.seeds) != len(study.seeds):
        of = f" of {len(study.seeds)}" if len(result.seeds) < len(study.seeds) else ""
        return f"done with {len(result.seeds)}{of} seeds"
    return "done"


def _differs(then: RunRecord | None, now: RunRecord, run: PlannedRun, study: Study) -> bool:
    """Return whether a run that is recorded now was missing in a result, or was another run."""
    if then is None or not is_recorded(then):
        return True
    # The id of one that starts from another board's model changes with the path of its folder.
    starts = {board.name for board in study.boards if board.starts_from}
    return run.board not in starts and then.run_id != now.run_id
