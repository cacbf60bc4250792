"""Scores and differences from given answers, against values by hand and by scipy."""

from dataclasses import replace

import pytest
from scipy import stats

from layermem_bench.evals import adjust_together
from layermem_bench.evals.benchmarks import compare_answers, score_answers
from layermem_bench.results.eval import TaskAnswers


def answers(right, norm=None, prompts="p", seed=0):
    return TaskAnswers(
        key={"task": "t", "seed": seed},
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
    score, norm = score_answers(
        [answers([1, 1, 0, 0], [1, 1, 1, 1]), answers([1, 1, 1, 0], [1, 0, 1, 1])]
    )
    assert score.repeats == (0.5, 0.75) and (score.value, score.count) == (0.625, 4)
    # 2.5 of 4: the third item is right with one seed of two. Between Wilson's of 2 and of 3 of 4.
    low, high = score.interval
    two, three = (stats.binomtest(k, 4).proportion_ci(method="wilson") for k in (2, 3))
    assert two.low < low < three.low and two.high < high < three.high
    assert norm is not None and norm.repeats == (1.0, 0.75)
    assert score.counts == {"prompts": 16, "prompts cut": 2, "unknown tokens": 4, "ties": 6}
    # What there is none of is not said.
    plain = replace(answers([1, 0, 0, 1]), truncated=0, unknown_tokens=0, ties=0)
    alone, norm = score_answers([plain])
    assert (alone.repeats, alone.counts, norm) == ((0.5,), {}, None)


def test_differences_are_paired_and_adjusted_for_the_number_of_tasks_and_models():
    ours = {"a": [answers([1] * 9 + [0])], "b": [answers([1, 0] * 5)]}
    theirs = {"a": [answers([0] * 9 + [1])], "b": [answers([0, 1] * 5)]}
    raw = compare_answers(ours, theirs)
    found = adjust_together({"one": raw})["one"]
    a, b = found["a"], found["b"]
    assert a.value == pytest.approx(0.8)
    # Holm: the smaller of two p-values is doubled.
    assert a.p == pytest.approx(2 * stats.binomtest(9, 10).pvalue)
    assert (b.value, b.p) == (0, 1)
    # Of two models there are four.
    of_two = adjust_together({"one": raw, "other": raw})
    assert of_two["one"]["a"].p == of_two["other"]["a"].p == pytest.approx(4 * raw["a"].p)
    low, high = a.interval
    assert low < 0.8 <= high <= 1.0
    # The same items are drawn for both: models that agree on every item do not differ at all.
    agreed = compare_answers({"a": ours["a"] * 2}, {"a": ours["a"] * 2})["a"]
    assert (agreed.value, agreed.interval, agreed.p) == (0, (0.0, 0.0), 1)


def test_the_p_value_is_of_the_first_seed():
    """McNemar's test needs one answer for each item."""
    ours = [answers([1] * 8 + [0] * 2), answers([0] * 10, seed=1)]
    theirs = [answers([0] * 10), answers([0] * 10, seed=1)]
    found = compare_answers({"a": ours}, {"a": theirs})["a"]
    assert found.p == pytest.approx(stats.binomtest(8, 8).pvalue)
    assert found.value == pytest.approx(0.4)


def test_answers_to_other_prompts_are_not_paired():
    with pytest.raises(ValueError, match="the prompts of t with seed 1 differ between the models"):
        compare_answers(
            {"t": [answers([1]), answers([1], seed=1)]},
            {"t": [answers([1]), answers([1], prompts="q", seed=1)]},
        )
