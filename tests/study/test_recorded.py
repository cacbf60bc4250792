"""Runs that are recorded are found: wherever they lie, and however they were carried out."""

import json
from dataclasses import replace

import pytest
from recorded import SIZES, record

from layermem_bench.config.run import Compute, Data, Optim, Run
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.study.records import RecordedRuns

RUN = Run(preset="made-up", max_steps=40, model=SIZES)


@pytest.mark.parametrize(
    "changes",
    [
        {"log_every": 7},
        {"eval_every": 5, "save_every": 5, "keep": 4, "track": ("wandb",)},
        {"data": Data(cache="elsewhere")},
        {"compute": Compute(micro_batch=2, compile=True, loss_chunk=0)},
    ],
)
def test_a_run_is_found_however_it_was_carried_out(changes, tmp_path):
    there = record(tmp_path / "runs" / "old" / "lime-s0", run=replace(RUN, **changes))
    found = RecordedRuns(tmp_path / "new", [tmp_path / "runs"])
    assert found.path_of("study/lime-s0", RUN) == there
    other = replace(RUN, optim=Optim(lr=0.5))
    assert found.path_of("study/lime-s0", other) == tmp_path / "new" / "study" / "lime-s0"


def test_runs_are_found_at_any_depth_and_only_those_that_ended(tmp_path, caplog):
    deep = record(tmp_path / "runs" / "study" / "rates" / "more" / "x", run=RUN)
    diverged = record(tmp_path / "runs" / "lost", run=replace(RUN, seed=1), diverged=5)
    record(tmp_path / "runs" / "begun", run=replace(RUN, seed=2), ended=False)
    record(tmp_path / "runs" / ".hidden", run=replace(RUN, seed=3))
    (tmp_path / "runs" / "damaged").mkdir()
    (tmp_path / "runs" / "damaged" / "config.yaml").write_text("max_steps: 1\nnew_field: 1\n")
    # A link may lead back to where it lies in.
    (tmp_path / "runs" / "study" / "back").symlink_to(tmp_path / "runs")
    out = tmp_path / "new"
    for root in (tmp_path, tmp_path / "runs"):
        found = RecordedRuns(out, [root])
        folders = [found.path_of("x", replace(RUN, seed=seed)) for seed in range(4)]
        assert folders == [deep, diverged, out / "x", out / "x"]
    (said,) = set(caplog.messages)
    assert "damaged is left out" in said


def test_a_divergence_of_another_run_is_no_record(tmp_path):
    """As of a folder whose config was edited: the run is to be trained."""
    folder = record(tmp_path / "runs" / "lost", run=RUN, diverged=5)
    path = RunFolder(folder).diverged
    path.write_text(json.dumps({**json.loads(path.read_text()), "run_id": "another"}))
    found = RecordedRuns(tmp_path / "new", [tmp_path / "runs"])
    assert found.path_of("x", RUN) == tmp_path / "new" / "x"


def test_an_ended_run_of_the_plans_own_folder_comes_first(tmp_path):
    record(tmp_path / "elsewhere" / "x", run=RUN)
    own = record(tmp_path / "new" / "x", run=RUN)
    assert RecordedRuns(tmp_path / "new", [tmp_path / "elsewhere"]).path_of("x", RUN) == own


def test_folders_that_hold_no_runs_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        RecordedRuns(tmp_path / "new", [tmp_path / "nowhere"])
