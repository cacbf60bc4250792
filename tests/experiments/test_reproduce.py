"""`layermem reproduce`: what is recorded, going on, what fails, what is shown."""

import json
import logging
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml
from layermem.experiments.reproduction import estimates, step_costs
from layermem.results.artefact import ArtefactResult, ArtefactRow
from recorded import record
from reproducing import BASE, made_up
from small_run import a_run

from layermem import cli, many_runs, reproduce
from layermem import paper as artefacts
from layermem.efficiency import measuring
from layermem.evals.solving import evaluate
from layermem.paper import fig1, fig4, fig11
from layermem.presets import get_preset
from layermem.report import artefacts as report
from layermem.results.files import read_result
from layermem.runs import RunFolder
from layermem.study.recorded import RecordedRuns
from layermem.train.run import train


@pytest.fixture
def begun(monkeypatch):
    """Have runs be recorded with made-up losses in place of being trained; return their names.

    ``begun.does``: run to what happens: "ends", "diverges", "fails" or "is interrupted".
    """

    class Begun(list):
        does = staticmethod(lambda run: "ends")

    names = Begun()

    def start(run, folder, jobs, slot):
        names.append(f"{folder.path.parent.name}/{folder.path.name}")
        did = names.does(run)
        if did == "is interrupted":
            raise KeyboardInterrupt
        if did == "fails":
            many_runs._append_note(folder, "begun at noon")
            with (folder.path / many_runs.ERRORS).open("a") as log:
                log.write("ValueError: the disk is | full\n")
        elif did == "diverges":
            record(folder.path, run=run, rows=2, diverged=20)
        else:
            away = abs(math.log10(run.optim.lr) + (2 if run.variant == "plain" else 3))
            gain = 0.5 + 0.01 * run.seed if run.variant == "lime" else 0.0
            record(folder.path, run=run, final=1.0 + away - gain)
        return subprocess.Popen([sys.executable, "-S", "-c", f"raise SystemExit({did == 'fails'})"])

    monkeypatch.setattr(many_runs, "_start_process", start)
    monkeypatch.setattr(many_runs, "_POLL_INTERVAL", 0.02)
    return names


@pytest.fixture
def use(monkeypatch):
    """Have a made-up artefact stand under the name table7."""
    return lambda artefact: monkeypatch.setattr(reproduce, "get_artefact", lambda name: artefact)


def test_rates_are_chosen_and_recorded_runs_are_not_run_again(tmp_path, begun, use):
    use(made_up(rates=(1e-3, 1e-2)))
    asked = ("table7", "tiny", 2, tmp_path / "out")
    result, failure = reproduce.reproduce(*asked, command="layermem reproduce")
    assert failure is None and len(begun) == 8
    assert result.rates == {"study": {"plain": 1e-2, "lime": 1e-3}}
    assert [each.rates for each in result.tried["study"]] == [(1e-3, 1e-2), (1e-3, 1e-2)]
    # Two rates have no middle; the page says so of both arms.
    assert (
        "lie beyond those tried: plain took the highest, lime took the lowest."
        in report.markdown(result)
    )
    (claim,) = result.claims
    assert claim.difference.mean == pytest.approx(-0.505) and claim.verdict == "holds"
    again, _ = reproduce.reproduce(*asked, command="layermem reproduce")
    assert again == result and len(begun) == 8
    folder = tmp_path / "out" / "artefacts" / "table7-tiny"
    assert read_result(ArtefactResult, folder) == result
    # What a sweep recorded elsewhere, under whatever name, is used too.
    moved = tmp_path / "sweep" / "deep"
    moved.mkdir(parents=True)
    for i, path in enumerate(sorted((tmp_path / "out" / "study").rglob("config.yaml"))):
        shutil.move(path.parent, moved / f"run-{i}")
    elsewhere, _ = reproduce.reproduce(
        "table7", "tiny", 2, tmp_path / "new", [tmp_path / "sweep"], command="layermem reproduce"
    )
    assert len(begun) == 8 and elsewhere.claims == result.claims
    third, _ = reproduce.reproduce("table7", "tiny", 3, tmp_path / "new", [tmp_path / "sweep"])
    assert begun[8:] == ["study/plain-lr0.01-s2", "study/lime-lr0.001-s2"]
    assert [run.state for run in third.runs] == ["ended"] * 10


