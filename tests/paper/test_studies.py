"""Artefacts carried out: what is recorded and looked at, what fails, what two of them share."""

import json
import logging
import math
import shutil
from dataclasses import replace

import pytest
import yaml
from made_up import BASE, a_study
from recorded import record
from small_run import a_run

from layermem_bench import cli
from layermem_bench.efficiency import measuring
from layermem_bench.paper import costs, get_artefact, reasoning, trained
from layermem_bench.presets import get_preset
from layermem_bench.report.page import Figure
from layermem_bench.report.paper_tables import claims_table
from layermem_bench.report.study import build
from layermem_bench.results.analysis import AnalysisOptions
from layermem_bench.results.comparing import judge
from layermem_bench.results.files import read_result
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.results.study import StudyResult
from layermem_bench.study.carrying_out import carry_out
from layermem_bench.study.estimates import planned_states
from layermem_bench.study.records import RecordedRuns

RATES = (1e-3, 1e-2)


def carried(out, seeds=2, runs=(), **changes):
    """Return the result of the made-up artefact."""
    return carry_out(a_study(seeds, **changes), out, runs)[0]


def states_of(study, out):
    return [state.state for _, state in planned_states(study, RecordedRuns(out)).values()]


def test_rates_are_chosen_and_recorded_runs_are_not_run_again(tmp_path, begun):
    study = a_study(rates=RATES)
    result, failure = carry_out(study, tmp_path / "out", command="layermem study")
    assert failure is None and len(begun) == 8
    (board,) = result.boards
    assert {each.arm: each.chosen for each in board.tried} == {"plain": 1e-2, "lime": 1e-3}
    assert [each.rates for each in board.tried] == [RATES, RATES]
    (judged,) = judge(result)
    assert judged.difference.mean == pytest.approx(-0.505) and judged.verdict == "holds"
    again, _ = carry_out(study, tmp_path / "out", command="layermem study")
    assert again == result and len(begun) == 8
    file = tmp_path / "out" / "studies" / "paper" / "table7-tiny" / "study.json"
    assert read_result(StudyResult, file) == result
    # What was recorded elsewhere, under whatever name, is used too.
    moved = tmp_path / "others" / "deep"
    moved.mkdir(parents=True)
    for i, path in enumerate(sorted((tmp_path / "out" / "study").rglob("config.yaml"))):
        shutil.move(path.parent, moved / f"run-{i}")
    elsewhere = carried(tmp_path / "new", runs=[tmp_path / "others"], rates=RATES)
    assert len(begun) == 8 and judge(elsewhere) == judge(result)
    third = carried(tmp_path / "new", 3, [tmp_path / "others"], rates=RATES)
    assert begun[8:] == ["study/plain-lr0.01-s2", "study/lime-lr0.001-s2"]
    assert [run.state for run in third.runs] == ["ended"] * 10


def test_seeds_that_are_added_are_another_look(tmp_path, begun):
    def result_of(seeds, out="out"):
        return carried(tmp_path / out, seeds, [tmp_path / "out"])

    (tmp_path / "out").mkdir()
    three, again, five = result_of(3), result_of(3), result_of(5)
    assert three.looks == again.looks == ((0, 1, 2),)
    assert five.looks == ((0, 1, 2), (0, 1, 2, 3, 4)) and len(begun) == 10
    fresh = result_of(5, "fresh")
    assert fresh.looks == ((0, 1, 2, 3, 4),) and len(begun) == 10
    assert judge(five)[0].p == pytest.approx(4 * judge(fresh)[0].p)
    assert "3, then 5 seeds" in claims_table(five).caption
    # What cannot be read is no reason to train for nothing.
    (tmp_path / "out" / "studies" / "paper" / "table7-tiny" / "study.json").write_text("{")
    assert result_of(3).looks == ((0, 1, 2),) and len(begun) == 10


def test_an_interrupted_artefact_goes_on(tmp_path, begun):
    begun.does = lambda run: "is interrupted" if len(begun) == 3 else "ends"
    with pytest.raises(KeyboardInterrupt):
        carried(tmp_path)
    assert len(begun) == 3
    begun.does = lambda run: "ends"
    result = carried(tmp_path)
    assert begun[3:] == [begun[2], "study/lime-s1"]
    assert judge(result)[0].verdict == "holds"


