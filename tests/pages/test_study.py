"""The page of a study: rows of its tables, what came out in words, what is missing is said."""

from dataclasses import replace

import pytest
from made_up import a_comparison, a_result
from recorded import record

from layermem_bench import cli
from layermem_bench.costs.closed_forms import count_cost
from layermem_bench.pages import study as report
from layermem_bench.pages import study_tables as tables
from layermem_bench.presets import get_preset
from layermem_bench.studies.comparing import answers
from layermem_bench.studies.result import (
    MeasuredSteps,
    Metric,
    PaperNumber,
    Question,
    TriedRates,
    Validation,
)

# Differences .20, .21, .20 have t = 61 and p = .00027, doubled; 0, .01, 0 have t = 1.
SHARES = {"plain": (0.50, 0.51, 0.49), "lime": (0.70, 0.72, 0.69), "mudd": (0.50, 0.52, 0.49)}
RIGHT, LOSS = "right answers", "validation loss"
BOTH = {"plain": (2.0, 2.1, 2.25), "lime": (1.1, 1.0, 1.2)}


def rows_of(result, metric=RIGHT, condition=0):
    """Return the rows of the table of a metric, by arm: column to text."""
    board = result.boards[0]
    table = tables.arms_table(result, board, board.conditions[condition], metric)
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
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
        "each seed": "70.0%, 72.0%, 69.0%",
        "against plain": "+20.3% ± 1.4%",
        "p (Holm)": "< 0.001",
    }
    assert rows["mudd"]["p (Holm)"] == "0.423"
    assert (rows["plain"]["against plain"], rows["plain"]["p (Holm)"]) == ("", "")
    assert rows["dca"][""] == "" and rows["dca"][RIGHT] == "90.0% (one seed) (diverged: seed 1, 2)"
    assert "All arms: steps 100, parameters 7." in table.caption
    assert "each seed" not in set(report.tables(result)[0].header)


def test_seeds_that_are_not_in_a_mean_are_named():
    values = {"plain": (0.30, 0.40, 0.35), "lime": (0.52, 0.60, None)}
    result = a_comparison(values, metric=RIGHT)
    rows, table = rows_of(result)
    assert rows["lime"][RIGHT] == "56% (5% to 100%) (diverged: seed 2)"
    assert rows["lime"]["against plain"] == "+21% ± 13%" and "p (Holm)" not in rows["lime"]
    ended = [replace(run, state="ended") for run in result.runs]
    rows, _ = rows_of(replace(result, runs=tuple(ended)))
    assert rows["lime"][RIGHT].endswith("(no right answers recorded: seed 2)")


NOT_TESTED = "not tested: lime."


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"plain": (2.0, 2.1, 2.2), "lime": (2.1, 2.0, 2.2)}, "open: lime (+0.00 ± 0.25)."),
        (
            {"plain": (2.0, 2.1, 2.2), "mudd": (1.0, 1.2, 1.1), "dca": (3.0, 3.2, 3.1)},
            "ahead: mudd (-1.00 ± 0.25); behind: dca (+1.00 ± 0.25).",
        ),
        ({"plain": (1.0,), "lime": (2.0,)}, NOT_TESTED),
        # Of an arm that lost seeds the others are its luckier ones.
        (
            {"plain": (2.0, 2.1, 2.2), "mudd": (1.0, 1.2, 1.1), "lime": (1.0, 1.1, None)},
            f"ahead: mudd (-1.00 ± 0.25); {NOT_TESTED}",
        ),
        ({"plain": (1.0, 1.1, None), "lime": (2.0, 2.1, 2.2)}, NOT_TESTED),
    ],
)
def test_what_came_out_is_a_sentence(values, said):
    start = "On b, equal tokens, validation loss against plain: "
    assert report.sentence(a_comparison(values)) == start + said


def test_more_right_answers_are_ahead_and_one_arm_is_alone():
    said = report.sentence(a_comparison(SHARES, metric=RIGHT))
    assert said.endswith("ahead: lime (+20.3% ± 1.4%); open: mudd (+0.3% ± 1.4%).")
    said = report.sentence(a_comparison({"plain": (1.0, 2.0)}))
    assert said == "On b, equal tokens, one arm."


