"""`layermem study`: what it prints and writes, how it goes on, what is asked wrongly."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import yaml
from launchers import InThisProcess, MadeUp, use
from recorded import SIZES, record
from small_run import a_run

from layermem_bench import cli
from layermem_bench.cli.options import resolve_run
from layermem_bench.config.run import Labels, to_dict
from layermem_bench.config.typed_dicts import read_result
from layermem_bench.run.folder import RunFolder, load_run
from layermem_bench.studies.boards import as_named_arm
from layermem_bench.studies.result import LOSS, StudyResult

pytestmark = pytest.mark.usefixtures("undrawn")
ARMS = ["plain", "recipe"]


@pytest.fixture
def asked(tmp_path):
    """Return a study of two arms and two seeds, of runs of two steps."""
    (tmp_path / "run.yaml").write_text(
        yaml.safe_dump(to_dict(a_run(tmp_path, preset="words", max_steps=2)))
    )
    words = ["study", "--config", str(tmp_path / "run.yaml"), "--seeds", "2"]
    return [*words, "--variants", "plain,recipe", "--out", str(tmp_path / "out")]


def test_a_study_of_a_config_runs_what_is_missing(asked, tmp_path, monkeypatch, capsys):
    made_up, out = use(MadeUp(), monkeypatch), tmp_path / "out"
    made_up.does = lambda run: "no disk" if run.seed and run.variant == "lime" else "ends"
    # A failed run ends the command with an error after its result is shown and written.
    with pytest.raises(SystemExit, match="1 of 4 runs failed: words/recipe-s1"):
        cli.main(asked)
    assert "failed: seed 1" in " ".join(capsys.readouterr().out.split())
    made_up.does, names = lambda run: "ends", [f"words/{a}-s{s}" for s in (0, 1) for a in ARMS]
    assert made_up.begun == names
    cli.main(asked)
    assert made_up.begun == [*names, names[-1]]
    result = read_result(StudyResult, out / "studies" / "words")
    assert [arm.name for arm in result.boards[0].conditions[0].arms] == ARMS
    assert "validation loss" in capsys.readouterr().out
    assert (out / "studies" / "words" / "index.html").exists()
    # The labels are in the config, and stay as long as the run is one of the board's.
    config = out / "words/recipe-s0/config.yaml"
    labels = Labels(board="words", conditions=("tokens",), arm="recipe")
    assert (load_run(config).variant, load_run(config).labels) == ("lime", labels)
    for option, value, kept in (
        ("--seed", "5", labels),
        ("--max-steps", "1", Labels(arm="lime")),
        ("--labels.arm", "mine", replace(labels, arm="mine")),
    ):
        options = cli.parse(["train", "--config", str(config), option, value])
        assert as_named_arm(resolve_run(options)).labels == kept


@pytest.mark.slow
def test_a_study_that_was_killed_goes_on(asked, tmp_path, monkeypatch):
    """Its runs end by themselves; what they were trained with is the same."""
    steps = ["--max-steps", "8", "--save-every", "8", "--eval-every", "8"]
    command = [sys.executable, "-m", "layermem", *asked, *steps]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    first = RunFolder(tmp_path / "out" / "words" / "plain-s0")
    while not first.rows() and process.poll() is None:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "out" / "studies" / "words" / "study.json").exists()
    subprocess.run(command, check=True, capture_output=True)
    use(InThisProcess(), monkeypatch)
    fresh = tmp_path / "fresh"
    cli.main([*asked[:-1], str(fresh), *steps])
    values = [
        read_result(StudyResult, out / "studies" / "words").values("words", "tokens", LOSS)
        for out in (tmp_path / "out", fresh)
    ]
    assert values[0] == values[1] and all(len(of) == 2 for of in values[0].values())


def test_options_of_a_runs_variant_are_of_no_other_arm(tmp_path, made_up, monkeypatch):
    use(made_up, monkeypatch)
    model = replace(SIZES, options=("router_grain=layer", "attention_bias=true"))
    folder = record(tmp_path / "half", model=model, preset="made-up")
    arms = ["--variants", "lime,lime:router_grain=layer", "--out", str(tmp_path / "out")]
    cli.main(["study", str(folder), *arms, "--seeds", "1"])
    options = [run.model.options for run in made_up.runs]
    assert options == [("attention_bias=true",), ("attention_bias=true", "router_grain=layer")]


def test_a_dry_run_trains_nothing(tmp_path, made_up, capsys, monkeypatch):
    use(made_up, monkeypatch)
    arms = "plain,lime,hyper_connections"
    cli.main(
        ["study", "tiny-lm,tiny-aet-4", "--variants", arms, "--out", str(tmp_path), "--dry-run"]
    )
    shown = " ".join(capsys.readouterr().out.split())
    # Three arms at four rates; three arms, five seeds, and those that two conditions change.
    assert shown.count("12 + 30") == 2 and "84 runs" in shown
    assert not made_up.begun and not any(tmp_path.iterdir())
