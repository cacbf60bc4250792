"""The page of a study: rows of its tables, what came out in words, what is missing is said."""

import re
from dataclasses import replace

import pytest
from made_up import a_comparison, a_result
from recorded import record

from layermem_bench import cli
from layermem_bench.costs.closed_forms import count_cost
from layermem_bench.pages import study as report
from layermem_bench.pages.page import write_page
from layermem_bench.pages.study_tables import (
    arms_table,
    end_of_range,
    ranks_table,
    rates_table,
    runs_table,
    shapes_tables,
)
from layermem_bench.presets import get_preset
from layermem_bench.studies.result import MeasuredSteps, TriedRates, Validation

# Differences .20, .21, .20 have t = 61 and p = .00027, doubled; 0, .01, 0 have t = 1.
SHARES = {"plain": (0.50, 0.51, 0.49), "lime": (0.70, 0.72, 0.69), "mudd": (0.50, 0.52, 0.49)}
RIGHT = "right answers"


def rows_of(result, metric=RIGHT, condition=0, **how):
    """Return the rows of the table of a metric, by arm: column to text."""
    board = result.boards[0]
    table = arms_table(result, board, board.conditions[condition], metric, **how)
    rows = [dict(zip(table.header, row, strict=True)) for row in table.texts()]
    return {row[table.header[table.header[0] == ""]]: row for row in rows}, table


def of_board(result, **changes):
    return replace(result, boards=(replace(result.boards[0], **changes),))


def test_arms_stand_side_by_side():
    result = a_comparison({**SHARES, "dca": (0.9, None, None)}, metric=RIGHT)
    rows, table = rows_of(result)
    assert list(rows) == ["lime", "mudd", "plain", "dca"]
    assert rows["lime"] == {
        "": "1",
        "b, equal tokens": "lime",
        RIGHT: "70.3% ± 3.8%",
        "each seed": "70.0% 72.0% 69.0%",
        "against plain": "+20.3% ± 1.4%",
        "p (Holm)": "< 0.001",
        "against the best": "best mean",
        "seeds to settle it": "2",
    }
    assert rows["mudd"]["p (Holm)"] == "0.423, within noise"
    assert (rows["plain"]["against plain"], rows["plain"]["p (Holm)"]) == ("", "")
    assert rows["dca"][""] == "" and rows["dca"][RIGHT] == "90.0% (one seed) (diverged: seed 1, 2)"
    assert "All arms: steps 100, parameters 7." in table.caption
    narrow, _ = rows_of(result, narrow=True)
    assert not {"each seed", "against the best"} & narrow["lime"].keys()
    # Of two arms the difference from the best is that from the first.
    two, _ = rows_of(a_comparison(dict(list(SHARES.items())[:2]), metric=RIGHT))
    assert two["lime"]["p (Holm)"] == "< 0.001" and "against the best" not in two["lime"]


def test_seeds_that_are_not_in_a_mean_are_named():
    values = {"plain": (0.30, 0.40, 0.35), "lime": (0.52, 0.60, None)}
    result = a_comparison(values, metric=RIGHT)
    rows, _ = rows_of(result)
    assert rows["lime"][RIGHT] == "56% (5% to 100%) (diverged: seed 2)"
    assert rows["lime"]["each seed"] == "52.0% 60.0%"
    assert rows["lime"]["against plain"] == "+21% ± 13% (over 2 of 3 seeds)"
    # The other way around it is the first arm that lacks a seed.
    rows, _ = rows_of(a_comparison(dict(reversed(values.items())), metric=RIGHT))
    assert rows["plain"]["against lime"] == "-21% ± 13% (over 2 of 3 seeds)"
    ended = [replace(run, state="ended") for run in result.runs]
    rows, _ = rows_of(replace(result, runs=tuple(ended)))
    assert rows["lime"][RIGHT].endswith("(no right answers recorded: seed 2)")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"plain": (2.0, 2.1, 2.2), "lime": (2.1, 2.0, 2.2)}, "within noise: lime."),
        (
            {"plain": (2.0, 2.1, 2.2), "mudd": (1.0, 1.2, 1.1), "dca": (3.0, 3.2, 3.1)},
            "ahead: mudd (-1.00 ± 0.25); behind: dca (+1.00 ± 0.25).",
        ),
        ({"plain": (1.0,), "lime": (2.0,)}, "not judged, as seeds are missing or too few: lime."),
        # Of an arm that lost seeds the others are its luckier ones.
        (
            {"plain": (2.0, 2.1, 2.2), "mudd": (1.0, 1.2, 1.1), "lime": (1.0, 1.1, None)},
            "ahead: mudd (-1.00 ± 0.25); not judged, as seeds are missing or too few: lime.",
        ),
        (
            {"plain": (1.0, 1.1, None), "lime": (2.0, 2.1, 2.2)},
            "not judged, as seeds are missing or too few: lime.",
        ),
    ],
)
def test_what_came_out_is_a_sentence(values, said):
    start = "On b, equal tokens, validation loss against plain: "
    assert report.sentence(a_comparison(values)) == start + said
    both = a_comparison(values, boards=("a", "b"), conditions=("tokens", "time"))
    assert report.sentence(both).count(said) == 4