def test_claims_are_judged_in_words_and_shown():
    values = {"loss": {"plain": (2.0, 2.1, 2.2), "lime": (1.1, 1.0, 1.2)}, "FLOPs": {"lime": [7]}}
    metrics = {"FLOPs": Metric(counted=True)}
    papers = (PaperNumber(quantity="FLOPs", arm="lime", value=509_120.0, where="Table 8"),)
    notes = {"missing": "lm-eval", "notes": ("A note.",), "metrics": metrics, "papers": papers}
    result = a_result(values, [{"quantity": "loss"}], **notes)
    said = "The paper: LIMe is better. Of the differences that it claims: 1 holds."
    assert report.sentence(result) == said
    came, numbers, *_ = report.build(result).sections
    assert came.paragraphs[0] == "Not evaluated: lm-eval." and len(came.figures) == 1
    assert numbers.paragraphs == ("A note.",)
    assert [row[:4] for row in numbers.tables[0].rows] == [
        ["loss", "plain", "", ""],
        ["loss", "lime", "", ""],
        ["FLOPs", "lime", "509,120", "Table 8"],
    ]
    assert numbers.tables[0].rows[2][4:] == ["counted: 7", ""]


@pytest.mark.usefixtures("undrawn")
def test_questions_stand_first_with_answers_in_words():
    asked = Question(
        board="b", condition="tokens", arm="lime", direction="lower", against="plain", margin=2.0
    )
    result = a_comparison(BOTH | {"mudd": BOTH["plain"]}, questions=(asked,))
    first, *_ = report.build(result).sections
    (row,) = first.tables[0].rows
    assert row[:3] == [
        "lime below plain (b, equal tokens)?",
        "yes, not more than 1.275",
        "-1.02 ± 0.26",
    ]
    assert len(first.figures) == 1 and report.tables(result)[0] == first.tables[0]
    assert report.sentence(result) == f"{row[0].rstrip('?')}: {row[1]}."
    # What was not asked is not tested.
    assert "p (Holm)" not in rows_of(result, LOSS)[0]["mudd"]
    begun = replace(result.runs[0], state="begun", metrics={})
    early = replace(result, runs=(begun, *result.runs[1:]))
    assert tables.answer_text(*answers(early), early) == "open (runs to come: 1)"


@pytest.mark.usefixtures("undrawn")
def test_a_page_has_every_table_its_forest_plot_curves_costs_and_runs():
    values = {"plain": (2.0, 2.1, None), "lime": (1.1, 1.0, 1.2)}
    result = a_comparison(values, boards=("a", "b"), conditions=("tokens", "time"))
    curve = tuple(Validation(step=i, val_loss=3.0, tokens=10.0 * i, flops=7.0 * i) for i in (1, 2))
    costs = (count_cost("lime", replace(get_preset("tiny-aet-4"), variant="lime")),)
    result = replace(
        result,
        notes=("A note.",),
        runs=tuple(replace(run, validations=curve) for run in result.runs),
        boards=(replace(result.boards[0], costs=costs), result.boards[1]),
    )
    page = report.build(result)
    sections = {section.title: section for section in page.sections}
    assert list(sections) == [
        *("a", "How they learn: a", "b", "How they learn: b"),
        *("What it costs: a", "The runs", "Again"),
    ]
    for name in ("a", "b"):
        assert len(sections[name].tables) == len(sections[name].figures) == 2
    captions = [figure.caption for figure in sections["How they learn: b"].figures]
    assert [caption.partition(":")[0] for caption in captions] == [
        "validation loss by tokens",
        "validation loss by training FLOPs",
    ]
    assert len(sections["What it costs: a"].tables) == 2
    assert page.lead == f"{report.sentence(result)} Runs: 10 ended, 2 diverged."
    assert sections["The runs"].paragraphs == ("A note.",) and len(report.tables(result)) == 4
    # Of one pair there is no interval to draw.
    (alone, *_) = report.build(a_comparison({"plain": (1.0,), "lime": (2.0,)})).sections
    assert alone.tables and not alone.figures


