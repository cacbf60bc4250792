"""The study of the recipe: its boards, and whether they rank the arms alike."""

import pytest
from launchers import MadeUp

from layermem.models.registry import lookup
from layermem_bench.cli.study import OfRecipe, parse, study_of
from layermem_bench.pages import study as page
from layermem_bench.studies.boards import parse_arms
from layermem_bench.studies.carrying_out import carry_out
from layermem_bench.studies.comparing import rank_correlations
from layermem_bench.studies.planning import trials

FEW = "plain,lime,value_residual,denseformer"
PLACE = {name: place for place, name in enumerate(FEW.split(","))}


def asked(*options):
    return study_of(parse(["recipe", "--variants", FEW, "--conditions", "tokens", *options]))


def test_boards_are_texts_in_two_widths_at_two_lengths_and_arithmetic():
    study = asked("--text", "a.jsonl", "--held-out", "b.jsonl")
    boards = {board.name: board.base for board in study.boards}
    sizes = [f"8x{width}-{steps}" for width in (64, 128) for steps in (1600, 400)]
    assert list(boards) == [f"{t}-{s}" for t in ("code", "text") for s in sizes] + ["tiny-aet-4"]
    small, text = boards["code-8x64-400"], boards["text-8x128-1600"]
    assert (small.max_steps, small.eval_every, small.optim.warmup_steps) == (400, 400, 40)
    assert (text.data.source, text.data.validation) == ("a.jsonl", "b.jsonl")
    assert (text.model.hidden_size, text.model.num_attention_heads) == (128, 16)
    # Judged on a megabyte.
    assert text.eval_blocks * text.data.block_size >= 1_000_000
    # Every arm has as many trials.
    by_arm = [run.labels.arm for run in trials(study.boards[0]).values()]
    assert {arm: by_arm.count(arm) for arm in by_arm} == dict.fromkeys(PLACE, 4)
    assert all(lookup(variant) for variant, _ in parse_arms(OfRecipe().variants).values())


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
    study = asked("--widths", "64", "--no-arithmetic", "--trials", "2", "--seeds", "4")
    result, failure = carry_out(study, tmp_path, launcher=MadeUp(loss))
    assert failure is None
    (found,) = rank_correlations(result)
    assert found.boards == ("code-8x64-1600", "code-8x64-400") and found.arms == 4
    assert found.value == pytest.approx(value, abs=0.06)
    assert found.if_alike == (if_alike and pytest.approx(if_alike))
    (table,) = [t for t in page.tables(result) if "rank correlation" in t.header]
    assert table.rows[0][:2] == ["code-8x64-1600 and code-8x64-400", "4"]


def test_arms_that_always_tie_have_no_rank(tmp_path):
    study = asked("--widths", "64", "--no-arithmetic", "--trials", "2", "--seeds", "2")
    made_up = MadeUp(lambda run: 0.5 if run.max_steps == 400 else alike(run))
    result, _ = carry_out(study, tmp_path, launcher=made_up)
    assert rank_correlations(result) == []
