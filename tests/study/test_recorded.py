"""Runs that are recorded are found: wherever they lie, and however they were carried out."""

from dataclasses import replace

import pytest
from layermem.experiments.arms import try_rates_and_decays
from layermem.experiments.step_times import base_of_step
from recorded import SIZES, record

from layermem.config import Compute, Data, Optim, Run
from layermem.study.recorded import RecordedRuns

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


def test_runs_that_tried_decays_are_found(tmp_path, monkeypatch):
    """They lie deeper than others, in OUT/decay-DECAY/rates."""

    def record_all(runs, out, jobs, **_):
        for name, run in runs.items():
            tried[run.id] = record(out / name, run=run)
        return {}

    tried = {}
    monkeypatch.setattr("layermem.experiments.arms.train_missing", record_all)
    monkeypatch.setattr("layermem.experiments.arms.losses_of_trials", lambda trials: {})
    with pytest.raises(KeyError):
        try_rates_and_decays(RUN, "plain", (0.1,), (0.0, 0.1), tmp_path / "runs" / "study", 1)
    run = replace(RUN, variant="plain", seed=1000, optim=Optim(lr=0.1, weight_decay=0.0))
    (tmp_path / "runs" / "study" / "back").symlink_to(tmp_path / "runs")
    for root in (tmp_path, tmp_path / "runs"):
        found = RecordedRuns(tmp_path / "new", [root])
        assert found.path_of("x", run) == tried[run.id]


def test_what_decides_a_steps_cost_is_not_the_run_alone():
    others = (
        replace(RUN, compute=Compute(micro_batch=2)),
        replace(RUN, compute=Compute(compile=True)),
        replace(RUN, compute=Compute(checkpoint_activations=True)),
        replace(RUN, seed=1),
    )
    assert len({base_of_step(run) for run in (RUN, *others)}) == len(others) + 1
    assert base_of_step(replace(RUN, log_every=3)) == base_of_step(RUN)
