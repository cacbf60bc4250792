"""Lines of a table, and verdicts on claims: ranks, corrections, what cannot be said."""

from dataclasses import replace

import pytest
from made_up import a_comparison, a_result

from layermem_bench.statistics import interval, p_value, paired, price_of_looks
from layermem_bench.studies.comparing import compare, judge, lines_of
from layermem_bench.studies.result import Board, Condition, Metric, PaperNumber

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
        ((0.1, -0.1, 0.2), PLAIN, "similar", None, UNSAID, "within noise"),
        ((0.1, -0.1, 0.2), PLAIN, "higher", None, UNSAID, "within noise"),
        ((1.0, 1.1), PLAIN, "higher", None, UNSAID, "of seeds 2 there is no pair"),
        ((), PLAIN, "higher", None, UNSAID, "nothing is recorded"),
        # Such as one more right answer of 3,000 with every seed: no interval follows from it.
        ((1.0, 1.0, 1.0), PLAIN, "higher", None, UNSAID, "all pairs differ by the same"),
        (PLAIN, PLAIN, "higher", None, UNSAID, "within noise"),
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


def judged(values, claims=1, looks=1, plain=0.0):
    """Return what comes of so many claims of these values against a constant."""
    seeds, quantities = tuple(range(len(values))), [f"q{i}" for i in range(claims)]
    both = {"lime": values, "plain": [plain] * len(values)}
    asked = [{"quantity": quantity, "direction": "higher"} for quantity in quantities]
    condition = Condition(name="tokens", arms=(), looks=(seeds,) * looks)
    boards = (Board(name="b", metric="q", conditions=(condition,)),)
    return judge(a_result(dict.fromkeys(quantities, both), asked, seeds=seeds, boards=boards))


def test_one_pair_says_nothing_and_many_claims_are_corrected():
    (single,) = judged([1.0])
    assert (single.verdict, single.p, single.pairs_to_settle) == (UNSAID, None, None)
    assert single.reason == "one pair has no interval"
    (alone,) = judged([1.0, 2.0, 3.0, 1.0])
    many = judged([1.0, 2.0, 3.0, 1.0], 5)
    assert alone.p < 0.05 and many[0].p == pytest.approx(5 * alone.p)
    assert many[0].verdict == UNSAID and many[0].reason.startswith("within noise among so many")
    assert judged([-1.0, -2.0, -3.0, -1.0], 5)[0].verdict == UNSAID
    assert judged([-1.0, -2.0, -3.0, -1.0])[0].verdict == "does not hold"
    assert judged([1.0, 1.1, 0.9, 1.0], 5)[0].verdict == "holds"


def test_a_claim_after_a_further_look_needs_the_level_that_is_left():
    ours = (1.0, 1.6, 0.7, 2.4)
    p = p_value(interval(ours))
    assert 0.0125 < p < 0.05
    for looks, verdict in ((1, "holds"), (2, UNSAID)):
        (claim,) = judged(ours, looks=looks)
        assert claim.verdict == verdict
        assert claim.p == pytest.approx(p * price_of_looks(looks))
    # What is far beyond noise still is.
    (far,) = judged(ours, looks=3, plain=-9.0)
    assert far.verdict == "holds" and far.p < 0.05


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
    # From the best: for all three pairs, and none of the best itself.
    pairs = {
        arm: [VALUES["lime"][seed] - VALUES[arm][seed] for seed in (0, 1, 2)]
        for arm in ("plain", "mudd")
    }
    p_values = {arm: p_value(interval(pair)) for arm, pair in pairs.items()}
    assert p_values["plain"] < p_values["mudd"] < 0.001
    to_best = {arm: line.p_to_best for arm, line in by_arm.items()}
    assert to_best["lime"] is None and to_best["dca"] is None
    assert to_best["plain"] == pytest.approx(3 * p_values["plain"])
    assert to_best["mudd"] == pytest.approx(max(3 * p_values["plain"], 2 * p_values["mudd"]))
    lower = compare(VALUES, (0, 1, 2), "lower", looks=((0, 1), (0, 1, 2)))
    assert [line.arm for line in lower] == ["plain", "mudd", "lime", "dca"]
    # After a second look every p-value is four times as large.
    last = lower[2]
    assert last.p == pytest.approx(4 * by_arm["lime"].p)
    assert last.p_to_best == pytest.approx(4 * to_best["plain"])


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
    assert {x.rank for x in found} == {x.p_to_best for x in found} == {None}
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
