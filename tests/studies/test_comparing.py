"""Lines of a table, and verdicts on claims: ranks, corrections, what cannot be said."""

from dataclasses import replace

import pytest
from made_up import a_comparison, a_result

from layermem_bench.statistics import p_of_signs, p_value, paired
from layermem_bench.studies.comparing import answers, compare, judge, lines_of
from layermem_bench.studies.result import Metric, PaperNumber, Question

UNSAID = "cannot be said at this scale"
PLAIN, AHEAD = (0.0, 0.0, 0.0), (1.0, 1.1, 1.2)
# Shares: no better than a guess, ahead of these on every seed and no better either, and better.
GUESS, OTHER, BETTER = (0.45, 0.46, 0.47), (0.48, 0.49, 0.51), (0.58, 0.59, 0.61)


@pytest.mark.parametrize(
    ("ours", "theirs", "direction", "chance", "verdict", "reason"),
    [
        (AHEAD, PLAIN, "higher", None, "holds", "the interval excludes 0"),
        (AHEAD, PLAIN, "lower", None, "does not hold", "the other way round"),
        (PLAIN, AHEAD, "lower", None, "holds", "the interval excludes 0"),
        (AHEAD, PLAIN, "similar", None, "does not hold", "the interval excludes 0"),
        ((0.1, -0.1, 0.2), PLAIN, "similar", None, UNSAID, "the interval includes 0"),
        ((0.1, -0.1, 0.2), PLAIN, "higher", None, UNSAID, "the interval includes 0"),
        ((1.0, 1.1), PLAIN, "higher", None, UNSAID, "of seeds 2 there is no pair"),
        ((), PLAIN, "higher", None, UNSAID, "nothing is recorded"),
        # Such as one more right answer of 3,000 with every seed: no interval follows from it.
        ((1.0, 1.0, 1.0), PLAIN, "higher", None, UNSAID, "all pairs differ by the same"),
        (PLAIN, PLAIN, "higher", None, UNSAID, "the interval includes 0"),
        (OTHER, GUESS, "higher", 0.5, UNSAID, "neither is above a guess"),
        (GUESS, OTHER, "higher", 0.5, UNSAID, "neither is above a guess"),
        # A mean above a guess, whose interval is not.
        ((0.49, 0.53, 0.52), GUESS, "higher", 0.5, UNSAID, "neither is above a guess"),
        (BETTER, GUESS, "higher", 0.5, "holds", "the interval excludes 0"),
        (GUESS, BETTER, "higher", 0.5, "does not hold", "the other way round"),
        (OTHER, GUESS, "higher", None, "holds", "the interval excludes 0"),
    ],
)
def test_the_rule_of_verdicts(ours, theirs, direction, chance, verdict, reason):
    papers = tuple(
        PaperNumber(quantity="q", arm=arm, value=value, where="Table 0")
        for arm, value in (("lime", 3.0), ("plain", 1.0))
    )
    result = a_result(
        {"q": {"lime": ours, "plain": theirs}},
        [{"quantity": "q", "direction": direction}],
        papers=papers,
        metrics={"q": Metric(chance=chance)},
    )
    (judged,) = judge(result)
    assert (judged.verdict, judged.paper) == (verdict, 2.0)
    assert judged.reason.startswith(reason)


def judged(values, claims=1, plain=0.0):
    """Return what comes of so many claims of these values against a constant."""
    seeds, quantities = tuple(range(len(values))), [f"q{i}" for i in range(claims)]
    both = {"lime": values, "plain": [plain] * len(values)}
    asked = [{"quantity": quantity, "direction": "higher"} for quantity in quantities]
    return judge(a_result(dict.fromkeys(quantities, both), asked, seeds=seeds))


def test_one_pair_says_nothing_and_many_claims_are_corrected():
    (single,) = judged([1.0])
    assert (single.verdict, single.p) == (UNSAID, None)
    assert single.reason.startswith("one pair has no interval")
    (alone,) = judged([1.0, 2.0, 3.0, 1.0])
    many = judged([1.0, 2.0, 3.0, 1.0], 5)
    assert alone.p < 0.05 and many[0].p == pytest.approx(5 * alone.p)
    assert many[0].verdict == UNSAID and many[0].p > 0.05
    assert judged([-1.0, -2.0, -3.0, -1.0], 5)[0].verdict == UNSAID
    assert judged([-1.0, -2.0, -3.0, -1.0])[0].verdict == "does not hold"
    assert judged([1.0, 1.1, 0.9, 1.0], 5)[0].verdict == "holds"


# Eight differences: told from 0, and not by much; as many told as they are spread; of two sizes.
LARGE = (-0.05, -0.03, -0.06, -0.04, -0.05, -0.02, -0.04, -0.05)
SMALL = (-0.004, -0.002, -0.005, -0.003, -0.004, -0.001, -0.003, -0.004)
NEAR = (0.002, -0.001, 0.003, -0.002, 0.001, -0.003, 0.002, -0.001)
WIDE = (0.04, -0.03, 0.05, -0.06, 0.02, -0.04, 0.03, -0.02)