def test_more_right_answers_are_ahead_and_one_arm_is_alone():
    said = report.sentence(a_comparison(SHARES, metric=RIGHT))
    assert said.endswith("ahead: lime (+20.3% ± 1.4%); within noise: mudd.")
    assert report.sentence(a_comparison({"plain": (1.0, 2.0)})) == (
        "On b, equal tokens: plain alone, validation loss 1.5 ± 6.4."
    )


@pytest.mark.parametrize(
    ("of_lime", "end"),
    [
        ((1.1, 1.0, 1.2), "1 holds."),
        ((3.1, 3.0, 3.2), "1 does not hold."),
        ((2.1, 2.0, 2.2), "1 cannot be said at this scale."),
    ],
)
def test_claims_are_judged_in_words_and_shown(of_lime, end):
    values = {"loss": {"plain": (2.0, 2.1, 2.2), "lime": of_lime}}
    result = a_result(values, [{"quantity": "loss"}], missing="lm-eval", notes=("A note.",))
    said = "The paper: LIMe is better. Of the differences that it claims: "
    assert report.sentence(result) == said + end
    came, numbers, *_ = report.build(result).sections
    assert came.paragraphs[0] == "Not evaluated: lm-eval." and len(came.figures) == 1
    assert numbers.paragraphs == ("A note.",)
    assert [row[:2] for row in numbers.tables[0].texts()] == [["loss", "plain"], ["loss", "lime"]]


def test_every_table_of_differences_has_a_forest_plot_and_every_number_its_run(tmp_path):
    values = {"plain": (2.0, 2.1, 2.2), "lime": (1.1, 1.0, 1.2)}
    result = a_comparison(values, boards=("a", "b"), conditions=("tokens", "time"))
    page = report.build(replace(result, notes=("A note.",)))
    sections = {section.title: section for section in page.sections}
    for name in ("a", "b"):
        assert len(sections[name].tables) == len(sections[name].figures) == 2
        assert ">lime<" in sections[name].figures[0].svg
    assert page.lead == f"{report.sentence(result)} Runs: 12 ended."
    assert sections["The runs"].paragraphs == ("A note.",)
    assert list(sections)[-1] == "Again" and len(report.tables(result)) == 4
    write_page(page, tmp_path / "index.html")
    text = (tmp_path / "index.html").read_text()
    ids = set(re.findall(r'id="(run-[^"]+)"', text))
    assert len(ids) == 12 and set(re.findall(r'href="#(run-[^"]+)"', text)) == ids
    # Of one pair there is no interval to draw.
    (alone, *_) = report.build(a_comparison({"plain": (1.0,), "lime": (2.0,)})).sections
    assert alone.tables and not alone.figures


@pytest.mark.usefixtures("undrawn")
def test_a_board_has_its_curves_and_costs():
    curve = (Validation(step=1, val_loss=3.0, tokens=10.0, flops=7.0),)
    result = a_comparison({"plain": (2.0, None), "lime": (1.0, 1.0)})
    result = replace(result, runs=tuple(replace(r, validations=curve) for r in result.runs))
    run = replace(get_preset("tiny-aet-4"), variant="lime")
    result = of_board(result, costs=(count_cost("lime", run),))
    page = report.build(result)
    sections = {section.title: section for section in page.sections}
    captions = [figure.caption for figure in sections["How they learn: b"].figures]
    assert [caption.partition(":")[0] for caption in captions] == [
        "validation loss by tokens",
        "validation loss by training FLOPs",
    ]
    assert len(sections["What it costs: b"].tables) == 2
    assert page.lead.endswith("Runs: 3 ended, 1 diverged.")


def test_shapes_are_compared_at_equal_parameters():
    values = {"plain": (2.0, 2.1, 2.25), "lime": (1.1, 1.0, 1.2)}
    result = a_comparison(values, boards=("p-2x8", "p-8x4"), conditions=("tokens", "parameters"))
    boards = (replace(board, preset="p", shape=board.name[2:]) for board in result.boards)
    loss = "validation loss"
    runs = (
        replace(run, metrics={loss: run.metrics[loss] + 1})
        if run.board == "p-8x4" and run.arm == "plain"
        else run
        for run in result.runs
    )
    result = replace(result, boards=tuple(boards), runs=tuple(runs))
    ((table, lines, _),) = shapes_tables(result)
    assert table.header[1] == "p, arms and shapes, equal parameters"
    by_arm = {line.arm: line for line in lines}
    assert by_arm["plain, 8x4"].rank == 4 and by_arm["plain, 8x4"].difference.mean == 1
    assert by_arm["lime, 2x8"].difference == by_arm["lime, 8x4"].difference
    assert "Wide or deep" in [section.title for section in report.build(result).sections]
    boards = (replace(board, conditions=board.conditions[:1]) for board in result.boards)
    assert not list(shapes_tables(replace(result, boards=tuple(boards))))