def test_seeds_that_are_added_are_another_look(tmp_path, begun, use):
    use(made_up())

    def result_of(seeds, out="out"):
        return reproduce.reproduce("table7", "tiny", seeds, tmp_path / out, [tmp_path / "out"])[0]

    three, again, five = result_of(3), result_of(3), result_of(5)
    assert three.looks == again.looks == ((0, 1, 2),)
    assert five.looks == ((0, 1, 2), (0, 1, 2, 3, 4)) and len(begun) == 10
    fresh = result_of(5, "fresh")
    assert fresh.looks == ((0, 1, 2, 3, 4),) and len(begun) == 10
    assert five.claims[0].p == pytest.approx(4 * fresh.claims[0].p)
    assert "Looked at with 3, then 5 seeds" in report.claims(five).caption
    # A result without looks, as older ones are, is one at its seeds.
    path = tmp_path / "out" / "artefacts" / "table7-tiny" / "artefact.json"
    older = {key: value for key, value in json.loads(path.read_text()).items() if key != "looks"}
    path.write_text(json.dumps(older))
    assert result_of(3).looks == ((0, 1, 2, 3, 4), (0, 1, 2))
    # What cannot be read is said, and no reason to train for nothing.
    path.write_text("{")
    assert result_of(3).looks == ((0, 1, 2),)


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (509_120.0, "number", "counted: 509,120"),
        (7.0, "number", "counted: 7"),
        (1_076_072_448.0, "number", "counted: 1.07607B"),
        (2.5, "number", "counted: 2.5000"),
        (0.0008, "share", "counted: 0.08%"),
    ],
)
def test_whole_numbers_that_are_counted_have_no_decimals(value, unit, shown):
    row = ArtefactRow(
        quantity="parameters", arm="lime", unit=unit, paper=value, where="Table 8",
        by_seed={0: value}, mean=None, counted=True,
    )  # fmt: skip
    assert report._ours(row) == shown
    assert report._number_row(row)[2] == shown.removeprefix("counted: ")


def test_an_interrupted_artefact_goes_on(tmp_path, begun, use):
    use(made_up())
    begun.does = lambda run: "is interrupted" if len(begun) == 3 else "ends"
    with pytest.raises(KeyboardInterrupt):
        reproduce.reproduce("table7", "tiny", 2, tmp_path)
    assert len(begun) == 3
    begun.does = lambda run: "ends"
    result, _ = reproduce.reproduce("table7", "tiny", 2, tmp_path)
    assert begun[3:] == [begun[2], "study/lime-s1"]
    assert result.claims[0].verdict == "holds"


@pytest.mark.parametrize("did", ["fails", "diverges"])
def test_what_failed_or_diverged_is_shown_and_in_no_mean(did, tmp_path, begun, use):
    use(made_up())
    begun.does = lambda run: did if (run.variant, run.seed) == ("lime", 1) else "ends"
    result, failure = reproduce.reproduce("table7", "tiny", 3, tmp_path)
    row = next(row for row in result.rows if row.arm == "lime")
    assert sorted(row.by_seed) == [0, 2] and row.mean.count == 2
    (claim,) = result.claims
    assert claim.verdict == "cannot be said at this scale"
    assert claim.reason == "of seeds 1 there is no pair"
    (lost,) = [run for run in result.runs if run.state != "ended"]
    assert lost.name == "study/lime-s1"
    text = report.markdown(result)
    if did == "diverges":
        assert failure is None and lost.state == "diverged" and lost.note.startswith("step 20")
        assert "Diverged, and in no mean: study/lime-s1." in text
    else:
        assert "1 of 6 runs failed" in failure
        assert lost.state == "failed" and lost.note.endswith("ValueError: the disk is | full")
        assert "exit code 1: ValueError: the disk is \\| full" in text
        assert "Failed or not ended, and in no mean: study/lime-s1." in text
        listed = reproduce.planned_states(made_up(), "tiny", 3, RecordedRuns(tmp_path))
        assert [state.state for _, state in listed.values()].count("failed") == 1


