"""Baselines of a task from what lm-eval logs of its items."""

import pytest

pytest.importorskip("lm_eval")


def sample(choices, target):
    return {"arguments": [("context", f" {choice}") for choice in choices], "target": target}


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        # By its place the first choice is right twice, by its text "no" three times.
        ([(["yes", "no"], 1), (["no", "yes"], 0), (["no", "yes"], 0)], (1 / 2, 1.0)),
        ([(["a", "b"], 1), (["c", "d", "e", "f"], 1), (["g", "h"], 0)], (5 / 12, 2 / 3)),
        # COPA's targets are texts.
        ([([" so it is", " no"], " no")], (1 / 2, 1.0)),
    ],
)
def test_chance_and_the_most_frequent_answer(samples, expected):
    from layermem_bench.evals.harness import baselines

    assert baselines([sample(*each) for each in samples]) == pytest.approx(expected)


@pytest.mark.parametrize("target", [-1, 2, "c", None])
def test_an_answer_that_is_no_choice_is_refused(target):
    from layermem_bench.evals.harness import baselines

    with pytest.raises(ValueError, match=f"item 5 has the answer {target!r}, which is none of its"):
        baselines([{**sample(["a", "b"], target), "doc_id": 5}])


def test_one_answer_after_two_contexts_is_not_the_most_frequent():
    from layermem_bench.evals.harness import baselines

    assert baselines([sample(["x", "x"], place) for place in (0, 1, 1)]) == (1 / 2, 2 / 3)
