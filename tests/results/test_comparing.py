"""Lines of a table, and verdicts on claims: ranks, corrections, what cannot be said."""

from dataclasses import replace

import pytest
from made_up import a_result

from layermem_bench.paper import get_artefact
from layermem_bench.results.comparing import compare, judge, lines_of
from layermem_bench.results.intervals import interval, p_value, paired, price_of_looks
from layermem_bench.results.study import Arm, Board, Condition, Metric, PaperNumber, RunRecord
from layermem_bench.study.carrying_out import carry_out

UNSAID = "cannot be said at this scale"
HIGHER = {"quantity": "q", "direction": "higher"}


@pytest.mark.parametrize(
    ("ours", "direction", "verdict", "reason"),
    [
        ((1.0, 1.1, 1.2), "higher", "holds", "the interval excludes 0"),
        ((1.0, 1.1, 1.2), "lower", "does not hold", "the other way round"),
        ((-1.0, -1.1, -1.2), "lower", "holds", "the interval excludes 0"),
        ((1.0, 1.1, 1.2), "similar", "does not hold", "the interval excludes 0"),
        ((0.1, -0.1, 0.2), "similar", UNSAID, "within noise"),
        ((0.1, -0.1, 0.2), "higher", UNSAID, "within noise"),
        ((1.0, 1.1), "higher", UNSAID, "of seeds 2 there is no pair"),
        ((), "higher", UNSAID, "nothing is recorded"),
        # Such as one more right answer of 3,000 with every seed: no interval follows from it.
        ((1.0, 1.0, 1.0), "higher", UNSAID, "all pairs differ by the same"),
        ((0.0, 0.0, 0.0), "higher", UNSAID, "within noise"),
    ],
)
def test_the_rule_of_verdicts(ours, direction, verdict, reason):
    papers = tuple(
        PaperNumber(quantity="q", arm=arm, value=value, where="Table 0")
        for arm, value in (("lime", 3.0), ("plain", 1.0))
    )
    claims = [{"quantity": "q", "direction": direction}]
    result = a_result({"q": {"lime": ours, "plain": (0.0, 0.0, 0.0)}}, claims, papers=papers)
    (judged,) = judge(result)
    assert (judged.verdict, judged.paper) == (verdict, 2.0)
    assert judged.reason.startswith(reason)


@pytest.mark.parametrize(
    ("plain", "lime", "chance", "verdict", "reason"),
    [
        # Ahead on every seed, and both no better than a guess.
        ((0.45, 0.46, 0.47), (0.48, 0.49, 0.51), 0.5, UNSAID, "neither is"),
        ((0.48, 0.49, 0.51), (0.45, 0.46, 0.47), 0.5, UNSAID, "neither is"),
        # A mean above a guess, whose interval is not.
        ((0.45, 0.46, 0.47), (0.49, 0.53, 0.52), 0.5, UNSAID, "neither is"),
        ((0.45, 0.46, 0.47), (0.58, 0.59, 0.61), 0.5, "holds", "the interval excludes 0"),
        ((0.58, 0.59, 0.61), (0.45, 0.46, 0.47), 0.5, "does not hold", "the other way round"),
        ((0.45, 0.46, 0.47), (0.48, 0.49, 0.51), None, "holds", "the interval excludes 0"),
        ((0.45,), (0.48,), 0.5, UNSAID, "one pair has no interval"),
    ],
)
def test_of_two_guesses_neither_is_ahead(plain, lime, chance, verdict, reason):
    metrics = {"q": Metric(is_share=True, chance=chance)}
    values = {"q": {"plain": plain, "lime": lime}}
    (judged,) = judge(a_result(values, [HIGHER], seeds=range(len(plain)), metrics=metrics))
    assert judged.verdict == verdict and judged.reason.startswith(reason)


def test_one_pair_says_nothing_and_many_claims_are_corrected():
    def judged(values, claims):
        quantities = [f"q{i}" for i in range(claims)]
        both = {"lime": values, "plain": [0.0] * len(values)}
        asked = [{"quantity": quantity, "direction": "higher"} for quantity in quantities]
        return judge(a_result(dict.fromkeys(quantities, both), asked, seeds=range(len(values))))

    (single,) = judged([1.0], 1)
    assert (single.verdict, single.p, single.pairs_to_settle) == (UNSAID, None, None)
    (alone,) = judged([1.0, 2.0, 3.0, 1.0], 1)
    many = judged([1.0, 2.0, 3.0, 1.0], 5)
    assert alone.p < 0.05 and many[0].p == pytest.approx(5 * alone.p)
    assert many[0].verdict == UNSAID and many[0].reason.startswith("within noise among so many")
    refuted = judged([-1.0, -2.0, -3.0, -1.0], 5)[0]
    assert refuted.verdict == UNSAID and refuted.p > 0.05
    assert judged([-1.0, -2.0, -3.0, -1.0], 1)[0].verdict == "does not hold"
    assert judged([1.0, 1.1, 0.9, 1.0], 5)[0].verdict == "holds"


