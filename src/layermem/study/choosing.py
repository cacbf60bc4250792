"""Which learning rate, and weight decay, each arm takes: the best of the runs that tried them."""

import math
from collections.abc import Iterable, Mapping

from layermem.results.study import LOSS, RIGHT_ANSWERS, TriedRates
from layermem.runs import RunFolder
from layermem.study.definition import Board
from layermem.study.planning import PlannedRun, Tried, trials
from layermem.study.recorded import RecordedRuns
from layermem.study.records import check_comparable, read_divergence, read_metrics

Outcomes = Mapping[Tried, tuple[float, float]]
"""What was tried, to the share of right answers (0 where the choice is not by it) and the loss,
which is infinite where the run diverged."""


def read_trials(board: Board, recorded: RecordedRuns) -> tuple[TriedRates, ...]:
    """Return what each arm of a board tried and chose; all trials must be recorded."""
    plan = trials(board)
    folders = {name: recorded.folder_of(name, planned.run) for name, planned in plan.items()}
    check_comparable(folders.values())
    outcomes: dict[str, dict[Tried, tuple[float, float]]] = {}
    for name, planned in plan.items():
        if planned.trial is not None:
            outcome = _outcome(planned, folders[name], by_right=board.by_right_answers)
            outcomes.setdefault(planned.arm, {})[planned.trial] = outcome
    return tuple(
        tried
        for arm, of_arm in outcomes.items()
        for tried in tried_rates(arm, of_arm, by_right=board.by_right_answers)
    )


def _outcome(planned: PlannedRun, folder: RunFolder, *, by_right: bool) -> tuple[float, float]:
    # Only a run that diverged is infinitely bad: that a rate is too high for an arm is a result.
    if read_divergence(folder, planned.run.id) is not None:
        return 0.0, math.inf
    metrics = read_metrics(folder, planned.run)
    return metrics[RIGHT_ANSWERS] if by_right else 0.0, metrics[LOSS]


def tried_rates(arm: str, outcomes: Outcomes, *, by_right: bool = False) -> list[TriedRates]:
    """Return what an arm tried, decay by decay, and its choice: most right, then lowest loss."""
    finite = {tried: outcome for tried, outcome in outcomes.items() if math.isfinite(outcome[1])}
    best = max(finite, key=lambda t: (finite[t][0], -finite[t][1]), default=None)
    return [
        TriedRates(
            arm=arm,
            rates=tuple(tried.rate for tried in of_decay),
            losses=tuple(_or_none(tried, finite, 1) for tried in of_decay),
            right=tuple(_or_none(tried, finite, 0) for tried in of_decay) if by_right else (),
            chosen=best.rate if best is not None and best.decay == decay else None,
            decay=decay,
        )
        for decay in dict.fromkeys(tried.decay for tried in outcomes)
        for of_decay in [[tried for tried in outcomes if tried.decay == decay]]
    ]


def _or_none(tried: Tried, finite: Outcomes, place: int) -> float | None:
    return finite[tried][place] if tried in finite else None


def choices_of(tried: Iterable[TriedRates]) -> tuple[dict[str, Tried], frozenset[str]]:
    """Return what each arm chose, and the arms that diverged at every rate."""
    tried = list(tried)
    choices = {
        each.arm: Tried(each.chosen, each.decay) for each in tried if each.chosen is not None
    }
    return choices, frozenset(each.arm for each in tried) - choices.keys()
