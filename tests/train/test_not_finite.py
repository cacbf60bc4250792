"""Numbers that are not finite: they stop the run, and nothing that holds them is written."""

import pytest
import torch
from safetensors.torch import load_file
from small_run import a_run, rewound

from layermem_bench.results.run_folder import RunFolder
from layermem_bench.train.run import train
from layermem_bench.train.stopping import NotFiniteError
from layermem_bench.train.trainer import Trainer


def assert_nothing_bad_was_written(folder):
    assert not folder.final.exists()
    for checkpoint in folder.complete_checkpoints():
        state = load_file(checkpoint / "model.safetensors")
        assert all(tensor.isfinite().all() for tensor in state.values()), checkpoint
    assert not [row for row in folder.rows() if row.get("val_loss") != row.get("val_loss")]


@pytest.mark.parametrize("log_every", [1, 5])
def test_a_rate_far_too_high_ends_in_an_error(log_every, tmp_path):
    # Of letters no training text has: what is 1e30 cancels out in the norms, what is not does not.
    validation = tmp_path / "other.jsonl"
    validation.write_text('{"text": "' + "XYZ " * 20 + '"}\n')
    data, optim = {"validation": str(validation)}, {"lr": 1e30}
    run = a_run(tmp_path, max_steps=1, log_every=log_every, data=data, optim=optim)
    with pytest.raises(NotFiniteError, match="not finite .* no checkpoint. Lower optim.lr"):
        train(run, tmp_path / "burst")
    assert_nothing_bad_was_written(RunFolder(tmp_path / "burst"))


def burst_at(monkeypatch, step, act):
    """Have ``act`` called on the trainer after the optimizer's step of that number."""
    training_step = Trainer.training_step

    def watched(self, *args, **kwargs):
        loss = training_step(self, *args, **kwargs)
        if self.state.global_step == step:
            act(self)
        return loss

    monkeypatch.setattr(Trainer, "training_step", watched)


def spoil_a_row_nobody_reads(trainer):
    """The loss stays finite: no text holds the token."""
    trainer.model.model.embed_tokens.weight.data[-2] = torch.inf


def spoil_a_moment(trainer):
    states = trainer.unwrapped_optimizer().state
    if states:
        next(iter(states.values()))["exp_avg_sq"].flatten()[0] = torch.inf


@pytest.mark.parametrize("spoil", [spoil_a_row_nobody_reads, spoil_a_moment])
def test_a_checkpoint_never_holds_what_is_not_finite(spoil, tmp_path, monkeypatch):
    burst_at(monkeypatch, 4, spoil)
    run = a_run(tmp_path, log_every=10, eval_every=100)
    with pytest.raises(NotFiniteError, match="after step 6; the last good .*checkpoint-4"):
        train(run, tmp_path / "spoilt")
    folder = RunFolder(tmp_path / "spoilt")
    assert folder.latest_checkpoint().name == "checkpoint-4"
    assert_nothing_bad_was_written(folder)


def test_the_final_model_never_does(tmp_path, monkeypatch):
    burst_at(monkeypatch, 7, spoil_a_row_nobody_reads)
    with pytest.raises(NotFiniteError, match="after step 8; there is no checkpoint"):
        train(a_run(tmp_path, save_every=0), tmp_path / "spoilt")
    assert_nothing_bad_was_written(RunFolder(tmp_path / "spoilt"))
    # It diverged as any run does that noticed it sooner: a study takes no such rate.
    run_id = a_run(tmp_path, save_every=0).id
    assert RunFolder(tmp_path / "spoilt").divergence(run_id)["step"] == 8


def test_a_validation_loss_that_is_not_finite_stops_the_run(tmp_path, monkeypatch):
    predict = Trainer.prediction_step

    def spoilt(self, *args, **kwargs):
        found = predict(self, *args, **kwargs)
        factor = torch.nan if self.state.global_step == 4 else 1
        self._judged[-1] = self._judged[-1] * factor
        return found

    monkeypatch.setattr(Trainer, "prediction_step", spoilt)
    with pytest.raises(NotFiniteError, match="validation loss is not finite at step 4"):
        train(a_run(tmp_path), tmp_path / "burst")
    assert_nothing_bad_was_written(RunFolder(tmp_path / "burst"))
    assert not [row for row in RunFolder(tmp_path / "burst").rows() if "val_loss" in row]


def test_a_checkpoint_that_holds_nan_is_not_gone_on_from(run, whole, tmp_path, monkeypatch):
    folder = rewound(whole.path, tmp_path / "old")
    path = folder.latest_checkpoint() / "optimizer.pt"
    state = torch.load(path, weights_only=True)
    state["state"][0]["exp_avg"].fill_(torch.nan)
    torch.save(state, path)
    monkeypatch.setattr("layermem_bench.results.run_folder.check_complete", lambda checkpoint: None)
    with pytest.raises(NotFiniteError, match="not finite after step 4"):
        train(run, folder.path, resume=True)