def test_a_claim_after_a_further_look_needs_the_level_that_is_left():
    ours, seeds = (1.0, 1.6, 0.7, 2.4), (0, 1, 2, 3)
    p = p_value(interval(ours))
    assert 0.0125 < p < 0.05

    def judged(plain, looks):
        values = {"q": {"lime": ours, "plain": (plain,) * 4}}
        return judge(a_result(values, [HIGHER], seeds=seeds, looks=(seeds,) * looks))[0]

    for looks, verdict in ((1, "holds"), (2, UNSAID)):
        claim = judged(0.0, looks)
        assert claim.verdict == verdict
        assert claim.p == pytest.approx(p * price_of_looks(looks))
    assert claim.reason.startswith("within noise at look 2")
    # What is far beyond noise still is.
    far = judged(-9.0, 3)
    assert far.verdict == "holds" and far.p < 0.05


def test_what_is_counted_equals_the_papers_at_its_sizes_alone(tmp_path):
    of_paper = get_artefact("table8").study("table8", "paper")
    paper, _ = carry_out(of_paper, tmp_path)
    judged = judge(paper)
    assert [each.verdict for each in judged] == ["holds"] * 4
    assert {round(each.paper, 4) for each in judged} == {0.0, 0.0008, 0.0001, 0.0122}
    tiny, _ = carry_out(get_artefact("table8").study("table8", "tiny"), tmp_path)
    assert {each.verdict for each in judge(tiny)} == {UNSAID}
    wrong = PaperNumber(
        quantity="forward FLOPs above plain, full attention",
        arm="lime",
        value=0.0123,
        where="Table 8",
    )
    verdicts = [each.verdict for each in judge(replace(paper, papers=(wrong,)))]
    assert verdicts.count("does not hold") == 1
    # A number with seeds is no counted one.
    with pytest.raises(ValueError, match="FLOPs above plain"):
        judge(replace(paper, metrics={}, papers=(wrong,)))


VALUES = {
    "plain": {0: 0.50, 1: 0.51, 2: 0.49},
    "lime": {0: 0.70, 1: 0.72, 2: 0.69},
    "mudd": {0: 0.50, 1: 0.53, 2: 0.49},
    "dca": {0: 0.9},
}


def test_arms_are_ranked_and_their_differences_adjusted():
    lines = compare(VALUES, (0, 1, 2), "higher")
    # One that lacks seeds has no rank, whatever its mean is.
    assert [(line.arm, line.rank) for line in lines] == [
        *(("lime", 1), ("mudd", 2), ("plain", 3)),
        ("dca", None),
    ]
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
    looked = {line.arm: line.p for line in compare(VALUES, (0, 1, 2), "higher", looks=2)}
    assert looked["lime"] == pytest.approx(price_of_looks(2) * by_arm["lime"].p)
    assert [line.arm for line in compare(VALUES, (0, 1, 2), "lower")][:3] == [
        *("plain", "mudd", "lime"),
    ]


def test_equal_arms_share_a_rank_in_whatever_order_they_are_named():
    right = {"plain": [1.0] * 3, "lime": [1.0] * 3, "mudd": [0.8, 0.9, 0.7], "yoco": [0.1] * 3}
    for names in (list(right), list(right)[::-1]):
        values = {arm: dict(enumerate(right[arm])) for arm in names}
        ranks = {line.arm: line.rank for line in compare(values, range(3), "higher")}
        assert ranks == {"plain": 1, "lime": 1, "mudd": 3, "yoco": 4}


def test_of_two_seeds_or_of_nothing_better_there_is_no_rank():
    two = {arm: {0: values[0], 1: values[1]} for arm, values in list(VALUES.items())[:3]}
    assert {line.rank for line in compare(two, (0, 1), "higher")} == {None}
    neither = compare(VALUES, (0, 1, 2), None)
    assert [line.arm for line in neither] == list(VALUES) and neither[1].rank is None
    assert compare({}, (0, 1), "higher") == []


def test_differences_are_of_the_seeds_that_both_have():
    runs = tuple(
        RunRecord(
            name=f"{arm}-s{seed}", run_id=f"{arm}{seed}", folder="", state="ended", board="b",
            arm=arm, seed=seed, conditions=("tokens",), metrics={"right answers": value},
        )
        for arm, values in (("plain", (0.3, 0.4)), ("lime", (0.52, 0.6, 0.7)))
        for seed, value in enumerate(values)
    )  # fmt: skip
    arms = (Arm(name="plain", steps=1), Arm(name="lime", steps=1), Arm(name="mudd", steps=1))
    condition = Condition(name="tokens", arms=arms)
    board = Board(name="b", metric="right answers", conditions=(condition,))
    metrics = {"right answers": Metric(is_share=True, better="higher")}
    result = a_result({}, boards=(board,), runs=runs, metrics=metrics)
    lime, plain, mudd = lines_of(result, board, condition, "right answers")
    assert lime.difference == paired([0.52, 0.6], [0.3, 0.4])
    assert lime.difference.mean == pytest.approx(0.21) and lime.rank == 1
    assert plain.missing == (2,) and plain.rank is None
    # An arm without any value is in the table.
    assert (mudd.mean, mudd.difference, mudd.missing) == (None, None, (0, 1, 2))
    # Of what nothing is recorded of there are empty lines.
    assert {line.mean for line in lines_of(result, board, condition, "F1 of words")} == {None}