@pytest.mark.parametrize("did", ["fails", "diverges"])
def test_what_failed_or_diverged_is_shown_and_in_no_mean(did, tmp_path, begun):
    begun.does = lambda run: did if (run.variant, run.seed) == ("lime", 1) else "ends"
    result, failure = carry_out(a_study(3), tmp_path)
    assert sorted(result.computed("loss")["lime"]) == [0, 2]
    (judged,) = judge(result)
    assert judged.verdict == "cannot be said at this scale"
    assert judged.reason == "of seeds 1 there is no pair"
    (lost,) = [run for run in result.runs if run.state != "ended"]
    assert lost.name == "study/lime-s1" and any(lost.name in note for note in result.notes)
    if did == "diverges":
        assert failure is None and lost.state == "diverged" and lost.note.startswith("step 20")
    else:
        assert "1 of 6 runs failed" in failure
        assert lost.state == "failed" and lost.note.endswith("ValueError: the disk is | full")
        assert states_of(a_study(3), tmp_path).count("failed") == 1
    shown = [row for section in build(result).sections for t in section.tables for row in t.texts()]
    assert any(f"{lost.state}: seed 1" in cell for row in shown for cell in row)
    assert any(lost.note in cell for row in shown for cell in row)


def test_a_choice_of_rates_that_failed_is_an_error(tmp_path, begun):
    begun.does = lambda run: "fails" if run.optim.lr == 1e-2 else "ends"
    with pytest.raises(RuntimeError, match="2 of 4 runs failed"):
        carried(tmp_path, rates=RATES)
    assert not (tmp_path / "studies").exists()


def test_damage_is_refused(tmp_path, begun, caplog):
    carried(tmp_path)
    good = tmp_path / "study" / "lime-s0"
    kept = (good / "metrics.jsonl").read_text()
    (good / "metrics.jsonl").write_text("{}\nno json\n{}\n")
    with pytest.raises(ValueError, match="lime-s0.*line 2"):
        carried(tmp_path)
    # Without the validation of its last step a run counts nowhere.
    (good / "metrics.jsonl").write_text(kept.rpartition("\n{")[0] + "\n")
    with pytest.raises(ValueError, match="validation of its last step 40"):
        carried(tmp_path)
    # Of another run, under the name of a planned one.
    shutil.rmtree(good)
    record(good, run=replace(BASE, variant="lime", max_steps=80), rows=8)
    with pytest.raises(ValueError, match="lime-s0.*max_steps"):
        carried(tmp_path)
    (good / "config.yaml").write_text("max_steps: many\n")
    with caplog.at_level(logging.WARNING), pytest.raises(ValueError, match="lime-s0"):
        carried(tmp_path)
    assert "lime-s0 is left out" in caplog.text