def test_a_choice_of_rates_that_failed_is_an_error(tmp_path, begun, use):
    use(made_up(rates=(1e-3, 1e-2)))
    begun.does = lambda run: "fails" if run.optim.lr == 1e-2 else "ends"
    with pytest.raises(RuntimeError, match="2 of 4 runs failed"):
        reproduce.reproduce("table7", "tiny", 2, tmp_path)
    assert not (tmp_path / "artefacts").exists()


def test_damage_is_refused(tmp_path, begun, use, caplog):
    use(made_up())
    reproduce.reproduce("table7", "tiny", 2, tmp_path)
    good = tmp_path / "study" / "lime-s0"
    kept = (good / "metrics.jsonl").read_text()
    (good / "metrics.jsonl").write_text("{}\nno json\n{}\n")
    with pytest.raises(ValueError, match=r"lime-s0.*line 2 is not a JSON row"):
        reproduce.reproduce("table7", "tiny", 2, tmp_path)
    (state,) = [
        state
        for _, state in reproduce.planned_states(
            made_up(), "tiny", 2, RecordedRuns(tmp_path)
        ).values()
        if state.state == "failed"
    ]
    assert "line 2 is not a JSON row" in state.note
    # Without the validation of its last step a run counts nowhere.
    (good / "metrics.jsonl").write_text(kept.rpartition("\n{")[0] + "\n")
    with pytest.raises(ValueError, match=r"lacks the validation of its last step 40"):
        reproduce.reproduce("table7", "tiny", 2, tmp_path)
    # Of another run, under the name of a planned one.
    shutil.rmtree(good)
    record(good, run=replace(BASE, variant="lime", max_steps=80), rows=8)
    with pytest.raises(ValueError, match="lime-s0 was begun with another config: max_steps"):
        reproduce.reproduce("table7", "tiny", 2, tmp_path)
    config = good / "config.yaml"
    config.write_text("max_steps: many\n")
    with caplog.at_level(logging.WARNING), pytest.raises(ValueError, match="lime-s0"):
        reproduce.reproduce("table7", "tiny", 2, tmp_path)
    assert "lime-s0 is left out" in caplog.text


