"""Scores from answers: shares of right ones with intervals, and differences item by item.

Two questions have two intervals: what other items would show (Wilson, jackknife, McNemar), and what
other few-shot examples would show (Student's t over seeds).

It does not know: models, prompts, files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from layermem.intervals import holm, interval, mcnemar, paired, proportion, ratio_interval
from layermem.results.eval import Accuracy, TaskAnswers, TaskDifference, TaskScore


def score_answers(seeds: Sequence[TaskAnswers]) -> TaskScore:
    """Return the score of one model's answers to one task, given for each seed."""
    norms = [answers.right_norm for answers in seeds]
    known = [right for right in norms if right is not None]
    return TaskScore(
        accuracy=_accuracy([answers.right for answers in seeds]),
        accuracy_norm=_accuracy(known) if len(known) == len(norms) else None,
        requests=sum(answers.requests for answers in seeds),
        truncated=sum(answers.truncated for answers in seeds),
        unknown_tokens=sum(answers.unknown_tokens for answers in seeds),
        ties=sum(answers.ties for answers in seeds),
    )


def differences(
    ours: Mapping[str, Sequence[TaskAnswers]], theirs: Mapping[str, Sequence[TaskAnswers]]
) -> dict[str, TaskDifference]:
    """Return the difference on each task, with p-values adjusted for the number of tasks."""
    of_tasks = {task: _difference(answers, theirs[task]) for task, answers in ours.items()}
    adjusted = holm([difference.p_value for difference in of_tasks.values()])
    return {
        task: replace(difference, p_value=p)
        for (task, difference), p in zip(of_tasks.items(), adjusted, strict=True)
    }


def _accuracy(seeds: Sequence[Sequence[int]]) -> Accuracy:
    """Return the share of right answers, given 1 or 0 for each item, seed by seed."""
    items = len(seeds[0])
    by_seed = tuple(sum(right) / items for right in seeds)
    over_seeds = interval(by_seed)
    return Accuracy(
        mean=over_seeds.mean,
        by_seed=by_seed,
        over_seeds=_ends(over_seeds.mean, over_seeds.half) if len(seeds) > 1 else (),
        # An item counts with the share of seeds that it is right with.
        over_items=proportion(sum(map(sum, seeds)) / len(seeds), items),
    )


def _difference(ours: Sequence[TaskAnswers], theirs: Sequence[TaskAnswers]) -> TaskDifference:
    for mine, other in zip(ours, theirs, strict=True):
        if mine.prompts != other.prompts:
            raise ValueError(
                f"the prompts of {mine.key.task} with seed {mine.key.seed} differ between the "
                "models, so their answers cannot be paired; delete the folder answers, and all are "
                "asked again"
            )
    by_seed = paired(*([sum(a.right) / len(a.right) for a in side] for side in (ours, theirs)))
    items = len(ours[0].right)
    means = [
        [sum(of_seeds) / len(side) for of_seeds in zip(*(a.right for a in side), strict=True)]
        for side in (ours, theirs)
    ]
    pairs = list(zip(ours[0].right, theirs[0].right, strict=True))
    only_ours, only_theirs = pairs.count((1, 0)), pairs.count((0, 1))
    return TaskDifference(
        accuracy=by_seed.mean,
        # No difference of shares is larger than 1.
        over_items=tuple(
            max(-1.0, min(1.0, end))
            for end in ratio_interval([(mean, [1.0] * items) for mean in means]) or ()
        ),
        over_seeds=_ends(by_seed.mean, by_seed.half) if len(ours) > 1 else (),
        only_ours=only_ours,
        only_theirs=only_theirs,
        p_value=mcnemar(only_ours, only_theirs),
    )


def _ends(mean: float, half: float) -> tuple[float, float]:
    return mean - half, mean + half
