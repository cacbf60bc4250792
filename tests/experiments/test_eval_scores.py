"""Scores and differences from given answers, against values by hand and by scipy."""

from dataclasses import replace

import pytest
from scipy import stats

from layermem.experiments.eval_scores import differences, score_answers
from layermem.results.eval import AnswersKey, TaskAnswers

KEY = AnswersKey(
    checkpoint="c",
    task="t",
    version="1",
    definition="d",
    records="r",
    shots=3,
    seed=0,
    limit=None,
    truncate=False,
    max_length=None,
    lm_eval="0",
)


def answers(right, norm=None, prompts="p", seed=0):
    return TaskAnswers(
        key=replace(KEY, seed=seed),
        right=tuple(right),
        right_norm=norm and tuple(norm),
        prompts=prompts,
        chance=0.5,
        majority=0.5,
        requests=2 * len(right),
        truncated=1,
        unknown_tokens=2,
        ties=3,
    )


def test_a_score_has_an_interval_over_items_and_one_over_seeds():
    score = score_answers(
        [answers([1, 1, 0, 0], [1, 1, 1, 1]), answers([1, 1, 1, 0], [1, 0, 1, 1])]
    )
    accuracy = score.accuracy
    assert accuracy.by_seed == (0.5, 0.75) and accuracy.mean == 0.625
    # Student's t of two values: half their distance, times the quantile of one degree.
    half = stats.t.ppf(0.975, 1) * 0.125
    assert accuracy.over_seeds == pytest.approx((0.625 - half, 0.625 + half))
    # 2.5 of 4: the third item is right with one seed of two. Between Wilson's of 2 and of 3 of 4.
    low, high = accuracy.over_items
    two, three = (stats.binomtest(k, 4).proportion_ci(method="wilson") for k in (2, 3))
    assert two.low < low < three.low and two.high < high < three.high
    assert score.accuracy_norm is not None and score.accuracy_norm.by_seed == (1.0, 0.75)
    assert (score.requests, score.truncated, score.unknown_tokens, score.ties) == (16, 2, 4, 6)
    alone = score_answers([answers([1, 0, 0, 1])])
    assert alone.accuracy.over_seeds == () and alone.accuracy_norm is None


def test_differences_are_paired_and_adjusted_for_the_number_of_tasks():
    ours = {"a": [answers([1] * 9 + [0])], "b": [answers([1, 0] * 5)]}
    theirs = {"a": [answers([0] * 9 + [1])], "b": [answers([0, 1] * 5)]}
    found = differences(ours, theirs)
    a, b = found["a"], found["b"]
    assert a.accuracy == pytest.approx(0.8) and (a.only_ours, a.only_theirs) == (9, 1)
    # Holm: the smaller of two p-values is doubled.
    assert a.p_value == pytest.approx(2 * stats.binomtest(9, 10).pvalue)
    assert b.accuracy == 0 and b.p_value == 1.0 and b.over_seeds == ()
    low, high = a.over_items
    assert low < 0.8 <= high <= 1.0
    # The same items are drawn for both: models that agree on every item do not differ at all.
    agreed = differences({"a": ours["a"] * 2}, {"a": ours["a"] * 2})["a"]
    assert agreed.over_items == agreed.over_seeds == (0.0, 0.0)


def test_answers_to_other_prompts_are_not_paired():
    with pytest.raises(ValueError, match="the prompts of t with seed 1 differ between the models"):
        differences(
            {"t": [answers([1]), answers([1], seed=1)]},
            {"t": [answers([1]), answers([1], prompts="q", seed=1)]},
        )
