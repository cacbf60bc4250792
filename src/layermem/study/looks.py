"""With which seeds a result was looked at: those of the file that it replaces, and its own.

More seeds beside those that were looked at are another look, for which p-values pay
(``intervals.price_of_looks``). A result that shares no run with the file is a first look.
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from layermem.intervals import further_looks
from layermem.results.files import read_result
from layermem.results.study import Looks, RunRecord, StudyResult

logger = logging.getLogger(__name__)


def replaced_result(path: Path) -> StudyResult | None:
    """Return the result in a file that is to be written anew; None: there is none to be read."""
    try:
        return read_result(StudyResult, path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        logger.warning("looks at the seeds of an earlier result are not counted: %s", error)
        return None


def looks_at_runs(
    before: StudyResult | None, condition: str, runs: Sequence[RunRecord], seeds: Sequence[int]
) -> Looks:
    """Return the looks at the runs of one board under a condition, that at ``seeds`` last.

    Runs are found again by what they are, not by the board's name.
    """
    now = _ended(runs)
    for board in before.boards if before else ():
        for of_condition in board.conditions:
            seen = [] if before is None else before.of(board.name, of_condition.name)
            if of_condition.name == condition and not now.isdisjoint(_ended(seen)):
                first = tuple(sorted({run.seed for run in seen if run.state == "ended"}))
                return further_looks(of_condition.looks or (first,), seeds)
    return further_looks((), seeds)


def looks_at_claims(
    before: StudyResult | None, runs: Iterable[RunRecord], seeds: Sequence[int]
) -> Looks:
    """Return the looks at what is claimed of some runs."""
    if before is None or _ended(before.runs).isdisjoint(_ended(runs)):
        return further_looks((), seeds)
    return further_looks(before.looks or (before.seeds,), seeds)


def _ended(runs: Iterable[RunRecord]) -> set[str]:
    return {run.run_id for run in runs if run.state == "ended"}