@pytest.mark.parametrize(
    ("what", "values", "other"),
    [
        ("data", "ab", "lime-lr0.001-s0"),
        ("precision", ("float32", "bfloat16"), "lime-lr0.001-s0"),
        ("weights", "ab", "plain-lr0.01-s1"),
        # Of one that chose a learning rate, and of another that counts.
        ("data", "ab", "rates/lime-lr0.01-s1000"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(what, values, other, tmp_path, begun):
    carried(tmp_path, rates=RATES)
    folders = ("plain-lr0.01-s0", other)
    for name, value in zip(folders, values, strict=True):
        config = tmp_path / "study" / name / "config.yaml"
        fields = yaml.safe_load(config.read_text())
        fields["about"][what] = value
        config.write_text(yaml.safe_dump(fields))
    either = "|".join((", ".join(values), ", ".join(reversed(values))))
    with pytest.raises(ValueError, match=rf"study/{other} .*\(({either})\)"):
        carried(tmp_path, rates=RATES)


def test_a_choice_that_cannot_be_read_hides_no_other_board(tmp_path, begun, caplog):
    carried(tmp_path, rates=RATES)
    metrics = tmp_path / "study" / "rates" / "lime-lr0.01-s1000" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    with caplog.at_level(logging.WARNING):
        states = states_of(a_study(rates=RATES), tmp_path)
    assert "lime-lr0.01-s1000" in caplog.text
    assert states == ["ended"] * 4 + ["not begun"] * 4


@pytest.mark.slow
def test_two_artefacts_at_shrunken_size(tmp_path, trained_here, monkeypatch, capsys):
    """Figures 11 and 5 share their runs: the second trains nothing."""
    small = replace(a_run(tmp_path), preset="tiny-lm", eval_every=2, save_every=0)
    monkeypatch.setattr(trained, "get_preset", lambda name: small)
    monkeypatch.setitem(trained.TEXT_RATES, "tiny", ())
    out = tmp_path / "runs"
    cli.main(["study", "paper/fig11", "--seeds", "2", "--out", str(out)])
    shown = capsys.readouterr().out
    assert "perplexity: lime below plain" in shown and "1.15%" in shown
    folder = out / "studies" / "paper" / "fig11-tiny"
    result = read_result(StudyResult, folder / "study.json")
    rows = RunFolder(out / "tiny-lm" / "lime-s1").rows()
    final = [row["val_loss"] for row in rows if "val_loss" in row]
    perplexity = result.computed("perplexity")["lime"][1]
    assert perplexity == pytest.approx(math.exp(final[-1]))
    page = (folder / "index.html").read_text()
    assert "15.30%" in page and "fig11-tiny" in page
    # Both of the figure's halves, with the paper's numbers.
    drawn = [f for s in build(result).sections for f in s.figures if isinstance(f, Figure)]
    papers = [figure.caption for figure in drawn if "1.15%" in figure.caption]
    assert len(papers) == 2 and "FLOPs" in papers[0] and "tokens" in papers[1]
    assert len(trained_here) == 4
    result, _ = carry_out(get_artefact("fig5").study("fig5", "tiny", 2), out)
    computed = result.computed("share read from earlier layers, mean over layers")
    assert len(trained_here) == 4
    after, start = computed["lime"], computed["lime at its start"]
    assert set(after) == set(start) == {0, 1} and after != start
    assert all(0 < share < 1 for share in (*after.values(), *start.values()))


@pytest.mark.slow
def test_arithmetic_with_its_analyses_at_shrunken_size(tmp_path, trained_here, monkeypatch):
    """Figure 4 trains, analyzes and judges; analyses are used again."""

    def small(name):
        run = get_preset(name.replace("5", "4").replace("6", "4"))
        task = replace(run.task, examples=200, validation=20, test=200)
        changes = {"max_steps": 4, "eval_every": 2, "save_every": 0, "task": task}
        return replace(run, preset=name, seed=0, **changes)

    monkeypatch.setattr(reasoning, "get_preset", small)
    monkeypatch.setitem(reasoning.ARITHMETIC_RATES, "tiny", ())
    few = AnalysisOptions(words=("1", "2", "3", "4"), each=10, sequences=8, alpha=0.5)
    monkeypatch.setattr(reasoning, "options_at", lambda *_: few)
    study = get_artefact("fig4").study("fig4", "tiny", 1)
    result, failure = carry_out(study, tmp_path)
    judged = judge(result)
    assert failure is None and len(judged) == 6
    assert all(each.difference is not None for each in judged)
    quantity = "right answers, 6 operands"
    assert 0 < result.metrics[quantity].chance < 0.5
    solved = json.loads((tmp_path / "tiny-aet-6" / "lime-s0" / "result.json").read_text())
    assert result.computed(quantity)["lime"][0] == solved["accuracy"]
    monkeypatch.setattr("layermem_bench.analysis.analyze.analyze", None)
    assert carry_out(study, tmp_path)[0].rows == result.rows
    (kept, *_) = (tmp_path / "studies" / "paper" / "analyses").glob("*/analysis.json")
    kept.write_text(kept.read_text().replace('"each": 10', '"each": 11'))
    with pytest.raises(ValueError, match=f"{kept.parent.name}.*delete it"):
        carry_out(study, tmp_path)


@pytest.mark.slow
def test_steps_are_measured_once(tmp_path, monkeypatch):
    # Otherwise each peak takes a process of its own.
    monkeypatch.setattr(measuring, "measure_peak_memory", lambda model, shape: 10**6)
    small = replace(a_run(tmp_path), preset="tiny-lm")
    monkeypatch.setattr(trained, "get_preset", lambda name: small)
    monkeypatch.setattr(costs, "_REPEATS", 2)
    study = get_artefact("table9").study("table9", "tiny", 2)
    result, _ = carry_out(study, tmp_path)
    judged = judge(result)
    assert len(judged) == 6 and all(each.difference for each in judged)
    assert judged[1].reason == "within noise: the interval includes 0"
    monkeypatch.setattr(costs, "measure", None)
    assert carry_out(study, tmp_path)[0].rows == result.rows
    monkeypatch.setattr(costs, "describe_machine", lambda device: "another")
    with pytest.raises(ValueError, match="delete it"):
        carry_out(study, tmp_path)
