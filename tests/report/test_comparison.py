"""The page about runs: its numbers, where they lead, and what is missing is said."""

import json
import math
import re
from pathlib import Path

import pytest
from layermem.experiments.comparison import compare_runs
from recorded import a_point, an_analysis, record

from layermem import cli
from layermem.config import Data, Optim
from layermem.report import comparison as report
from layermem.report.page import write_page
from layermem.results.costs import Costs
from layermem.results.files import to_json


def compared(tmp_path, *runs, **more):
    return compare_runs(list(map(Path, runs)), tmp_path / "out", command="the command", **more)


def written(tmp_path, *runs, **more):
    path = tmp_path / "page.html"
    write_page(report.build(compared(tmp_path, *runs, **more)), path)
    return path.read_text()


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
    loss, right, steps = report.tables(compared(tmp_path, *four))
    assert [table.header[0] for table in (loss, right, steps)] == [
        "validation loss",
        "right answers",
        "every step right",
    ]
    # Two seeds: 12.706 times half their distance.
    assert right.texts() == [
        ["plain", "35.0% ± 63.5%", "30.0% 40.0%", "", ""],
        ["lime", "56.0% ± 50.8%", "52.0% 60.0%", "+21.0% ± 12.7%", "0.030"],
    ]
    assert loss.texts()[1][3] == "+0.0000 ± 0.0000"


def test_rates_that_were_tried_are_told(tmp_path, four):
    tried = {"plain": {0.001: 2.0, 0.01: 1.5}, "lime": {0.001: 1.25, 0.01: math.inf}}
    rates, *rest = report.tables(compared(tmp_path, *four, learning_rates=tried))
    assert rates.header == ["validation loss at learning rate", "0.001", "0.01", "chosen"]
    assert rates.texts() == [
        ["plain", "2.0000", "1.5000", "0.01"],
        ["lime", "1.2500", "diverged", "0.001"],
    ]
    assert rates.caption.endswith(
        "A better learning rate may lie beyond those tried: plain took the highest, lime took the "
        "lowest."
    )
    assert len(rest) == 3
    # No number that JSON has no word for.
    saved = json.loads((tmp_path / "out" / "report.json").read_text())["learning_rates"]
    assert saved[1]["losses"] == [1.25, None]
    inside = {"plain": {0.001: 2.0, 0.01: 1.5, 0.1: math.inf}}
    rates, *_ = report.tables(compared(tmp_path, *four, learning_rates=inside))
    assert "beyond" not in rates.caption


def test_decays_that_were_tried_are_told(tmp_path, four):
    tried = {
        "plain": {0.0: {0.001: 2.0, 0.01: 1.5}, 0.1: {0.001: 1.75, 0.01: 1.25}},
        "lime": {0.0: {0.001: 1.0, 0.01: math.inf}, 0.1: {0.001: 1.125, 0.01: 1.5}},
    }
    rates, *_ = report.tables(compared(tmp_path, *four, decays=tried))
    assert rates.texts() == [
        ["plain, weight decay 0", "2.0000", "1.5000", ""],
        ["plain, weight decay 0.1", "1.7500", "1.2500", "0.01"],
        ["lime, weight decay 0", "1.0000", "diverged", "0.001"],
        ["lime, weight decay 0.1", "1.1250", "1.5000", ""],
    ]
    assert rates.caption.startswith("Each arm's learning rate and weight decay was chosen on")
    saved = json.loads((tmp_path / "out" / "report.json").read_text())["learning_rates"]
    assert [(row["decay"], row["chosen"]) for row in saved] == [
        *((0.0, None), (0.1, 0.01)),
        *((0.0, 0.001), (0.1, None)),
    ]


def test_a_seed_that_diverged_is_in_no_mean_and_said(tmp_path, four, capsys):
    lost = record(tmp_path / "lime-s2", seed=2, right=0.9, rows=2, max_steps=40, diverged=25)
    third = record(tmp_path / "plain-s2", variant="plain", seed=2, right=0.35)
    runs = [*four, third, lost]
    loss, right, _ = report.tables(compared(tmp_path, *runs))
    assert right.texts()[1] == [
        "lime",
        "56.0% ± 50.8% (diverged in 1 of 3 seeds: mean of the others)",
        "52.0% 60.0% diverged",
        "+21.0% ± 12.7% (over 2 of 3 seeds)",
        "0.030",
    ]
    # The other way around it is the first arm that lacks a seed.
    turned = report.tables(compared(tmp_path, *runs, against="lime"))[1].texts()
    assert turned[1][3] == "-21.0% ± 12.7% (over 2 of 3 seeds)"
    text = written(tmp_path, *runs)
    assert "Diverged, and in no mean: lime-s2 at step 25." in text
    assert "6 runs, 5 of them ended, 1 diverged." in text
    assert "Without the seeds that diverged: lime." in text
    assert "diverged in 1 of 3 seeds: mean of the others; against plain +21.0%" in text
    assert "diverged at step 25" in text and "Not ended, and left out" not in text