@pytest.mark.usefixtures("undrawn")
def test_shapes_are_compared_at_equal_parameters():
    result = a_comparison(BOTH, boards=("p-2x8", "p-8x4"), conditions=("tokens", "parameters"))
    boards = (replace(board, preset="p", shape=board.name[2:]) for board in result.boards)
    runs = (
        replace(run, metrics={LOSS: run.metrics[LOSS] + 1})
        if run.board == "p-8x4" and run.arm == "plain"
        else run
        for run in result.runs
    )
    result = replace(result, boards=tuple(boards), runs=tuple(runs))
    (shapes,) = tables.shapes_of(result)
    rows, table = rows_of(shapes, LOSS)
    assert table.header[1] == "p, arms and shapes, equal parameters"
    assert list(rows) == ["lime, 2x8", "lime, 8x4", "plain, 2x8", "plain, 8x4"]
    assert rows["plain, 8x4"]["against plain, 2x8"] == "+1.0000 ± 0.0000"
    assert "p, arms and shapes" in [section.title for section in report.build(result).sections]
    boards = (replace(board, conditions=board.conditions[:1]) for board in result.boards)
    assert not list(tables.shapes_of(replace(result, boards=tuple(boards))))


def tried(arm, losses, chosen, rates=(0.001, 0.01), **more):
    return TriedRates(arm=arm, rates=rates, losses=losses, chosen=chosen, **more)


def test_rates_that_were_tried_are_told():
    result = a_comparison({"plain": (1.0,), "lime": (2.0,)})
    both = (
        tried("plain", (2.0, 1.5), 0.01),
        tried("lime", (1.25, None), 0.001),
        tried("mudd", (1.25,), 0.1, rates=(0.1,)),
    )
    (board,) = of_board(result, tried=both).boards
    table = tables.rates_table(board)
    assert table.header[1:] == ["0.001", "0.01", "0.1", "chosen"]
    assert table.rows == [
        ["plain", "2.0000", "1.5000", "", "0.01"],
        ["lime", "1.2500", "diverged", "", "0.001"],
        ["mudd", "", "", "1.2500", "0.1"],
    ]
    # Beside each arm, where it is at an end of those tried.
    arms = [
        replace(a, rate=r) for a, r in zip(board.conditions[0].arms, (0.01, 0.001), strict=True)
    ]
    condition = replace(board.conditions[0], arms=tuple(arms))
    rows, _ = rows_of(of_board(result, tried=both, conditions=(condition,)), LOSS)
    assert rows["plain"]["learning rate"] == "0.01 (the highest)"
    assert rows["lime"]["learning rate"] == "0.001 (the lowest)"


def test_a_rate_at_an_end_of_those_tried_is_told():
    three = {"losses": (2.0, 1.5, 3.0), "rates": (0.001, 0.01, 0.1)}
    assert tables.end_of_range(tried("x", chosen=0.01, **three)) == ""
    assert tables.end_of_range(tried("x", chosen=0.001, **three)) == "lowest"


def test_what_a_step_takes_stands_beside_the_arms():
    ratios = {"plain": 1.0, "lime": 1.25}
    steps = MeasuredSteps(machine="a cpu", base="", rounds=3, seconds={}, ratios=ratios)
    result = of_board(a_comparison(BOTH, conditions=("time", "parameters")), steps=steps)
    rows, table = rows_of(result, LOSS)
    assert [row["time"] for row in rows.values()] == ["1.25", "1.00"]
    assert "on a cpu." in table.caption
    # At equal parameters models are others than those that were measured.
    assert "time" not in rows_of(result, LOSS, condition=1)[1].header


def test_runs_have_a_table_of_what_they_were_made_with():
    result = a_comparison({"plain": (1.0,), "lime": (None,)})
    about = {"torch": "2.9.0", "commit": "abc", "command": "layermem train"}
    runs = tuple(replace(run, about=about, max_steps=2000) for run in result.runs)
    table = tables.runs_table(replace(result, runs=runs))
    assert table.caption.endswith("All runs: steps 2,000, made with commit abc, torch 2.9.0.")
    assert table.rows == [
        ["b/plain-s0", "bplain0", "ended"],
        ["b/lime-s0", "blime0", "diverged: step 20: not finite"],
    ]


@pytest.mark.usefixtures("undrawn")
def test_the_command_prints_and_writes(tmp_path, capsys):
    for variant, rights in {"plain": (0.3, 0.4), "lime": (0.52, 0.6)}.items():
        for seed, right in enumerate(rights):
            name = f"{variant}-s{seed}"
            record(tmp_path / "runs" / name, variant=variant, seed=seed, right=right)
    cli.main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "page")])
    assert "+21% ± 13%" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "page").iterdir()} == {"index.html", "study.json"}
    with pytest.raises(SystemExit, match="nowhere"):
        cli.main(["report", str(tmp_path / "nowhere")])