def test_boards_that_rank_arms_alike_are_told():
    apart = {arm: [i + 0.01 * (i + 1) * seed for seed in range(3)] for i, arm in enumerate("abcd")}
    table = ranks_table(a_comparison(apart, boards=("one", "two")))
    ((boards, arms, value, *_),) = table.texts()
    assert (boards, arms, value) == ("one and two", "4", "1.00")
    assert ranks_table(a_comparison(apart)) is None


def tried(arm, losses, chosen, rates=(0.001, 0.01), **more):
    return TriedRates(arm=arm, rates=rates, losses=losses, chosen=chosen, **more)


def test_rates_that_were_tried_are_told():
    result = a_comparison({"plain": (1.0,), "lime": (2.0,)})
    both = (tried("plain", (2.0, 1.5), 0.01), tried("lime", (1.25, None), 0.001))
    (board,) = of_board(result, tried=both).boards
    table = rates_table(board)
    assert table.header[1:] == ["0.001", "0.01", "chosen"]
    assert table.texts() == [
        ["plain", "2.0000", "1.5000", "0.01"],
        ["lime", "1.2500", "diverged", "0.001"],
    ]
    # Beside each arm, where it is at an end of those tried.
    arms = [
        replace(a, rate=r) for a, r in zip(board.conditions[0].arms, (0.01, 0.001), strict=True)
    ]
    condition = replace(board.conditions[0], arms=tuple(arms))
    rows, _ = rows_of(of_board(result, tried=both, conditions=(condition,)), "validation loss")
    assert rows["plain"]["learning rate"] == "0.01 (the highest)"
    assert rows["lime"]["learning rate"] == "0.001 (the lowest)"


@pytest.mark.parametrize(
    ("more", "row", "end"),
    [
        ({}, ["x", "2.0000", "1.5000", "3.0000", "0.01"], ""),
        (
            {"own_rates": (0.003, 0.03, 0.01), "own_chosen": 0.03},
            ["x", *("2.0000 (own 0.003)", "1.5000 (own 0.03)", "3.0000 (own 0.01)")]
            + ["0.01, own 0.03"],
            "highest of its own rates",
        ),
        (
            {"chosen": 0.001, "own_rates": (0.003, 0.03, 0.01), "own_chosen": 0.003},
            ["x", *("2.0000 (own 0.003)", "1.5000 (own 0.03)", "3.0000 (own 0.01)")]
            + ["0.001, own 0.003"],
            "lowest and the lowest of its own rates",
        ),
    ],
)
def test_what_else_was_tried_with_a_rate(more, row, end):
    one = tried("x", (2.0, 1.5, 3.0), **{"chosen": 0.01, **more}, rates=(0.001, 0.01, 0.1))
    table = rates_table(of_board(a_comparison({"x": (1.0,)}), tried=(one,)).boards[0])
    assert table.texts() == [row] and end_of_range(one) == end


def test_what_a_step_takes_stands_beside_the_arms():
    values = {"plain": (2.0, 2.5), "lime": (1.5, 1.75)}
    steps = MeasuredSteps(
        machine="a cpu", base="", rounds=3, seconds={}, ratios={"plain": 1.0, "lime": 1.25}
    )
    result = of_board(a_comparison(values, conditions=("time", "parameters")), steps=steps)
    rows, table = rows_of(result, "validation loss")
    assert [row["time"] for row in rows.values()] == ["1.25", "1.00"]
    assert table.caption.endswith("on a cpu.")
    # At equal parameters models are others than those that were measured.
    assert "time" not in rows_of(result, "validation loss", condition=1)[1].header


def test_runs_have_a_table_of_what_they_were_made_with():
    result = a_comparison({"plain": (1.0,), "lime": (None,)})
    about = {"torch": "2.9.0", "commit": "abc", "command": "layermem train"}
    runs = tuple(replace(run, about=about, max_steps=2000) for run in result.runs)
    made = "commit abc, torch 2.9.0"
    assert runs_table(replace(result, runs=runs)).texts() == [
        ["b/plain-s0", "bplain0", "0", "ended", "2,000", made],
        ["b/lime-s0", "blime0", "0", "diverged: step 20: not finite", "2,000", made],
    ]


@pytest.mark.usefixtures("undrawn")
def test_the_command_prints_and_writes(tmp_path, capsys):
    rights = {("plain", 0): 0.30, ("plain", 1): 0.40, ("lime", 0): 0.52, ("lime", 1): 0.60}
    runs = [
        str(record(tmp_path / f"{variant}-s{seed}", variant=variant, seed=seed, right=right))
        for (variant, seed), right in rights.items()
    ]
    cli.main(["report", *runs, "--out", str(tmp_path / "page")])
    assert "+21% ± 13%" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "page").iterdir()} == {"index.html", "study.json"}
    with pytest.raises(SystemExit, match="nowhere"):
        cli.main(["report", str(tmp_path / "nowhere")])
