"""`layermem study`: what it prints and writes, what is asked wrongly."""

import html
import re
import shlex
from dataclasses import replace

import pytest
import yaml
from launchers import InThisProcess, use
from recorded import SIZES, record
from small_run import a_run

from layermem_bench import cli
from layermem_bench.config.run import to_dict
from layermem_bench.report.numbers import format_interval
from layermem_bench.results.files import read_result
from layermem_bench.results.intervals import interval
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.results.study import LOSS, StudyResult

pytestmark = pytest.mark.usefixtures("undrawn")


def test_a_study_of_a_config_runs_what_is_missing(tmp_path, monkeypatch, capsys):
    here, out, config = use(InThisProcess(), monkeypatch), tmp_path / "out", tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(to_dict(a_run(tmp_path, preset="words"))))
    asked = ["study", "--config", str(config), "--out", str(out), "--max-steps", "2"]
    asked += ["--variants", "plain,lime:router_init=identity", "--seeds", "2"]
    cli.main(asked)
    shown = capsys.readouterr().out
    assert "validation loss" in shown and "against plain" in shown
    result = read_result(StudyResult, out / "studies" / "words")
    (board,) = result.boards
    assert [arm.name for arm in board.conditions[0].arms] == ["plain", "lime:router_init=identity"]
    page = (out / "studies" / "words" / "index.html").read_text()
    assert shlex.join(["layermem", *asked]) in html.unescape(page)
    names = [
        f"words/{arm}-s{seed}" for seed in (0, 1) for arm in ("plain", "lime-router_init=identity")
    ]
    assert here.begun == [run.name for run in result.runs] == names
    before = [RunFolder(out / name).metrics.stat().st_mtime_ns for name in names]
    cli.main(asked)
    assert capsys.readouterr().out == shown and here.begun == names
    assert before == [RunFolder(out / name).metrics.stat().st_mtime_ns for name in names]


def test_a_failed_run_ends_the_command_with_an_error(tmp_path, monkeypatch, capsys):
    """After its result is shown and written."""
    here, config = use(InThisProcess(), monkeypatch), tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(to_dict(a_run(tmp_path, preset="words", max_steps=1))))
    train = here.train
    here.train = lambda run, folder: 1 if run.seed else train(run, folder)
    asked = ["study", "--config", str(config), "--out", str(tmp_path), "--seeds", "2"]
    with pytest.raises(SystemExit, match="2 of 4 runs failed: words/plain-s1 .*; words/lime-s1"):
        cli.main(asked)
    assert "failed: seed 1" in " ".join(capsys.readouterr().out.split())
    folder = tmp_path / "studies" / "words"
    states = [run.state for run in read_result(StudyResult, folder).runs]
    assert states.count("failed") == 2 and (folder / "index.html").exists()


def test_a_preset_is_trained_with_several_seeds(tmp_path, made_up, capsys, monkeypatch):
    use(made_up, monkeypatch)
    asked = ["train", "tiny-lm", "--max-steps", "40", "--seeds", "1-3", "--out", str(tmp_path)]
    cli.main([*asked, "--dry-run"])
    assert "3 runs" in capsys.readouterr().out and not any(tmp_path.iterdir())
    cli.main(asked)
    assert made_up.begun == [f"tiny-lm/lime-s{seed}" for seed in (1, 2, 3)]
    result = read_result(StudyResult, tmp_path / "studies" / "tiny-lm-lime")
    losses = [run.metrics[LOSS] for run in result.runs]
    assert losses == pytest.approx([made_up.loss(run) for run in made_up.runs])
    assert result.seeds == (1, 2, 3)
    mean = format_interval(interval(losses), False)
    assert f"one arm, lime: {LOSS} {mean}" in " ".join(capsys.readouterr().out.split())
    # It goes on, and with more seeds; a study of the preset finds its runs.
    cli.main([*asked[:5], "0-3", *asked[6:]])
    assert made_up.begun[3:] == ["tiny-lm/lime-s0"]
    cli.main(["study", *asked[1:4], "--variants", "lime,plain", "--seeds", "2", *asked[6:]])
    assert made_up.begun[4:] == ["tiny-lm/plain-s0", "tiny-lm/plain-s1"]
    for wrong in ("3-1", "x", "0-", "-1"):
        with pytest.raises(SystemExit, match=rf"FIRST-LAST.*{wrong}"):
            cli.main([*asked[:4], f"--seeds={wrong}", *asked[6:]])
    for wrong, named in (("--resume", "--resume"), ("--variant=lame", "'lame'")):
        with pytest.raises(SystemExit, match=named):
            cli.main([*asked, wrong])
    assert len(made_up.begun) == 6


