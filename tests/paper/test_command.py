"""`layermem study paper/...`: what is refused before anything is trained, what a dry run says."""

import re

import pytest
from made_up import a_study, made_up
from recorded import record

import layermem_bench.paper
from layermem_bench import cli
from layermem_bench.cli.study import OfPaper
from layermem_bench.results.files import read_result
from layermem_bench.results.study import StudyResult


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["paper/tabel7"], "'tabel7'.*table7"),
        (["paper/table7", "--seeds", "0"], "--seeds .*got 0"),
        (["paper/table7", "--jobs", "0"], "--jobs .*got 0"),
        (["paper/table7", "--runs", "nowhere"], "nowhere"),
        (["paper/table7", "--seeds", "1001", "--dry-run"], "--seeds .*1001"),
        (["paper/table7", "--conditions", "time"], "--conditions"),
        (["paper/fig1", "--records", "here"], "--records here"),
        (["paper/fig1", "--records", "here", "--dry-run"], "--records here"),
        (["paper/fig1", "--without", "WiC"], "--without WiC"),
        (["paper/table5", "--without", "WiC", "--dry-run"], "--without WiC.*ARC-E.*OBQA"),
        (["paper/table1", "--without", "multi_rc"], "--without multi_rc.*multirc"),
        (["paper/table5", "--without", "ARC-E", "ARC-C", "HellaSwag", "OBQA"], "--without"),
    ],
)
def test_what_is_asked_wrongly(argv, named, tmp_path):
    with pytest.raises(SystemExit, match=named):
        cli.main(["study", *argv, "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("inner", ["", "deeper"])
@pytest.mark.parametrize(
    "argv",
    [
        ["study", "paper/table7"],
        ["study", "tiny-lm"],
        ["report", "run"],
    ],
)
def test_a_file_is_no_folder_of_results(argv, inner, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "run")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SystemExit, match="/file"):
        cli.main([*argv, "--out", str(tmp_path / "file" / inner)])
    assert (tmp_path / "file").read_text() == "mine"


def test_a_scale_that_needs_a_gpu_is_refused_without_one(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="table7.*paper.*a GPU"):
        cli.main(["study", "paper/table7", "--scale", "paper", "--out", str(tmp_path)])


def test_a_dry_run_says_which_tasks_would_be_asked(tmp_path, capsys):
    argv = ["study", "paper/table5", "--dry-run", "--without", "openbookqa"]
    cli.main([*argv, "--seeds", "2", "--out", str(tmp_path)])
    shown = " ".join(capsys.readouterr().out.split())
    assert "3 evaluation tasks (ARC-E, ARC-C, HellaSwag)" in shown
    assert "18 runs" in shown and not list(tmp_path.iterdir())


def test_a_dry_run_counts_runs(tmp_path, capsys):
    # Of 4 + 4 trials and 2 + 2 runs that count.
    cli.main(["study", "paper/fig11", "--dry-run", "--seeds", "2", "--out", str(tmp_path)])
    shown = " ".join(capsys.readouterr().out.split())
    assert "8 + 4" in shown and "12 runs, 12 to come" in shown
    assert not list(tmp_path.iterdir())


def test_what_is_not_whole_fails_after_its_page_is_written(tmp_path, begun, monkeypatch, capsys):
    monkeypatch.setattr(
        layermem_bench.paper, "get_artefact", lambda name: made_up(missing="a disk")
    )
    with pytest.raises(SystemExit, match="a disk"):
        cli.main(["study", "paper/table7", "--seeds", "2", "--out", str(tmp_path)])
    folder = tmp_path / "studies" / "paper" / "table7-tiny"
    assert read_result(StudyResult, folder / "study.json").missing == "a disk"
    page = (folder / "index.html").read_text()
    assert re.search("Not evaluated: a disk", page) and "LIMe is better." in page
    assert "loss: lime below plain" in capsys.readouterr().out


def test_a_study_of_the_paper_is_at_the_scale_and_seeds_that_are_asked_for():
    study = OfPaper(name="paper/table7", seeds=2, dry_run=True).study()
    assert (study.name, study.seeds) == ("paper/table7-tiny", (0, 1))
    assert a_study(3).seeds == (0, 1, 2) and study.scale == "tiny"
