"""The config.yaml of a run folder: which run it holds, how it was begun, and of which commit."""

import shutil
import subprocess
from dataclasses import replace

import pytest
import yaml
from small_run import Interrupted, a_run, interrupt, stop_at

from layermem_bench.config.run import Optim, Run
from layermem_bench.run.folder import RunFolder, load_run
from layermem_bench.run.run_config import describe_environment
from layermem_bench.run.training import train


def about(folder):
    return yaml.safe_load(folder.config.read_text())["about"]


def test_a_folder_that_holds_a_run(run, whole, place):
    before = whole.metrics.read_text()
    with pytest.raises(FileExistsError, match="--resume"):
        train(run, whole.path)
    with pytest.raises(FileExistsError, match="optim.lr was 0.01, is 0.5"):
        train(a_run(place, optim={"lr": 0.5}), whole.path)
    with pytest.raises(ValueError, match="optim.lr was 0.01, is 0.5"):
        train(a_run(place, optim={"lr": 0.5}), whole.path, resume=True)
    assert whole.metrics.read_text() == before


def test_the_config_says_what_the_run_last_ran_with(place, tmp_path, monkeypatch):
    out = tmp_path / "changed"
    with monkeypatch.context() as patch:
        stop_at(patch, 3, interrupt)
        with pytest.raises(Interrupted):
            train(a_run(place), out)
    begun = about(RunFolder(out))
    run = a_run(place, eval_every=2, compute={"micro_batch": 8})
    folder = train(run, out, resume=True)
    assert load_run(folder.config) == run
    # It is the run that was begun.
    assert begun["run_id"] == run.id and begun["digest"] != about(folder)["digest"]
    assert about(folder) == {**begun, "digest": about(folder)["digest"]}
    # What has ended is not what was asked for later.
    train(a_run(place), out, resume=True)
    assert load_run(folder.config) == run


@pytest.mark.parametrize("kept", ["final", "metrics"])
def test_a_run_without_its_config_or_rows_is_a_run(kept, run, whole, tmp_path):
    folder = RunFolder(shutil.copytree(whole.path, tmp_path / "copy"))
    if kept != "final":
        shutil.rmtree(folder.final)
    shutil.rmtree(folder.checkpoints)
    if kept != "metrics":
        folder.metrics.unlink()
    other = replace(run, seed=5)
    with pytest.raises(FileExistsError):
        train(other, folder.path)
    folder.config.unlink()
    for resume in (False, True):
        with pytest.raises(FileNotFoundError, match=r"config\.yaml"):
            train(other, folder.path, resume=resume)


def test_a_run_refused_before_its_first_step_leaves_the_folder_free(tmp_path):
    out = tmp_path / "mended"
    with pytest.raises(FileNotFoundError):
        train(a_run(tmp_path, data={"source": "typo.jsonl"}), out)
    run = a_run(tmp_path, max_steps=1)
    assert load_run(train(run, out).config) == run


@pytest.mark.parametrize(
    ("text", "told"),
    [("a: [", "YAML"), ("- 1", "named fields"), ("optim:\n  lr: fast\n", "optim.lr")],
)
def test_a_config_that_is_no_run(text, told, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=told):
        load_run(path)
    path.write_text("optim:\n  lr: 1e-3\n  beta1: 0.5\n")
    assert load_run(path) == Run(optim=Optim(lr=1e-3, beta1=0.5))


def test_the_commit_is_that_of_the_package(tmp_path, monkeypatch, request):
    request.addfinalizer(describe_environment.cache_clear)

    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def now():
        describe_environment.cache_clear()
        return tuple(describe_environment()[name] for name in ("commit", "sources"))

    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "__init__.py").write_text("")
    for module in ("config.hashing", "run.run_config"):
        monkeypatch.setattr(f"layermem_bench.{module}.PACKAGE_FOLDERS", (tmp_path / "one",))
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "before")
    assert now()[0] == "not a git checkout"
    git("add", "one")
    git("commit", "-q", "-m", "with it")
    commit, sources = now()
    assert commit == git("rev-parse", "HEAD")
    (tmp_path / "one" / "__init__.py").write_text("1")
    assert describe_environment()["commit"] == commit, "the code that was loaded"
    assert now()[0] == f"{commit}+changes" and now()[1] != sources
