"""Scores of ended runs on the tasks of the paper's Tables 1 and 4 to 6.

Runs are planned and trained; their scores are not gathered yet, and what is missing is said.

It does not know: which table the tasks are of.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from layermem.experiments.reproduction.artefact import Observed, Trained
from layermem.results.run_record import RunRecord

_MISSING = (
    "scores on tasks (lm-eval) are not gathered by this command yet: the runs are planned and "
    "trained, and `layermem eval` evaluates them"
)


def missing() -> str | None:
    """Return why tasks cannot be evaluated; None: they can."""
    return _MISSING


def score(records: Sequence[RunRecord], tasks: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the score of each record's final model on each task, 3-shot, by folder and task."""
    raise NotImplementedError(_MISSING)


def observe_tasks(tasks: Sequence[str]) -> Callable[[Trained], Iterable[Observed]]:
    """Return what observes these tasks, and their average; nothing where they cannot be."""

    def observe(trained: Trained) -> Iterator[Observed]:
        if missing():
            return
        for arms in trained.records.values():
            for arm, runs in arms.items():
                scores = score(list(runs.values()), tasks)
                by_seed = {seed: scores[record.folder] for seed, record in runs.items()}
                for task in tasks:
                    values = {seed: of_run[task] for seed, of_run in by_seed.items()}
                    yield Observed(quantity=task, arm=arm, by_seed=values, unit="share")
                means = {seed: sum(s[t] for t in tasks) / len(tasks) for seed, s in by_seed.items()}
                yield Observed(quantity="average", arm=arm, by_seed=means, unit="share")

    return observe
