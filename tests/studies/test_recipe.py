"""The study of the recipe: its boards, and whether they rank the arms alike."""

import pytest
from launchers import MadeUp

from layermem.models.registry import lookup
from layermem_bench.cli.study import parse
from layermem_bench.pages import study as page
from layermem_bench.studies.boards import parse_arms
from layermem_bench.studies.carrying_out import carry_out
from layermem_bench.studies.planning import trials
from layermem_bench.studies.ranks import rank_correlations
from layermem_bench.studies.recipe import ARMS

FEW = "plain,lime,value_residual,denseformer"
PLACE = {name: place for place, name in enumerate(FEW.split(","))}


def asked(*options):
    return parse(["recipe", "--variants", FEW, "--conditions", "tokens", *options]).study()


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
    by_arm = [planned.arm for planned in trials(study.boards[0]).values()]
    assert {arm: by_arm.count(arm) for arm in by_arm} == dict.fromkeys(FEW.split(","), 4)
    arms = parse_arms(",".join(ARMS))
    assert tuple(arms) == ARMS and all(lookup(variant) for variant, _ in arms.values())


def ranked(tmp_path, loss):
    study = asked("--widths", "64", "--no-arithmetic", "--trials", "2", "--seeds", "4")
    result, failure = carry_out(study, tmp_path, launcher=MadeUp(loss))
    assert failure is None
    return result


def test_boards_that_rank_alike_and_otherwise(tmp_path):
    def loss(run):
        return PLACE[run.variant] + 0.01 * run.seed

    result = ranked(tmp_path / "alike", loss)
    (alike,) = rank_correlations(result)
    assert alike.boards == ("code-8x64-1600", "code-8x64-400") and alike.arms == 4
    assert (alike.value, *alike.ends, alike.if_alike) == pytest.approx((1, 1, 1, 1))
    (table,) = [t for t in page.tables(result) if "rank correlation" in t.header]
    assert table.rows[0][:2] == ["code-8x64-1600 and code-8x64-400", "4"]

    def turned(run):
        return loss(run) if run.max_steps == 400 else 100 - loss(run)

    (otherwise,) = rank_correlations(ranked(tmp_path / "otherwise", turned))
    assert (otherwise.value, otherwise.ends[1], otherwise.if_alike) == pytest.approx((-1, -1, 1))


def test_arms_that_tie_have_no_rank(tmp_path):
    """As where a board is solved by all arms, with most seeds or with every one."""

    def tied(run):
        return 0.5 if run.seed or run.max_steps == 400 else PLACE[run.variant] / 10

    assert rank_correlations(ranked(tmp_path / "always", tied)) == []

    def mostly(run):
        return (0.5 if run.seed else 0.4 + PLACE[run.variant] / 100) + (run.max_steps == 400) / 10

    (found,) = rank_correlations(ranked(tmp_path / "mostly", mostly))
    assert found.value == pytest.approx(1) and found.ends is None


def test_arms_that_solve_a_board_leave_it_unsaid_whether_boards_rank_alike(tmp_path):
    """Studies drawn with as much noise for every arm have no ties, and would exceed any value."""

    def solved(run):
        easy = run.max_steps == 400
        return max(PLACE[run.variant], 2 if easy else 0) + (not easy) * 0.01 * run.seed

    (found,) = rank_correlations(ranked(tmp_path, solved))
    assert 0.7 < found.value < 1 and found.if_alike is None