@pytest.mark.parametrize(
    ("differences", "direction", "margin", "answer", "bound"),
    [
        (LARGE, "lower", 0.01, "yes", 0.0532),
        (LARGE, "higher", 0.01, "no", 0.0),
        (SMALL, "lower", 0.01, "yes", 0.0044),
        (NEAR, "lower", 0.01, "not more than", 0.0017),
        (NEAR, "higher", 0.01, "not more than", 0.0020),
        (NEAR, "higher", None, "open", 0.0020),
        (NEAR, "higher", 0.001, "open", 0.0020),
        (WIDE, "lower", 0.01, "open", 0.0357),
    ],
)
def test_a_question_is_answered_alone(differences, direction, margin, answer, bound):
    plain = tuple(2 + 0.1 * seed for seed in range(8))
    lime = tuple(a + b for a, b in zip(plain, differences, strict=True))
    # Others on the board change nothing.
    asked = Question(
        board="b", condition="tokens", arm="lime", direction=direction, against="plain",
        margin=margin,
    )  # fmt: skip
    values = {"plain": plain, "lime": lime, "mudd": plain[::-1]}
    (found,) = answers(a_comparison(values, questions=(asked,)))
    assert found.answer == answer and found.bound == pytest.approx(bound, abs=1e-4)
    assert found.p == pytest.approx(p_value(paired(lime, plain)))
    assert found.p_of_signs == p_of_signs(dict(enumerate(lime)), dict(enumerate(plain)))
    # A seed that diverged leaves those that did not, which may be the lucky ones.
    (left,) = answers(a_comparison(values | {"lime": (*lime[:7], None)}, questions=(asked,)))
    assert (left.answer, left.p, left.difference.count) == (None, None, 7)


def test_what_is_counted_equals_the_papers_at_its_sizes_alone():
    paper = PaperNumber(quantity="q", arm="lime", value=0.0122, where="Table 8")
    claim = {"quantity": "q", "arm": "lime", "direction": "equal", "against": None}
    values = {"q": {"lime": (0.01224,)}}
    made = a_result(values, [claim], seeds=(0,), papers=(paper,), scale="paper")
    for changes, verdict in (
        ({}, "holds"),
        ({"scale": "tiny"}, UNSAID),
        ({"papers": (replace(paper, value=0.0123),)}, "does not hold"),
    ):
        assert judge(replace(made, **changes))[0].verdict == verdict


VALUES = {
    "plain": {0: 0.50, 1: 0.51, 2: 0.49},
    "lime": {0: 0.70, 1: 0.72, 2: 0.69},
    "mudd": {0: 0.50, 1: 0.53, 2: 0.49},
    "dca": {0: 0.9},
}


def test_arms_are_ranked_and_their_differences_adjusted():
    lines = compare(VALUES, (0, 1, 2), "higher")
    # One that lacks seeds has no rank, whatever its mean is.
    ranks = [("lime", 1), ("mudd", 2), ("plain", 3), ("dca", None)]
    assert [(line.arm, line.rank) for line in lines] == ranks
    by_arm = {line.arm: line for line in lines}
    assert by_arm["dca"].missing == (1, 2) and by_arm["dca"].p is None
    assert by_arm["plain"].difference is None and by_arm["plain"].p is None
    # By hand: differences .20, .21, .20 have t = 61 and p = .00027, doubled; 0, .02, 0 have t = 1.
    assert by_arm["lime"].p == pytest.approx(2 * 0.000269, rel=5e-3)
    assert by_arm["mudd"].p == pytest.approx(0.4226, abs=1e-4)
    lower = compare(VALUES, (0, 1, 2), "lower", tested=False)
    assert [(line.arm, line.p) for line in lower] == [
        (arm, None) for arm in ("plain", "mudd", "lime", "dca")
    ]
    assert lower[2].difference == by_arm["lime"].difference and lower[2].rank == 3


def test_equal_arms_share_a_rank_in_whatever_order_they_are_named():
    right = {"plain": [1.0] * 3, "lime": [1.0] * 3, "mudd": [0.8, 0.9, 0.7], "yoco": [0.1] * 3}
    for names in (list(right), list(right)[::-1]):
        values = {arm: dict(enumerate(right[arm])) for arm in names}
        ranks = {line.arm: line.rank for line in compare(values, range(3), "higher")}
        assert ranks == {"plain": 1, "lime": 1, "mudd": 3, "yoco": 4}


@pytest.mark.parametrize(
    ("seeds", "better"), [((0,), "higher"), ((0, 1), "higher"), ((0, 1, 2), None)]
)
def test_fewer_than_three_seeds_or_nothing_better_rank_no_arm(seeds, better):
    """Of two seeds 12.5% and 98.2% the mean is the highest, +- 544%."""
    values = {"a": (0.125, 0.982, 0.4), "b": (0.5, 0.52, 0.5), "c": (0.51, 0.5, 0.4)}
    by_seed = {arm: {seed: of_arm[seed] for seed in seeds} for arm, of_arm in values.items()}
    found = compare(by_seed, seeds, better)
    assert {x.rank for x in found} == {None}
    assert all(x.missing == () and x.mean.count == len(seeds) for x in found)
    assert compare({}, seeds, better) == []


def test_differences_are_of_the_seeds_that_both_have():
    values = {"plain": (0.3, 0.4, None), "lime": (0.52, 0.6, 0.7), "mudd": (None,) * 3}
    result = a_comparison(values, metric="right answers")
    (board,) = result.boards
    lime, plain, mudd = lines_of(result, board, board.conditions[0], "right answers")
    assert lime.difference == paired([0.52, 0.6], [0.3, 0.4]) and lime.rank == 1
    assert plain.missing == (2,) and plain.rank is None
    # An arm without any value is in the table; what nobody recorded has empty lines.
    assert (mudd.mean, mudd.difference, mudd.missing) == (None, None, (0, 1, 2))
    assert {x.mean for x in lines_of(result, board, board.conditions[0], "other")} == {None}
