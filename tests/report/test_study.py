"""The page of a study: what came out, where its numbers lead, and what is missing is said."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from made_up import BASE, a_comparison, a_result
from recorded import a_point, an_analysis, record

from layermem_bench import cli
from layermem_bench.config.run import Labels, Optim
from layermem_bench.report import study as report
from layermem_bench.report.page import write_page
from layermem_bench.report.study import given_sections
from layermem_bench.report.study_tables import arms_table, rates_table, runs_table, shapes_tables
from layermem_bench.results.costs import CacheCost, Costs
from layermem_bench.results.files import to_json
from layermem_bench.results.study import (
    MeasuredMemory,
    MeasuredSteps,
    SettingCosts,
    TriedRates,
)
from layermem_bench.study.labelled_runs import compare_runs


def compared(tmp_path, *runs, **more):
    return compare_runs(list(map(Path, runs)), tmp_path / "out", command="the command", **more)


def written(tmp_path, result, analyses=(), costs=None):
    path = tmp_path / "page.html"
    write_page(report.build(result, given_sections(result, analyses, (), costs)), path)
    return path.read_text()


def table_of(result, metric, narrow=False):
    """Return the rows of the table of a metric, by arm: column to text."""
    board = result.boards[0]
    table = arms_table(result, board, board.conditions[0], metric, narrow=narrow)
    rows = [dict(zip(table.header, row, strict=True)) for row in table.texts()]
    return {row[table.header[table.header.index("") + 1 if "" in table.header else 0]]: row
            for row in rows}, table  # fmt: skip


@pytest.fixture
def four(tmp_path):
    return [
        record(tmp_path / f"{variant}-s{seed}", variant=variant, seed=seed, right=right)
        for variant, seed, right in (
            ("plain", 0, 0.30),
            ("plain", 1, 0.40),
            ("lime", 0, 0.52),
            ("lime", 1, 0.60),
        )
    ]


def test_means_intervals_and_paired_differences(tmp_path, four):
    result = compared(tmp_path, *four)
    assert [table.header[1] for table in report.tables(result)] == [
        "right answers",
        "validation loss",
        "every step right",
    ]
    # Two seeds: 12.706 times half their distance, and two digits of it.
    rows, _ = table_of(result, "right answers")
    assert (rows["plain"]["right answers"], rows["plain"]["each seed"]) == (
        "35% (0% to 99%)",
        "30.0% 40.0%",
    )
    assert (rows["lime"]["right answers"], rows["lime"]["each seed"]) == (
        "56% (5% to 100%)",
        "52.0% 60.0%",
    )
    assert (rows["lime"]["against plain"], rows["lime"]["p (Holm)"]) == ("+21% ± 13%", "0.030")
    loss, _ = table_of(result, "validation loss")
    assert loss["lime"]["against plain"] == "+0.0000 ± 0.0000"


def test_what_came_out_is_a_sentence():
    close = {"plain": (2.0, 2.1, 2.2), "lime": (2.1, 2.0, 2.2)}
    assert report.sentence(a_comparison(close)) == (
        "On b, equal tokens no arm differs from plain in validation loss beyond noise."
    )
    apart = {**close, "mudd": (1.0, 1.2, 1.1), "dca": (3.0, 3.2, 3.1)}
    said = report.sentence(a_comparison(apart))
    assert re.search(r"mudd \(-1\.0\d* ± 0\.\d\d\) is ahead of plain", said)
    assert re.search(r"dca \(\+1\.0\d* ± 0\.\d\d\) is behind plain", said)
    assert said.endswith("1 other within noise.")
    # What is ahead has more right answers, and a lower loss.
    shares = {"plain": (0.4, 0.41, 0.42), "lime": (0.6, 0.62, 0.61)}
    assert "lime (+20.0% ± 2.5%) is ahead" in report.sentence(
        a_comparison(shares, metric="right answers")
    )
    assert "has no interval" in report.sentence(a_comparison({"plain": (1.0,), "lime": (2.0,)}))
    assert "no pair" in report.sentence(a_comparison({"plain": (1.0,), "lime": (None,)}))
    assert "one arm" in report.sentence(a_comparison({"plain": (1.0, 2.0)}))
    both = report.sentence(a_comparison(close, boards=("a", "b"), conditions=("tokens", "time")))
    assert both.count("no arm differs") == 4
    # Of an arm that lost seeds the others are its luckier ones.
    lost = {
        "plain": (2.0, 2.1, 2.2, 2.3),
        "mudd": (1.0, 1.2, 1.1, 1.4),
        "lime": (1.0, 1.1, 1.2, None),
    }
    said = report.sentence(a_comparison(lost))
    assert re.search(r"mudd \(-0\.9\d* ± 0\.\d+\) is ahead of plain", said)
    assert said.endswith("; lime lacks seed 3 (not judged).") and "lime (-" not in said
    first = report.sentence(a_comparison({"plain": lost["lime"], "lime": lost["plain"]}))
    assert first == "On b, equal tokens: plain lacks seed 3, so that no arm is judged."


def test_notes_are_those_of_their_own_board():
    values = {"plain": (2.0, None, 2.2), "lime": (2.0, 2.1, 2.2)}
    notes = ("Diverged, and in no mean: tiny-16x64/plain-s1.", "Of tiny alone.")
    page = report.build(a_comparison(values, boards=("tiny", "tiny-16x64"), notes=notes))
    of = {section.title: section.paragraphs for section in page.sections}
    assert [*of["tiny"]] == ["Of tiny alone."] and [*of["tiny-16x64"]] == [notes[0]]


@pytest.mark.parametrize(
    ("of_lime", "end"),
    [
        ((1.1, 1.0, 1.2), "holds here."),
        ((3.1, 3.0, 3.2), "does not hold here."),
        ((2.1, 2.0, 2.2), "can neither be shown nor refuted at this scale."),
    ],
)
def test_a_single_claim_is_judged_in_words(of_lime, end):
    result = a_result({"loss": {"plain": (2.0, 2.1, 2.2), "lime": of_lime}}, [{"quantity": "loss"}])
    said = "The paper: LIMe is better. The difference that it claims "
    assert report.sentence(result) == said + end
    two = replace(result, claims=result.claims * 2)
    assert "Of 2 differences that it claims" in report.sentence(two)


def test_every_table_of_differences_has_a_forest_plot():
    values = {"plain": (2.0, 2.1, 2.2), "lime": (1.1, 1.0, 1.2)}
    result = a_comparison(values, boards=("a", "b"), conditions=("tokens", "time"))
    page = report.build(result)
    sections = {section.title: section for section in page.sections}
    for name in ("a", "b"):
        assert len(sections[name].tables) == len(sections[name].figures) == 2
        for figure, condition in zip(
            sections[name].figures, ("tokens", "training time"), strict=True
        ):
            assert f"equal {condition}" in figure.caption and ">lime<" in figure.svg
    assert page.lead.startswith(report.sentence(result)) and page.lead.endswith("12 runs.")
    # Of one pair there is no interval to draw.
    (alone, *_) = report.build(a_comparison({"plain": (1.0,), "lime": (2.0,)})).sections
    assert alone.tables and not alone.figures


@pytest.mark.parametrize("of_half", [50, 100])
def test_arms_whose_caches_differ_are_drawn_against_them(of_half):
    values = {"plain": (2.0, 2.1, 2.2), "half": (2.1, 2.0, 2.2)}
    cache = {"plain": CacheCost(held=100, read=100), "half": CacheCost(held=of_half, read=100)}
    costs = SettingCosts(points=(a_point(1, cache=cache),))
    result = a_comparison(values)
    (board,) = result.boards
    page = report.build(replace(result, boards=(replace(board, costs=costs),)))
    drawn = [figure for figure in page.sections[0].figures if "against what" in figure.caption]
    assert len(drawn) == (of_half != 100)
    for figure in drawn:
        assert "bytes of the cache" in figure.svg and ">half<" in figure.svg


@pytest.mark.usefixtures("undrawn")
def test_shapes_are_compared_at_equal_parameters():
    values = {"plain": (2.0, 2.1, 2.25), "lime": (1.1, 1.0, 1.2)}
    result = a_comparison(values, boards=("p-2x8", "p-8x4"), conditions=("tokens", "parameters"))
    boards = (replace(board, preset="p", shape=board.name[2:]) for board in result.boards)
    result = replace(result, boards=tuple(boards))
    runs = (
        replace(run, metrics={"validation loss": run.metrics["validation loss"] + 1})
        if run.board == "p-8x4" and run.arm == "plain"
        else run
        for run in result.runs
    )
    result = replace(result, runs=tuple(runs))
    shown = [(table, lines) for table, lines, _ in shapes_tables(result)]
    assert [table.header[1] for table, _ in shown] == [
        "p, arms and shapes, equal parameters",
        "p, shapes of plain, equal parameters",
        "p, shapes of lime, equal parameters",
    ]
    together = {line.arm: line for line in shown[0][1]}
    assert together["plain, 8x4"].rank == 4 and together["plain, 8x4"].difference.mean == 1
    of_lime = {line.arm: line.difference for line in shown[2][1]}
    assert of_lime["8x4"].mean == 0 and of_lime["2x8"] is None
    sections = {section.title: section for section in report.build(result).sections}
    assert len(sections["Wide or deep"].tables) == len(sections["Wide or deep"].figures) == 3
    at_tokens = replace(result, boards=tuple(
        replace(board, conditions=board.conditions[:1]) for board in result.boards
    ))  # fmt: skip
    assert not list(shapes_tables(at_tokens))


def tried(arm, losses, chosen, decay=None, rates=(0.001, 0.01)):
    return TriedRates(arm=arm, rates=rates, losses=losses, chosen=chosen, decay=decay)


def test_an_end_of_an_arms_own_rates_is_told_too():
    result = a_comparison({"plain": (1.0,), "lime": (2.0,)})
    own = replace(
        tried("lime", (2.0, 1.0, 1.5), 0.01, rates=(0.001, 0.01, 0.1)),
        own_rates=(0.003, 0.03, 0.01),
        own_chosen=0.03,
    )
    caption = rates_table(replace(result.boards[0], tried=(own,))).caption
    assert caption.endswith("beyond those tried: lime took the highest of its own rates.")
    at_both = replace(own, chosen=0.001, own_chosen=0.003)
    assert rates_table(replace(result.boards[0], tried=(at_both,))).caption.endswith(
        "lime took the lowest and the lowest of its own rates."
    )


def test_rates_that_were_tried_are_told():
    result = a_comparison({"plain": (1.0,), "lime": (2.0,)})
    (board,) = result.boards
    of_both = (tried("plain", (2.0, 1.5), 0.01), tried("lime", (1.25, None), 0.001))
    table = rates_table(replace(board, tried=of_both))
    assert table.header[1:] == ["0.001", "0.01", "chosen"]
    assert table.texts() == [
        ["plain", "2.0000", "1.5000", "0.01"],
        ["lime", "1.2500", "diverged", "0.001"],
    ]
    assert table.caption.endswith("plain took the highest, lime took the lowest.")
    inside = rates_table(
        replace(board, tried=(tried("plain", (2.0, 1.5, None), 0.01, rates=(0.001, 0.01, 0.1)),))
    )
    assert "beyond" not in inside.caption
    decays = (
        tried("plain", (2.0, 1.5), None, 0.0),
        tried("plain", (1.75, 1.25), 0.01, 0.1),
    )
    assert rates_table(replace(board, tried=decays)).texts() == [
        ["plain, weight decay 0", "2.0000", "1.5000", ""],
        ["plain, weight decay 0.1", "1.7500", "1.2500", "0.01"],
    ]
    assert "weight decay" in rates_table(replace(board, tried=decays)).caption
    right = replace(of_both[0], right=(0.25, 0.5))
    assert rates_table(replace(board, tried=(right,))).texts()[0][1:3] == ["25.0%", "50.0%"]
    # Beside each arm, where it is at an end of those tried.
    arms = tuple(
        replace(arm, rate=rate)
        for arm, rate in zip(board.conditions[0].arms, (0.01, 0.001), strict=True)
    )
    chosen = replace(board, tried=of_both, conditions=(replace(board.conditions[0], arms=arms),))
    rows, _ = table_of(replace(result, boards=(chosen,)), "validation loss")
    assert rows["plain"]["learning rate"] == "0.01 (the highest)"
    assert rows["lime"]["learning rate"] == "0.001 (the lowest)"


@pytest.mark.usefixtures("undrawn")
def test_a_seed_that_diverged_is_in_no_mean_and_said(tmp_path, four):
    lost = record(tmp_path / "lime-s2", seed=2, right=0.9, rows=2, max_steps=40, diverged=25)
    third = record(tmp_path / "plain-s2", variant="plain", seed=2, right=0.35)
    result = compared(tmp_path, *four, third, lost)
    rows, _ = table_of(result, "right answers")
    assert rows["lime"]["right answers"] == "56% (5% to 100%) (diverged: seed 2)"
    assert rows["lime"]["each seed"] == "52.0% 60.0%"
    assert rows["lime"]["against plain"] == "+21% ± 13% (over 2 of 3 seeds)"
    # The other way around it is the first arm that lacks a seed.
    rows, _ = table_of(compared(tmp_path, *four, third, lost, against="lime"), "right answers")
    assert rows["plain"]["against lime"] == "-21% ± 13% (over 2 of 3 seeds)"
    text = written(tmp_path, result)
    assert "6 runs, 1 diverged." in text and "diverged: step 25" in text
    assert "Not all seeds have ended of: lime." in text
    # An arm of which a seed was never begun.
    more = record(tmp_path / "lime-s3", seed=3, right=0.7)
    rows, _ = table_of(compared(tmp_path, *four, more), "right answers")
    assert rows["lime"]["against plain"] == "+21% ± 13% (over 2 of 3 seeds)"
    rows, _ = table_of(compared(tmp_path, *four[:2], four[3]), "right answers")
    assert rows["lime"]["against plain"] == "+20.0% (one seed)"


def test_several_differences_have_adjusted_p_values():
    values = {"plain": (0.50, 0.51, 0.49), "lime": (0.70, 0.72, 0.69), "mudd": (0.50, 0.52, 0.49)}
    result = a_comparison({**values, "dca": (0.9, None, None)}, metric="right answers")
    rows, table = table_of(result, "right answers")
    # By hand: differences .20, .21, .20 have t = 61 and p = .00027, doubled; 0, .01, 0 have t = 1.
    assert {arm: row["p (Holm)"] for arm, row in rows.items()} == {
        "lime": "< 0.001",
        "mudd": "0.423, within noise",
        "plain": "",
        "dca": "",
    }
    assert [row[""] for row in rows.values()] == ["1", "2", "3", ""]
    assert rows["lime"]["against the best"] == "best mean"
    assert "All arms: steps 100, parameters 7." in table.caption
    # One difference is that from the best.
    two, _ = table_of(
        a_comparison(dict(list(values.items())[:2]), metric="right answers"), "right answers"
    )
    assert two["lime"]["p (Holm)"] == "< 0.001" and "against the best" not in two["lime"]
    narrow, _ = table_of(result, "right answers", narrow=True)
    assert not {"each seed", "against the best"} & narrow["lime"].keys()


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_two_seeds_that_ended_with_no_number_have_diverged(value, tmp_path):
    runs = [
        record(tmp_path / f"{variant}-s{seed}", variant=variant, seed=seed, final=value, right=0.0)
        for variant in ("plain", "lime")
        for seed in (0, 1)
    ]
    result = compared(tmp_path, *runs)
    assert {run.state for run in result.runs} == {"diverged"}
    rows, _ = table_of(result, "validation loss")
    assert {row["validation loss"] for row in rows.values()} == {"(diverged: seed 0, 1)"}
    assert "4 runs, 4 diverged." in written(tmp_path, result)
    # An arm that lives has nothing to be compared with, and a mean of its own.
    more = {"right": 0.5, "optim": Optim(lr=0.5)}
    good = [record(tmp_path / f"g{seed}", seed=seed, **more) for seed in (0, 1)]
    result = compared(tmp_path, *runs[:2], *good)
    rows, _ = table_of(result, "validation loss")
    assert rows["lime"]["validation loss"] == "0.5000 ± 0.0000"
    assert rows["lime"].get("against plain", "") == ""
    # No number that JSON has no word for.
    kept = json.loads((tmp_path / "out" / "study.json").read_text(), parse_constant=pytest.fail)
    assert all(math.isfinite(row["val_loss"]) for r in kept["runs"] for row in r["validations"])


@pytest.mark.usefixtures("undrawn")
def test_every_number_leads_to_its_run(tmp_path, four):
    text = written(tmp_path, compared(tmp_path, *four))
    ids = set(re.findall(r'id="(run-[0-9a-f]{12})"', text))
    assert len(ids) == 4
    assert set(re.findall(r'href="#(run-[^"]+)"', text)) == ids
    assert re.search(r'<a href="#run-[0-9a-f]{12}">52.0%</a>', text)
    assert "<pre>the command</pre>" in text


def test_curves_go_through_means_in_a_band(tmp_path, four):
    text = written(tmp_path, compared(tmp_path, *four))
    labels = ("validation loss by tokens", "validation loss by training FLOPs")
    labels += ("right answers by tokens", "right answers by training FLOPs")
    assert all(text.count(f">{label}") == 1 for label in labels)


def test_what_is_missing_is_said(tmp_path):
    ended = record(tmp_path / "plain-s0", variant="plain", counted=False)
    begun = record(tmp_path / "lime-s0", ended=False, rows=2, max_steps=40)
    result = compared(tmp_path, ended, begun)
    text = written(tmp_path, result)
    assert "2 runs, 1 failed or not ended." in text and "(begun: seed 0)" in text
    assert "Nothing is recorded of: plain." in text
    assert "Time and memory were not measured. To do it: layermem costs PRESET" in text
    assert "given as --analysis. None was." in text
    nothing = record(tmp_path / "lime-s1", seed=1, ended=False, rows=0, counted=False)
    text = written(tmp_path, compared(tmp_path, nothing))
    assert "there is one arm" in text and "not counted in closed form" in text
    assert not re.search(r"[^<]*validation loss by tokens", text)


def test_the_analysis_that_is_proposed_names_runs_at_hand(tmp_path, four):
    def proposed(*runs):
        (section,) = given_sections(compared(tmp_path, *runs), (), (), None)
        (command,) = section.commands
        return command

    command = proposed(*four)
    assert command == f"layermem analyze {four[2]} --against {four[0]} --out analysis"
    assert proposed(four[0]) == f"layermem analyze {four[0]} --out analysis"


def test_several_analyses_are_told_apart_and_have_the_colours_of_their_runs(tmp_path, four):
    # The analysis names the runs the other way around.
    result = compared(tmp_path, *four)
    ids = {run.name: run.run_id for run in result.runs}
    for words in (["1", "2"], ["3", "4"]):
        made = an_analysis(words, lime=ids["lime-s0"], plain=ids["plain-s0"])
        folder = tmp_path / "".join(words)
        folder.mkdir()
        (folder / "analysis.json").write_text(to_json(made))
    text = written(tmp_path, result, [tmp_path / "12", tmp_path / "34"])
    assert "<h2>Entropy by layer (1, 2)</h2>" in text and "<h2>Entropy by layer (3, 4)</h2>" in text
    assert re.findall(r"<h2>What (\w+) reads \(1, 2\)", text) == ["plain", "lime"]
    assert text.count(f'href="#run-{ids["lime-s0"]}"') > 2


def test_an_evaluation_that_is_none_is_refused(tmp_path, four):
    with pytest.raises(FileNotFoundError, match=str(four[0])):
        given_sections(compared(tmp_path, *four), (), [four[0]], None)


@pytest.mark.parametrize(
    ("key", "begun", "last"),
    [("torch", "2.9.0", "2.13.0"), ("processor", "AMD EPYC", "Intel Xeon")],
)
def test_runs_made_differently_are_said_to_be(tmp_path, four, key, begun, last):
    said = "Not all of them were made with the same versions and machine."
    for path, value in zip(four, (begun, begun, begun, last), strict=True):
        assert said not in runs_table(compared(tmp_path, *four)).caption
        config = path / "config.yaml"
        config.write_text(config.read_text().replace("about:\n", f"about:\n  {key}: {value}\n"))
    assert said in runs_table(compared(tmp_path, *four)).caption


@pytest.fixture
def of_two_levels(tmp_path, four):
    """Return a function that reads the table of the levels that ``four`` have solved."""
    for path in four:
        result = json.loads((path / "result.json").read_text())
        shares = result["by"]["operands"]["2"]
        worse = {**shares, "accuracy": 0.125, "interval": [0.1, 0.2]}
        result["by"]["operands"] = {"2": shares, "3": worse}
        (path / "result.json").write_text(json.dumps(result))

    def read():
        page = report.build(compared(tmp_path, *four))
        (levels,) = [t for s in page.sections for t in s.tables if "by operands" in t.header[0]]
        return levels

    return read


def test_levels_have_a_table_of_their_own(of_two_levels):
    levels = of_two_levels()
    assert levels.header[1:] == ["2", "3"]
    assert levels.texts() == [
        ["plain", "35% (0% to 99%)", "12.5% ± 0.0%"],
        ["lime", "56% (5% to 100%)", "12.5% ± 0.0%"],
    ]


def test_levels_say_which_seeds_they_lack(of_two_levels, four):
    (four[0] / "result.json").unlink()
    plain, lime = of_two_levels().texts()
    assert all(cell.endswith(" (without seed 0)") for cell in plain[1:])
    assert "without" not in " ".join(lime)


def test_a_seed_without_a_result_or_validation_is_left_out_and_said(tmp_path, four):
    (four[0] / "result.json").unlink()
    (four[2] / "metrics.jsonl").unlink()
    rows, _ = table_of(compared(tmp_path, *four), "right answers")
    assert rows["plain"]["right answers"] == "40.0% (one seed) (no right answers recorded: seed 0)"
    assert rows["lime"]["right answers"] == "60.0% (one seed) (no right answers recorded: seed 0)"


def test_measured_costs_have_a_part_of_their_own(tmp_path, four):
    given = Costs(command="layermem costs x", points=(a_point(1),))
    (tmp_path / "costs.json").write_text(to_json(given))
    text = written(tmp_path, compared(tmp_path, *four), costs=tmp_path / "costs.json")
    assert "<h2>Costs that were given</h2>" in text and "<pre>layermem costs x</pre>" in text


def test_what_a_step_takes_stands_beside_the_arms():
    result = a_comparison(
        {"plain": (2.0, 2.5), "lime": (1.5, 1.75)}, conditions=("time", "parameters")
    )
    (board,) = result.boards
    steps = MeasuredSteps(
        machine="a cpu", base="", rounds=3, seconds={"plain": 0.5, "lime": 0.625, "old": 9.0},
        ratios={"plain": 1.0, "lime": 1.25, "old": 18.0},
    )  # fmt: skip
    memory = MeasuredMemory(machine="a cpu", base="", peaks={"plain": 100, "lime": 110})
    board = replace(board, steps=steps, memory=memory)
    result = replace(result, boards=(board,))
    time, parameters = (
        arms_table(result, board, condition, "validation loss") for condition in board.conditions
    )
    columns = {name: [row[i] for row in time.texts()] for i, name in enumerate(time.header)}
    assert (columns["time"], columns["memory"]) == (["1.25", "1.00"], ["1.10", "1.00"])
    # At equal parameters models are others than those that were measured.
    assert not {"time", "memory"} & set(parameters.header)
    sections = {section.title: section for section in report.build(result).sections}
    # The file of steps may have arms of earlier studies too.
    (table,) = sections["What a step takes"].tables
    assert [row[0] for row in table.texts()] == ["plain", "lime"]
    unknown = replace(memory, peaks={"plain": None, "lime": None})
    board = replace(board, memory=unknown)
    assert "memory" not in arms_table(result, board, board.conditions[0], "validation loss").header


def test_several_settings_and_many_arms(tmp_path, four):
    others = [
        record(tmp_path / f"o{i}", labels=Labels(arm=f"a{i}"), final=float(i)) for i in range(5)
    ]
    text = written(tmp_path, compared(tmp_path, *four, *others))
    assert "<h2>made-up (arithmetic operands=2)</h2>" in text
    assert "<h2>made-up (stdlib)</h2>" in text
    assert "7 arms side by side" in text


def test_no_run_that_has_ended_is_a_page_all_the_same(tmp_path):
    runs = [
        record(tmp_path / variant, run=replace(BASE, variant=variant), rows=2, ended=False)
        for variant in ("plain", "lime")
    ]
    result = compared(tmp_path, *runs)
    assert "no pair of runs has ended" in written(tmp_path, result)
    assert len(report.tables(result)) == 1


def test_the_command_prints_and_writes(tmp_path, four, capsys):
    cli.main(["report", *map(str, four), "--out", str(tmp_path / "page")])
    shown = capsys.readouterr().out
    assert "+21% ± 13%" in shown
    assert (tmp_path / "page" / "index.html").exists()
    assert (tmp_path / "page" / "study.json").exists()
    with pytest.raises(SystemExit, match="nowhere"):
        cli.main(["report", str(tmp_path / "nowhere")])
