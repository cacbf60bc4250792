"""What is said of a claim: verdicts, corrections, what is computed of curves and layouts."""

from dataclasses import replace
from pathlib import Path

import pytest
from layermem.experiments.reproduction import inspecting, observing
from layermem.experiments.reproduction.summary import summarise
from layermem.results.run_record import Validation
from reproducing import made_up

from layermem import paper as artefacts
from layermem import reproduce
from layermem.intervals import interval, p_value, price_of_looks
from layermem.paper.artefact import (
    Claim,
    Observed,
    PaperNumber,
    Trained,
)
from layermem.results.analysis import Layout


@pytest.mark.parametrize(
    ("ours", "direction", "verdict", "reason"),
    [
        ((1.0, 1.1, 1.2), "higher", "holds", "the interval excludes 0"),
        ((1.0, 1.1, 1.2), "lower", "does not hold", "the other way round"),
        ((-1.0, -1.1, -1.2), "lower", "holds", "the interval excludes 0"),
        ((1.0, 1.1, 1.2), "similar", "does not hold", "the interval excludes 0"),
        ((0.1, -0.1, 0.2), "similar", "cannot be said at this scale", "within noise"),
        ((0.1, -0.1, 0.2), "higher", "cannot be said at this scale", "within noise"),
        ((1.0, 1.1), "higher", "cannot be said at this scale", "of seeds 2 there is no pair"),
        ((), "higher", "cannot be said at this scale", "nothing is recorded"),
        # Such as one more right answer of 3,000 with every seed: no interval follows from it.
        ((1.0, 1.0, 1.0), "higher", "cannot be said at this scale", "all pairs differ by the same"),
        ((0.0, 0.0, 0.0), "higher", "cannot be said at this scale", "within noise"),
    ],
)
def test_the_rule_of_verdicts(ours, direction, verdict, reason):
    artefact = made_up(
        claims=lambda scale: (Claim(quantity="q", arm="lime", direction=direction),),
        numbers=(
            PaperNumber(quantity="q", arm="lime", value=3.0, where="Table 0"),
            PaperNumber(quantity="q", arm="plain", value=1.0, where="Table 0"),
        ),
    )
    observed = [
        Observed(quantity="q", arm=arm, by_seed=dict(enumerate(values)))
        for arm, values in (("lime", ours), ("plain", (0.0, 0.0, 0.0)))
    ]
    rows, (claim,) = summarise(artefact, observed, "tiny", (0, 1, 2))
    assert (claim.verdict, claim.paper) == (verdict, 2.0)
    assert claim.reason.startswith(reason)
    assert [row.paper for row in rows] == [3.0, 1.0]


@pytest.mark.parametrize(
    ("plain", "lime", "chance", "verdict", "reason"),
    [
        # Ahead on every seed, and both no better than a guess.
        ((0.45, 0.46, 0.47), (0.48, 0.49, 0.51), 0.5, "cannot be said at this scale", "neither is"),
        ((0.48, 0.49, 0.51), (0.45, 0.46, 0.47), 0.5, "cannot be said at this scale", "neither is"),
        ((0.45, 0.46, 0.47), (0.58, 0.59, 0.61), 0.5, "holds", "the interval excludes 0"),
        ((0.58, 0.59, 0.61), (0.45, 0.46, 0.47), 0.5, "does not hold", "the other way round"),
        ((0.45, 0.46, 0.47), (0.48, 0.49, 0.51), None, "holds", "the interval excludes 0"),
        ((0.45,), (0.48,), 0.5, "cannot be said at this scale", "one pair has no interval"),
    ],
)
def test_of_two_guesses_neither_is_ahead(plain, lime, chance, verdict, reason):
    artefact = made_up(claims=lambda scale: (Claim(quantity="q", arm="lime", direction="higher"),))
    observed = [
        Observed(quantity="q", arm=arm, by_seed=dict(enumerate(values)), chance=chance)
        for arm, values in (("lime", lime), ("plain", plain))
    ]
    _, (claim,) = summarise(artefact, observed, "tiny", range(len(plain)))
    assert claim.verdict == verdict and claim.reason.startswith(reason)


def test_one_pair_says_nothing_and_many_claims_are_corrected():
    def judged(values, claims):
        artefact = made_up(
            claims=lambda scale: tuple(
                Claim(quantity=f"q{i}", arm="lime", direction="higher") for i in range(claims)
            )
        )
        observed = [
            Observed(quantity=f"q{i}", arm=arm, by_seed=dict(enumerate(row)))
            for i in range(claims)
            for arm, row in (("lime", values), ("plain", [0.0] * len(values)))
        ]
        return summarise(artefact, observed, "tiny", range(len(values)))[1]

    (single,) = judged([1.0], 1)
    assert (single.verdict, single.p) == ("cannot be said at this scale", None)
    assert single.difference.half is None and single.pairs_to_settle is None
    (alone,) = judged([1.0, 2.0, 3.0, 1.0], 1)
    many = judged([1.0, 2.0, 3.0, 1.0], 5)
    assert alone.p < 0.05 and many[0].p == pytest.approx(5 * alone.p)
    assert many[0].reason.endswith("within noise among so many claims (Holm)")
    refuted = judged([-1.0, -2.0, -3.0, -1.0], 5)[0]
    assert refuted.verdict == "does not hold" and refuted.p > 0.05
    assert refuted.reason.endswith("within noise among so many claims (Holm)")


