"""With which seeds a result was looked at: those of the file that it replaces, and its own.

More seeds beside those that were looked at are another look, for which p-values pay
(``intervals.price_of_looks``). A result that shares no run with the file is a first look.

It does not know: what was compared, how p-values are adjusted.
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from layermem.config import Run
from layermem.intervals import further_looks
from layermem.results.arena import ArenaResult
from layermem.results.artefact import ArtefactResult, RunState
from layermem.results.files import Result, read_result
from layermem.results.retrofit import RetrofitResult

logger = logging.getLogger(__name__)
_R = TypeVar("_R", bound=Result)
Looks = tuple[tuple[int, ...], ...]
"""The seeds of each look."""


def replaced_result(cls: type[_R], path: Path) -> _R | None:
    """Return the result in a file that is to be written anew; None: there is none to be read."""
    try:
        return read_result(cls, path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        logger.warning("looks at the seeds of an earlier result are not counted: %s", error)
        return None


def looks_at(
    earlier: Looks, seen: Iterable[str], runs: Iterable[str], seeds: Iterable[int]
) -> Looks:
    """Return the looks at runs, that at ``seeds`` last; ``seen``: the runs of the earlier ones."""
    return further_looks(() if set(seen).isdisjoint(runs) else earlier, seeds)


def looks_at_artefact(
    before: ArtefactResult | None, runs: Iterable[RunState], seeds: Sequence[int]
) -> Looks:
    """Return the looks at an artefact of the paper, whose result ``before`` is replaced."""
    if before is None:
        return looks_at((), (), (), seeds)
    return looks_at(before.looks or (before.seeds,), _ended(before.runs), _ended(runs), seeds)


def looks_at_board(
    before: ArenaResult | RetrofitResult | None,
    board: str,
    runs: Iterable[Run],
    seeds: Sequence[int],
) -> Looks:
    """Return the looks at a board, or a model, under one condition with ``runs``."""
    if before is None:
        return looks_at((), (), (), seeds)
    earlier = (each.looks or (before.seeds,) for each in before.rankings if each.board == board)
    return looks_at(next(earlier, ()), _ended(before.runs), (run.id for run in runs), seeds)


def _ended(runs: Iterable[RunState]) -> set[str]:
    return {run.run_id for run in runs if run.state == "ended"}