def test_several_differences_have_adjusted_p_values(tmp_path):
    """Each arm against the first over three seeds: one far apart, one near, one a single seed."""
    rights = {
        "plain": (0.50, 0.51, 0.49),
        "lime": (0.70, 0.72, 0.69),
        "mudd": (0.50, 0.52, 0.49),
        "dca": (0.9,),
    }
    runs = [
        record(tmp_path / f"{variant}-s{seed}", variant=variant, seed=seed, right=right)
        for variant, values in rights.items()
        for seed, right in enumerate(values)
    ]
    _, right, _ = report.tables(compared(tmp_path, *runs))
    assert right.header[-1] == "p (Holm)"
    # By hand: differences .20, .21, .20 have t = 61 and p = .00027, doubled; 0, .01, 0 have t = 1.
    cells = {row[0]: row[-1] for row in right.texts()}
    assert cells == {"plain": "", "lime": "< 0.001", "mudd": "0.423, within noise", "dca": ""}
    assert "the 2 differences" in right.caption
    # One difference has its own; none of a single pair.
    alone = report.tables(compared(tmp_path / "two", *runs[:6]))[1]
    assert [row[-1] for row in alone.texts()] == ["", "< 0.001"]
    one_pair = report.tables(compared(tmp_path / "pair", runs[0], runs[3]))[1]
    assert one_pair.header[-1] == "against plain"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_two_seeds_that_ended_with_no_number_are_a_sentence(value, tmp_path):
    # As older versions left them: ended, and a validation loss that is not finite.
    runs = [
        record(tmp_path / f"{variant}-s{seed}", variant=variant, seed=seed, final=value, right=0.0)
        for variant in ("plain", "lime")
        for seed in (0, 1)
    ]
    (loss,) = report.tables(compared(tmp_path, *runs))
    assert loss.texts() == [
        [arm, "diverged in 2 of 2 seeds", "diverged diverged", ""] for arm in ("plain", "lime")
    ]
    text = written(tmp_path, *runs)
    assert "Diverged, and in no mean: plain-s0 at step 40, plain-s1 at step 40, lime-s0" in text
    assert "4 runs, 0 of them ended, 4 diverged." in text
    # An arm that lives has nothing to be compared with, and a mean of its own.
    more = {"right": 0.5, "optim": Optim(lr=0.5)}
    good = [record(tmp_path / f"g{seed}", seed=seed, **more) for seed in (0, 1)]
    loss = report.tables(compared(tmp_path, *runs[:2], *good))[0].texts()
    assert loss[1] == ["lime:lr=0.5", "0.5000 ± 0.0000", "0.5000 0.5000", ""]
    assert all(math.isfinite(row["val_loss"]) for row in _validations(tmp_path))


def _validations(tmp_path):
    runs = json.loads((tmp_path / "out" / "report.json").read_text())["runs"]
    return [row for run in runs.values() for row in run["validations"]]


def test_every_number_leads_to_its_run(tmp_path, four):
    text = written(tmp_path, *four)
    ids = set(re.findall(r'id="(run-[0-9a-f]{12})"', text))
    assert len(ids) == 4
    led = set(re.findall(r'href="#(run-[^"]+)"', text))
    assert led == ids
    assert re.search(r'<a href="#run-[0-9a-f]{12}">52.0%</a>', text)
    assert "lime-s1  layermem train made-up --seed 1" in text
    for figure in re.findall(r"<figcaption>(.*?)</figcaption>", text):
        assert 'href="#run-' in figure or figure.startswith("made-up: FLOPs of a forward by")
    # A seed more of one arm: differences are over the seeds both have, and say so.
    more = record(tmp_path / "lime-s2", seed=2, right=0.7)
    right = report.tables(compared(tmp_path, *four, more))[1].texts()
    assert right[1][3] == "+21.0% ± 12.7% (over 2 of 3 seeds)"
    three = report.tables(compared(tmp_path, *four[:2], four[3]))[1].texts()
    assert three[1][3] == "+20.0% (one seed)"


def test_curves_go_through_means_in_a_band(tmp_path, four):
    text = written(tmp_path, *four)
    labels = ("validation loss by tokens", "validation loss by training FLOPs")
    labels += ("right answers by tokens", "right answers by training FLOPs")
    assert all(text.count(f">{label}") == 1 for label in labels)