def test_a_claim_after_a_further_look_needs_the_level_that_is_left():
    artefact = made_up(claims=lambda scale: (Claim(quantity="q", arm="lime", direction="higher"),))
    ours = (1.0, 1.6, 0.7, 2.4)
    observed = [
        Observed(quantity="q", arm=arm, by_seed=dict(enumerate(values)))
        for arm, values in (("lime", ours), ("plain", (0.0,) * 4))
    ]
    p = p_value(interval(ours))
    assert 0.0125 < p < 0.05
    for looks, verdict in ((1, "holds"), (2, "cannot be said at this scale")):
        _, (claim,) = summarise(artefact, observed, "tiny", range(4), looks)
        assert claim.verdict == verdict
        assert claim.p == pytest.approx(p * price_of_looks(looks))
    assert claim.reason.startswith("within noise at look 2")
    # What is far beyond noise still is.
    far = [observed[0], Observed(quantity="q", arm="plain", by_seed=dict.fromkeys(range(4), -9.0))]
    _, (claim,) = summarise(artefact, far, "tiny", range(4), 3)
    assert claim.verdict == "holds" and claim.p < 0.05


def test_tokens_saved_are_at_the_higher_last_loss():
    def curve(*losses):
        return tuple(
            Validation(step=10 * i, val_loss=loss, tokens=100.0 * i, flops=1000.0 * i)
            for i, loss in enumerate(losses, 1)
        )

    def share(ours, theirs):
        records = {"s": {"lime": {0: _Record(curve(*ours))}, "plain": {0: _Record(curve(*theirs))}}}
        trained = Trained(scale="tiny", seeds=(0,), records=records, out=Path())
        observed, zero = observing.saved(trained, "s", "lime", "tokens", "q")
        assert zero.by_seed == {0: 0.0}
        return observed.by_seed[0]

    # Half way between 3 and 1, after 150 of 400 tokens.
    assert share((3.0, 1.0, 0.5, 0.4), (4.0, 3.5, 3.0, 2.0)) == pytest.approx(1 - 150 / 400)
    assert share((4.0, 3.5, 3.0, 2.0), (3.0, 1.0, 0.5, 0.4)) == pytest.approx(1 - 400 / 150)
    assert share((3.0, 2.0), (3.0, 2.0)) == 0
    assert share((1.0, 1.0), (3.0, 2.0)) == pytest.approx(1 - 100 / 200)
    # How often a run is validated makes it no other run, but its curve another.
    for ours, theirs in (((3.0, 2.0), (3.0, 2.5, 2.0)), ((2.0,), (2.0,))):
        with pytest.raises(ValueError, match="validations at the same steps, two or more of them"):
            share(ours, theirs)


class _Record:
    folder = "runs/x"

    def __init__(self, validations):
        self.validations = validations


def test_the_nearest_point_of_a_layout():
    points = ((0.0, 0.0), (0.0, 1.0), (5.0, 5.0), (5.0, 6.0))
    layers = {0: points[::-1], 1: points}
    assert inspecting.same_as_nearest(Layout(labels=(0, 0, 1, 1), layers=layers)) == 1
    assert inspecting.same_as_nearest(Layout(labels=(0, 1, 0, 1), layers=layers)) == 0
    assert inspecting.same_as_nearest(Layout(labels=(0, 0, 1, 2), layers=layers)) == 0.5


def test_what_is_counted_equals_the_papers_at_its_sizes_alone(tmp_path):
    paper, _ = reproduce.reproduce("table8", "paper", None, tmp_path)
    assert [claim.verdict for claim in paper.claims] == ["holds"] * 4
    assert {round(claim.paper, 4) for claim in paper.claims} == {0.0, 0.0008, 0.0001, 0.0122}
    tiny, _ = reproduce.reproduce("table8", "tiny", None, tmp_path)
    assert {claim.verdict for claim in tiny.claims} == {"cannot be said at this scale"}
    wrong = replace(
        artefacts.get_artefact("table8"),
        numbers=(
            PaperNumber(
                quantity="forward FLOPs above plain, full attention",
                arm="lime",
                value=0.0123,
                where="Table 8",
            ),
        ),
    )
    trained = Trained(scale="paper", seeds=(0,), records={}, out=tmp_path)
    _, claims = summarise(wrong, wrong.observe(trained), "paper", (0,))
    assert [claim.verdict for claim in claims].count("does not hold") == 1