def test_options_of_a_runs_variant_are_of_no_other_arm(tmp_path, made_up, monkeypatch, caplog):
    use(made_up, monkeypatch)
    model = replace(SIZES, options=("router_grain=layer", "attention_bias=true"))
    folder = record(tmp_path / "half", model=model, preset="made-up")
    monkeypatch.chdir(tmp_path)
    arms = "lime,lime:router_grain=layer"
    with caplog.at_level("INFO"):
        cli.main(["study", str(folder), "--variants", arms, "--seeds", "1", "--out", "out"])
    assert "router_grain=layer of " in caplog.text and "lime:router_grain=layer)" in caplog.text
    options = [run.model.options for run in made_up.runs]
    assert options == [("attention_bias=true",), ("attention_bias=true", "router_grain=layer")]


def test_a_dry_run_trains_nothing(tmp_path, made_up, capsys, monkeypatch):
    use(made_up, monkeypatch)
    arms = "plain,lime,hyper_connections"
    asked = ["study", "tiny-lm,tiny-aet-4", "--variants", arms, "--out", str(tmp_path)]
    cli.main([*asked, "--dry-run"])
    shown = " ".join(capsys.readouterr().out.split())
    # Three arms at four rates; three arms, five seeds, and those that two conditions change.
    assert shown.count("12 + 30") == 2 and "84 runs" in shown
    assert not made_up.begun and not any(tmp_path.iterdir())


def test_a_dry_run_reads_recorded_times_as_the_study_does(tmp_path, made_up, capsys, monkeypatch):
    use(made_up, monkeypatch)
    asked = ["study", "tiny-lm", "--seeds", "1", "--conditions", "tokens", "time"]
    asked += ["--out", str(tmp_path), "--variants"]
    cli.main([*asked, "plain,lime"])
    capsys.readouterr()
    cli.main([*asked, "plain,lime", "--dry-run"])
    assert "nothing is left to train" in capsys.readouterr().out
    # Of an arm that joins, the steps are not timed yet.
    cli.main([*asked, "plain,lime,hyper_connections", "--dry-run"])
    assert "2 to come" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="measured with another model, data or sizes"):
        cli.main([*asked, "plain,lime", "--model.hidden-size", "32", "--dry-run"])


def test_that_nothing_is_left_is_said_in_words(tmp_path, made_up, capsys, monkeypatch, caplog):
    use(made_up, monkeypatch)
    asked = ["study", "tiny-lm", "--seeds", "1", "--out", str(tmp_path)]
    cli.main([*asked, "--dry-run"])
    assert "2 runs, 2 to come" in capsys.readouterr().out
    with caplog.at_level("INFO"):
        cli.main(asked)
        assert "2 of 2 runs are to be done" in caplog.text
        caplog.clear()
        cli.main(asked)
    assert "nothing is left to train" in caplog.text and "0 of" not in caplog.text
    capsys.readouterr()
    cli.main([*asked, "--dry-run"])
    assert "2 runs, nothing is left to train" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["tiny-lm", "--seeds", "0"], "seeds must be in .1, 1000., got 0"),
        (["tiny-lm", "--seeds", "1000", "--seed", "1"], "seed 1000"),
        (["tiny-lm", "--jobs", "0"], "jobs must be at least 1, got 0"),
        (["tiny-lm", "--rates", "0"], "rates must be above 0, got 0"),
        (["tiny-lm", "--rates", "1e-3", "1e-3"], "0.001, 0.001"),
        (["tiny-lm", "--decays", "0", "0.1"], "--rates"),
        (["tiny-lm", "--decays", "-1", "--rates", "1"], "decays must be at least 0, got -1"),
        (["tiny-lm", "--variants", "plain,lame"], "'lame'"),
        (["tiny-lm", "--variants", "plain,lime:foo=1"], "LimeConfig has no field 'foo'"),
        (["tiny-lm", "--variants", "plain,lime:router=lst"], "lime:router=lst: "),
        (["tiny-lm", "--runs", "nowhere"], "nowhere is no folder"),
        (["tiny-lm", "--optim.router-lr", "1", "--variants", "plain"], "router_lr=1"),
        (["aet-44"], "'aet-44'"),
        (["tiny-lm,aet-44"], "unknown preset 'aet-44'; did you mean aet-4"),
        (["aet-4,aet-4"], "aet-4, aet-4"),
        (["recall,mqar"], "recall, mqar"),
        (["tiny-lm@64,tiny-lm"], "tiny-lm@64'"),
        (["tiny-lm@4x20,tiny-lm"], "width 20 is no whole number of heads of width 8"),
        (["tiny-lm@16x64,tiny-lm@64x32", "--variants", "plain,mudd"], "mudd has .* at 64x32"),
        (["paper/table7", "--conditions", "time"], "--conditions"),
        (["paper/table77"], "table77"),
    ],
)
def test_what_is_asked_wrongly(argv, named, tmp_path, made_up, monkeypatch, capsys):
    use(made_up, monkeypatch)
    with pytest.raises(SystemExit) as refused:
        cli.main(["study", *argv, "--out", str(tmp_path)])
    shown = capsys.readouterr()
    said = f"{refused.value.code} {shown.err} {shown.out}".replace("│", " ")
    assert re.search(named, " ".join(said.split()))
    assert not made_up.begun and not list(tmp_path.glob("**/config.yaml"))