def test_what_is_missing_is_said(tmp_path):
    ended = record(tmp_path / "plain-s0", variant="plain", counted=False)
    begun = record(tmp_path / "lime-s0", ended=False, rows=2, max_steps=40)
    text = written(tmp_path, ended, begun)
    assert "Not ended, and left out of the tables: lime-s0 at step 20 of 40." in text
    assert "no run has ended" in text
    assert "validation loss by training FLOPs: nothing is recorded of plain." in text
    assert "Time and memory of a step were not measured. To do it: layermem costs PRESET" in text
    assert "given as --analysis. None was." in text
    assert "not recorded" in text
    nothing = record(tmp_path / "lime-s1", seed=1, ended=False, rows=0, counted=False)
    text = written(tmp_path, nothing)
    assert "No run has ended, so there is nothing to compare yet." in text
    assert "validation loss by tokens: nothing is recorded of lime." in text


def test_the_analysis_that_is_proposed_names_runs_at_hand(tmp_path, four):
    text = written(tmp_path, *four)
    (line,) = re.findall(r"<pre>(layermem analyze .*)</pre>", text)
    assert re.fullmatch(r"layermem analyze \S+lime-s0 --against \S+plain-s0 --out analysis", line)
    text = written(tmp_path, four[0])
    assert re.search(r"<pre>layermem analyze \S+plain-s0 --out analysis</pre>", text)


def test_several_analyses_are_told_apart_and_have_the_colours_of_their_runs(tmp_path, four):
    # The analysis names the runs the other way around.
    runs = compared(tmp_path, *four).runs
    for words in (["1", "2"], ["3", "4"]):
        made = an_analysis(words, lime=runs["lime-s0"].run_id, plain=runs["plain-s0"].run_id)
        folder = tmp_path / "".join(words)
        folder.mkdir()
        (folder / "analysis.json").write_text(to_json(made))
    text = written(tmp_path, *four, analyses=(tmp_path / "12", tmp_path / "34"))
    assert "<h2>Entropy by layer (1, 2)</h2>" in text and "<h2>Entropy by layer (3, 4)</h2>" in text
    looked = re.findall(r"<h2>What (\w+) reads \(1, 2\)", text)
    assert looked == ["plain", "lime"]
    assert text.count(f'href="#run-{runs["lime-s0"].run_id}"') > 2


def test_runs_made_differently_are_said_to_be(tmp_path, four):
    said = "Not all of them were made with the same versions and machine."
    assert said not in written(tmp_path, *four)
    config = four[0] / "config.yaml"
    config.write_text(config.read_text().replace("about:\n", "about:\n  torch: 2.9.0\n"))
    assert said in written(tmp_path, *four)


def test_settings_called_alike_say_how_they_differ(tmp_path):
    short, long = (record(tmp_path / f"b{n}", data=Data(block_size=n)) for n in (64, 128))
    text = written(tmp_path, short, long)
    for size in (64, 128):
        assert f"<h2>What came out: made-up (stdlib, block_size={size})</h2>" in text


def test_levels_are_told_with_the_runs_they_are_from(tmp_path, four):
    for path in four:
        result = json.loads((path / "result.json").read_text())
        shares = result["by"]["operands"]["2"]
        result["by"]["operands"] = {"2": shares, "3": {**shares, "accuracy": 0.125}}
        (path / "result.json").write_text(json.dumps(result))
    text = written(tmp_path, *four)
    assert len(re.findall(r'<a href="#run-[0-9a-f]{12}">12.5%</a>', text)) == 4


def test_a_seed_without_a_result_or_validation_is_left_out_and_said(tmp_path, four):
    (four[0] / "result.json").unlink()
    (four[2] / "metrics.jsonl").unlink()
    text = written(tmp_path, *four)
    assert "Ended with no validation recorded, and left out: lime-s0." in text
    assert "of plain, lime, one seed: over problems" in text


def test_measured_costs_have_a_part_of_their_own(tmp_path, four):
    given = Costs(command="layermem costs x", points=(a_point(1),))
    (tmp_path / "costs.json").write_text(to_json(given))
    text = written(tmp_path, *four, costs=tmp_path / "costs.json")
    assert "<h2>Costs that were given</h2>" in text and "<pre>layermem costs x</pre>" in text
    assert "it was written without --measure" in text
    assert "were not measured" not in text


def test_several_settings_and_many_arms(tmp_path, four):
    others = [
        record(tmp_path / f"o{i}", optim=Optim(lr=0.1 * (i + 1)), final=float(i)) for i in range(5)
    ]
    text = written(tmp_path, *four, *others)
    assert "<h2>What came out: made-up (arithmetic operands=2)</h2>" in text
    assert "<h2>What came out: made-up (stdlib)</h2>" in text
    assert "7 arms side by side" in text


def test_the_command_prints_and_writes(tmp_path, four, capsys):
    cli.main(["report", *map(str, four), "--out", str(tmp_path / "page")])
    shown = capsys.readouterr().out
    assert "+21.0% ± 12.7%" in shown
    assert (tmp_path / "page" / "index.html").exists()
    assert (tmp_path / "page" / "report.json").exists()
    with pytest.raises(SystemExit, match=r"nowhere does not exist; name a run folder"):
        cli.main(["report", str(tmp_path / "nowhere")])
