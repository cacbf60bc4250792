"""The study of the recipe: its boards, arms and questions."""

from collections import Counter

from layermem_bench.cli.study import OfRecipe, parse, study_of
from layermem_bench.studies.planning import trials

FEW = "plain,lime,value_residual,denseformer"
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
    assert [each.arm for each in few] == ["value_residual", "lime"]
    assert {(each.against, each.direction, each.margin) for each in few} == {
        ("plain", "lower", 0.01)
    }
