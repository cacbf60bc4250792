"""The study of the recipe: its boards, and whether they rank the arms alike."""

from collections import Counter

import pytest
from launchers import MadeUp

from layermem_bench.cli.study import OfRecipe, parse, study_of
from layermem_bench.pages import study as page
from layermem_bench.studies.carrying_out import carry_out
from layermem_bench.studies.comparing import rank_correlations
from layermem_bench.studies.planning import trials

FEW = "plain,lime,value_residual,denseformer"
PLACE = {name: place for place, name in enumerate(FEW.split(","))}
TWO = ("--lengths", "1600", "400", "--rates", "5e-3", "1e-2")


def asked(*options, variants=FEW):
    return study_of(parse(["recipe", "--variants", variants, *options]))


def test_boards_are_texts_and_questions_of_the_arms_that_there_are():
    study = asked("--text", "a.jsonl", "--held-out", "b.jsonl", *TWO, variants=OfRecipe().variants)
    boards = {board.name: board.base for board in study.boards}
    assert list(boards) == ["code-1600", "code-400", "text-1600", "text-400"]
    small, text = boards["code-400"], boards["text-1600"]
    assert (small.max_steps, small.eval_every, small.optim.warmup_steps) == (400, 400, 40)
    assert (text.data.source, text.data.validation) == ("a.jsonl", "b.jsonl")
    # Judged on a megabyte.
    assert text.eval_blocks * text.data.block_size >= 1_000_000
    # Every arm has as many trials; half of the heads is an arm like others.
    runs = trials(study.boards[0])
    by_arm = Counter(run.labels.arm for run in runs.values())
    assert len(by_arm) == 10 and {*by_arm.values()} == {2}
    heads = [run for run in runs.values() if run.labels.arm == "plain:num_key_value_heads=2"]
    assert {run.model.num_key_value_heads for run in heads} == {2} and not heads[0].model.options
    assert len(study.seeds) == 8 and len(study.questions) == 4 * len(OfRecipe().ask)
    few = asked().questions
    assert [each.arm for each in few] == ["lime", "value_residual"]
    assert {(each.against, each.direction, each.margin) for each in few} == {
        ("plain", "lower", 0.01)
    }


def alike(run):
    return PLACE[run.variant] + 0.01 * run.seed


def turned(run):
    return alike(run) if run.max_steps == 400 else 100 - alike(run)


def mostly_tied(run):
    return (0.5 if run.seed else 0.4 + PLACE[run.variant] / 100) + (run.max_steps == 400) / 10


def solved(run):
    """Draws with as much noise for every arm have no ties, and would exceed any value."""
    easy = run.max_steps == 400
    return max(PLACE[run.variant], 2 if easy else 0) + (not easy) * 0.01 * run.seed


@pytest.mark.parametrize(
    ("loss", "value", "if_alike"),
    [(alike, 1, 1), (turned, -1, 1), (mostly_tied, 1, None), (solved, 0.77, None)],
)
def test_boards_rank_alike_or_otherwise(loss, value, if_alike, tmp_path):
    study = asked(*TWO, "--seeds", "4")
    result, failure = carry_out(study, tmp_path, launcher=MadeUp(loss))
    assert failure is None
    (found,) = rank_correlations(result)
    assert found.boards == ("code-1600", "code-400") and found.arms == 4
    assert found.value == pytest.approx(value, abs=0.06)
    assert found.if_alike == (if_alike and pytest.approx(if_alike))
    (table,) = [t for t in page.tables(result) if "rank correlation" in t.header]
    assert table.rows[0][:2] == ["code-1600 and code-400", "4"]


def test_arms_that_always_tie_have_no_rank(tmp_path):
    study = asked(*TWO, "--seeds", "2")
    made_up = MadeUp(lambda run: 0.5 if run.max_steps == 400 else alike(run))
    result, _ = carry_out(study, tmp_path, launcher=made_up)
    assert rank_correlations(result) == []