@pytest.mark.parametrize(
    ("what", "values", "other", "said"),
    [
        ("data", "ab", "lime-lr0.001-s0", "on different data"),
        ("precision", ("float32", "bfloat16"), "lime-lr0.001-s0", "in other precisions"),
        ("weights", "ab", "plain-lr0.01-s1", "from different weights"),
        # Of one that chose a learning rate, and of another that counts.
        ("data", "ab", "rates/lime-lr0.01-s1000", "on different data"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(what, values, other, said, tmp_path, begun, use):
    use(made_up(rates=(1e-3, 1e-2)))
    reproduce.reproduce("table7", "tiny", 2, tmp_path)
    folders = ("plain-lr0.01-s0", other)
    for name, value in zip(folders, values, strict=True):
        config = tmp_path / "study" / name / "config.yaml"
        fields = yaml.safe_load(config.read_text())
        fields["about"][what] = value
        config.write_text(yaml.safe_dump(fields))
    with pytest.raises(ValueError, match=f"study/{other}.* were trained {said}"):
        reproduce.reproduce("table7", "tiny", 2, tmp_path)


def test_a_choice_that_cannot_be_read_hides_no_other_study(tmp_path, begun, use, caplog):
    artefact = made_up(rates=(1e-3, 1e-2))
    use(artefact)
    reproduce.reproduce("table7", "tiny", 2, tmp_path)
    metrics = tmp_path / "study" / "rates" / "lime-lr0.01-s1000" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    with caplog.at_level(logging.WARNING):
        states = reproduce.planned_states(artefact, "tiny", 2, RecordedRuns(tmp_path))
    assert "study chose no learning rates: " in caplog.text
    assert [state.state for _, state in states.values()] == ["ended"] * 4 + ["not begun"] * 4


@pytest.fixture
def trained_here(monkeypatch):
    """Train runs in this process, which imports what they need only once."""

    def start(run, folder, jobs, slot):
        train(run, folder.path, evaluate=evaluate)
        return subprocess.Popen([sys.executable, "-S", "-c", ""])

    monkeypatch.setattr(many_runs, "_start_process", start)
    monkeypatch.setattr(many_runs, "_POLL_INTERVAL", 0.02)


def test_two_artefacts_at_shrunken_size(tmp_path, trained_here, monkeypatch, capsys):
    """Figures 11 and 5 share their runs: the second trains nothing."""
    small = replace(a_run(tmp_path), preset="tiny-lm", eval_every=2, save_every=0)
    monkeypatch.setattr(fig11, "get_preset", lambda name: small)
    monkeypatch.setitem(fig1.RATES, "tiny", ())
    out = tmp_path / "runs"
    cli.main(["reproduce", "fig11", "--seeds", "2", "--out", str(out)])
    shown = capsys.readouterr().out
    assert "perplexity: lime below plain" in shown and "1.15%" in shown
    folder = out / "artefacts" / "fig11-tiny"
    result = read_result(ArtefactResult, folder)
    final = [
        row["val_loss"]
        for row in RunFolder(out / "tiny-lm" / "lime-s1").rows()
        if "val_loss" in row
    ]
    rows = {(row.quantity, row.arm): row for row in result.rows}
    assert rows["perplexity", "lime"].by_seed[1] == pytest.approx(math.exp(final[-1]))
    assert "LLaMA" not in (folder / "artefact.md").read_text().split("The paper:")[0]
    assert "15.30%" in (folder / "artefact.md").read_text()
    assert "fig11 at scale tiny" in (folder / "index.html").read_text()
    monkeypatch.setattr(many_runs, "_start_process", None)
    cli.main(["reproduce", "fig5", "--seeds", "2", "--out", str(out)])
    result = read_result(ArtefactResult, out / "artefacts" / "fig5-tiny")
    rows = {(row.quantity, row.arm): row for row in result.rows}
    quantity = "share read from earlier layers, mean over layers"
    trained, start = (rows[quantity, arm].by_seed for arm in ("lime", "lime at its start"))
    assert set(trained) == set(start) == {0, 1} and trained != start
    assert all(0 < share < 1 for share in (*trained.values(), *start.values()))


def test_the_list_says_what_is_recorded(tmp_path, begun, monkeypatch, capsys):
    monkeypatch.setattr(artefacts, "names", lambda: ["table1", "table7"])
    monkeypatch.setattr(reproduce, "names", artefacts.names)
    real = artefacts.get_artefact
    monkeypatch.setattr(
        reproduce, "get_artefact", lambda name: made_up() if name == "table7" else real(name)
    )

    def states(**more):
        listed = reproduce.list_artefacts(tmp_path, **more)["table7"][1]
        return [scale.state for scale in listed]

    assert states()[0] == "not begun (0 of 10 runs)"
    begun.does = lambda run: "fails" if (run.variant, run.seed) == ("lime", 1) else "ends"
    reproduce.reproduce("table7", "tiny", 2, tmp_path)
    assert states(count=2)[0] == "3 of 4 runs, 1 failed"
    begun.does = lambda run: "ends"
    reproduce.reproduce("table7", "tiny", 2, tmp_path)
    assert states(count=2) == ["done", "4 of 4 runs", "4 of 4 runs"]
    cli.main(["reproduce", "--list", "--out", str(tmp_path), "--seeds", "2"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "done" in shown and "a GPU" in shown
    assert "layermem reproduce table7" in shown


def test_the_list_says_what_a_result_is_good_for(tmp_path, begun, use, monkeypatch, caplog):
    monkeypatch.setattr(reproduce, "names", lambda: ["table7"])
    use(made_up())

    def state(count=None):
        return reproduce.list_artefacts(tmp_path, count=count)["table7"][1][0].state

    begun.does = lambda run: "fails" if (run.variant, run.seed) == ("lime", 1) else "ends"
    reproduce.reproduce("table7", "tiny", 3, tmp_path)
    file = tmp_path / "artefacts" / "table7-tiny" / "artefact.json"
    lacks_a_run = file.read_text()
    assert (state(), state(3)) == ("5 of 10 runs, 1 failed", "5 of 6 runs, 1 failed")
    begun.does = lambda run: "ends"
    reproduce.reproduce("table7", "tiny", 3, tmp_path)
    of_three = file.read_text()
    assert (state(), state(3), state(2)) == ("done with 3 of 5 seeds", "done", "done with 3 seeds")
    reproduce.reproduce("table7", "tiny", 5, tmp_path)
    assert state() == "done"
    # The runs of all five seeds are recorded; the result is of three.
    file.write_text(of_three)
    assert state() == "done with 3 of 5 seeds"
    file.write_text(lacks_a_run)
    assert state() == state(3) == "out of date: run it again"
    file.write_text(of_three[:-20])
    with caplog.at_level(logging.WARNING):
        assert state() == f"damaged: delete {file}"
    assert f"{file} is not what layermem reproduce writes" in caplog.text
    # The plan has another arm since.
    file.write_text(of_three)
    record(tmp_path / "study" / "mudd-s0", run=replace(BASE, variant="mudd"))
    use(made_up(arms=("plain", "lime", "mudd")))
    assert state(3) == "out of date: run it again"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "name one artefact, or give --list"),
        (["table7", "--list"], "name one artefact, or give --list"),
        (["tabel7"], "unknown artefact 'tabel7'; did you mean table7"),
        (["table7", "--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["table7", "--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["table7", "--runs", "nowhere"], "nowhere is no folder; name one that holds runs"),
        (["table7", "--seeds", "1001", "--dry-run"], "seed 1000 is kept for choosing"),
    ],
)
def test_what_is_asked_wrongly(argv, message, tmp_path):
    with pytest.raises(SystemExit, match=re.escape(message)):
        cli.main(["reproduce", *argv, "--out", str(tmp_path)])


@pytest.mark.parametrize("inner", ["", "deeper"])
@pytest.mark.parametrize(
    "argv",
    [
        ["reproduce", "table7"],
        ["reproduce", "--list"],
        ["arena", "--board", "tiny-lm", "--variants", "plain,lime", "--dry-run"],
        ["sweep", "tiny-lm"],
        ["report", "run"],
    ],
)
def test_a_file_is_no_folder_of_results(argv, inner, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "run")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SystemExit, match="file is a file, not a folder; choose another --out"):
        cli.main([*argv, "--out", str(tmp_path / "file" / inner)])
    assert (tmp_path / "file").read_text() == "mine"


def test_a_scale_that_needs_a_gpu_is_refused_without_one(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="table7 at scale paper needs a GPU, .* no GPU here"):
        cli.main(["reproduce", "table7", "--scale", "paper", "--out", str(tmp_path)])


def test_a_dry_run_times_steps_here(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(estimates._STEP_FLOPS, "cpu", 1e8)
    cli.main(["reproduce", "fig11", "--dry-run", "--seeds", "2", "--out", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "(measured)" in shown and "within a factor of 2" in " ".join(shown.split())
    assert "12 runs, about" in shown
    assert not list(tmp_path.iterdir())
    monkeypatch.setitem(estimates._MOST_BYTES, "cpu", 1e6)
    monkeypatch.setitem(estimates._REFERENCE, "hidden_size", 64)
    speed = estimates.measure_speed(get_preset("paper-1b-gqa"))
    assert speed.basis == "extrapolated" and speed.flops_per_second > 1e6


def test_json_holds_what_the_page_shows(tmp_path, begun, use):
    use(made_up())
    result, _ = reproduce.reproduce("table7", "tiny", 2, tmp_path, command="layermem reproduce t")
    kept = json.loads((tmp_path / "artefacts" / "table7-tiny" / "artefact.json").read_text())
    assert kept["kind"] == "artefact" and kept["version"] == 1
    page = report.build(result)
    assert page.title.startswith("table7 at scale tiny")
    (row,) = page.sections[0].tables[0].rows
    assert row[0] == "loss: lime below plain" and row[-1].startswith("holds")
    assert row[4] == "2"
    # What chance means is said where there is any.
    assert "Chance" not in report.numbers(result).caption
    with_chance = replace(result, rows=(replace(result.rows[0], chance=0.5), *result.rows[1:]))
    assert "Chance: what an answer comes to" in report.numbers(with_chance).caption


@pytest.mark.slow
def test_arithmetic_with_its_analyses_at_shrunken_size(tmp_path, trained_here, monkeypatch):
    """Figure 4 trains, analyzes and judges; Figure 8 shares its runs; analyses are used again."""

    def small(name):
        run = get_preset(name.replace("5", "4").replace("6", "4"))
        task = replace(run.task, examples=200, validation=20, test=200)
        changes = {"max_steps": 4, "eval_every": 2, "save_every": 0, "task": task}
        return replace(run, preset=name, seed=0, **changes)

    monkeypatch.setattr(fig4, "get_preset", small)
    monkeypatch.setitem(fig4.RATES, "tiny", ())
    result, failure = reproduce.reproduce("fig4", "tiny", 2, tmp_path)
    assert failure is None and len(result.claims) == 6
    assert all(claim.difference is not None for claim in result.claims)
    rows = {(row.quantity, row.arm): row for row in result.rows}
    answers = rows["right answers, 6 operands", "lime"]
    assert answers.paper == 0.716 and 0 < answers.chance < 0.5
    solved = json.loads((tmp_path / "tiny-aet-6" / "lime-s1" / "result.json").read_text())
    assert answers.by_seed[1] == solved["accuracy"]
    monkeypatch.setattr("layermem.experiments.analyze.analyze", None)
    assert reproduce.reproduce("fig4", "tiny", 2, tmp_path)[0].rows == result.rows
    (kept, *_) = (tmp_path / "artefacts" / "analyses").glob("*/analysis.json")
    kept.write_text(kept.read_text().replace('"each": 200', '"each": 100'))
    with pytest.raises(ValueError, match="analysis.json is of other runs or options"):
        reproduce.reproduce("fig4", "tiny", 2, tmp_path)


@pytest.mark.slow
def test_steps_are_measured_once(tmp_path, monkeypatch):
    # Otherwise each peak takes a process of its own.
    monkeypatch.setattr(measuring, "measure_peak_memory", lambda model, shape: 10**6)
    small = replace(a_run(tmp_path), preset="tiny-lm")
    monkeypatch.setattr(fig1, "get_preset", lambda name: small)
    monkeypatch.setattr(fig11, "get_preset", lambda name: small)
    result, _ = reproduce.reproduce("table9", "tiny", 2, tmp_path)
    assert len(result.claims) == 6 and all(claim.difference for claim in result.claims)
    assert [c.reason for c in result.claims][1] == "within noise: the interval includes 0"
    monkeypatch.setattr(step_costs, "measure", None)
    assert reproduce.reproduce("table9", "tiny", 2, tmp_path)[0].rows == result.rows
    monkeypatch.setattr(step_costs, "describe_machine", lambda device: "another")
    with pytest.raises(ValueError, match="was measured with other sizes or options, or on another"):
        reproduce.reproduce("table9", "tiny", 2, tmp_path)
