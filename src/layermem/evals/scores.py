"""Scores from answers: shares of right ones with intervals, and differences item by item.

Two questions have two intervals: what other items would show (Wilson, jackknife, McNemar), and what
other few-shot examples would show (Student's t over seeds, of the repeats that a score holds).
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from layermem.intervals import holm, mcnemar, paired, proportion, ratio_interval
from layermem.results.eval import Difference, Score, TaskAnswers


def score_answers(seeds: Sequence[TaskAnswers]) -> tuple[Score, Score | None]:
    """Return the scores of one model's answers to one task, given for each seed.

    The second is by log-probability per character; None: the task does not ask for it.
    """
    norms = [answers.right_norm for answers in seeds if answers.right_norm is not None]
    cut = sum(answers.truncated for answers in seeds)
    counts = {
        "prompts": sum(answers.requests for answers in seeds) if cut else 0,
        "prompts cut": cut,
        "unknown tokens": sum(answers.unknown_tokens for answers in seeds),
        "ties": sum(answers.ties for answers in seeds),
    }
    score = _share([answers.right for answers in seeds])
    return (
        replace(score, counts={name: count for name, count in counts.items() if count}),
        _share(norms) if len(norms) == len(seeds) else None,
    )


def compare_answers(
    ours: Mapping[str, Sequence[TaskAnswers]], theirs: Mapping[str, Sequence[TaskAnswers]]
) -> dict[str, Difference]:
    """Return the difference on each task, with p-values adjusted for the number of tasks."""
    for task, answers in ours.items():
        for mine, other in zip(answers, theirs[task], strict=True):
            if mine.prompts != other.prompts:
                raise ValueError(
                    f"the prompts of {task} with seed {mine.key.seed} differ between the models, "
                    "so their answers cannot be paired; delete the folder answers, and all are "
                    "asked again"
                )
    return adjust(
        {
            task: compare_right([a.right for a in answers], [a.right for a in theirs[task]])
            for task, answers in ours.items()
        }
    )


def compare_right(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> Difference:
    """Return the difference of two models, given 1 or 0 for each item, repeat by repeat.

    The p-value is McNemar's, by the first repeat.
    """
    items = len(ours[0])
    sides = (ours, theirs)
    means = [[sum(item) / len(side) for item in zip(*side, strict=True)] for side in sides]
    interval = ratio_interval([(mean, [1.0] * items) for mean in means]) or ()
    pairs = list(zip(ours[0], theirs[0], strict=True))
    return Difference(
        value=paired(*([sum(right) / items for right in side] for side in sides)).mean,
        # No difference of shares is larger than 1.
        interval=tuple(max(-1.0, min(1.0, end)) for end in interval),
        p=mcnemar(pairs.count((1, 0)), pairs.count((0, 1))),
    )


def adjust(differences: Mapping[str, Difference]) -> dict[str, Difference]:
    """Return differences with p-values adjusted by Holm's method for their number."""
    adjusted = holm([each.p for each in differences.values() if each.p is not None])
    return {
        name: replace(each, p=p)
        for (name, each), p in zip(differences.items(), adjusted, strict=True)
    }


def _share(repeats: Sequence[Sequence[int]]) -> Score:
    """Return the share of right answers, given 1 or 0 for each item, repeat by repeat."""
    items = len(repeats[0])
    by_repeat = tuple(sum(right) / items for right in repeats)
    return Score(
        value=statistics.fmean(by_repeat),
        # An item counts with the share of repeats that it is right with.
        interval=proportion(sum(map(sum, repeats)) / len(repeats), items),
        count=items,
        repeats=by_repeat,
    )
