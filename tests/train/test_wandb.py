"""A run that is resumed goes on with its run at Weights & Biases, which stands in here."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest
import yaml
from launchers import InThisProcess, use
from small_run import a_run

from layermem_bench import cli
from layermem_bench.config.run import to_dict
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.train.run import train


class Wandb(ModuleType):
    """As much of wandb as transformers' callback asks for; notes what is begun and logged."""

    def __init__(self):
        super().__init__("wandb")
        self.__spec__ = ModuleSpec("wandb", None)
        self.run, self.begun, self.logged, self.config = None, [], [], Config()

    def init(self, **settings):
        self.begun.append(settings)
        self.run = SimpleNamespace(
            id=settings.get("id"), name="", _label=lambda code: None, summary={}
        )

    def log(self, row):
        self.logged.append((self.run.id, row))

    def finish(self):
        self.run = None

    def define_metric(self, *args, **kwargs):
        pass


class Config(dict):
    def update(self, values, allow_val_change):
        super().update(values)


@pytest.fixture
def wandb(monkeypatch):
    for name in ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    module, errors = Wandb(), ModuleType("wandb.sdk.lib.config_util")
    errors.ConfigError = ValueError
    monkeypatch.setitem(sys.modules, "wandb", module)
    for name in ("wandb.sdk", "wandb.sdk.lib"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, errors.__name__, errors)
    return module


def interrupted(run, out, monkeypatch):
    append = RunFolder.append_row

    def watched(self, row):
        append(self, row)
        if row["step"] == 5:
            raise RuntimeError("interrupted")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="interrupted"):
        patch.setattr(RunFolder, "append_row", watched)
        train(run, out)


def test_a_resumed_run_goes_on_with_its_own(wandb, tmp_path, monkeypatch):
    run = a_run(tmp_path, track=("wandb",))
    interrupted(run, tmp_path / "a", monkeypatch)
    # Another of the same config, in the same process, between the two halves.
    train(run, tmp_path / "b")
    train(run, tmp_path / "a", resume=True)
    first, other, second = wandb.begun
    assert first["id"] == second["id"] != other["id"]
    assert {begun["resume"] for begun in wandb.begun} == {"allow"}
    assert [begun["name"] for begun in wandb.begun] == ["a", "b", "a"]
    assert wandb.run is None
    for begun, steps in ((first, [1, 2, 3, 4, 5, 6, 7, 8]), (other, [1, 2, 3, 4, 5, 6, 7, 8])):
        rows = [row for name, row in wandb.logged if name == begun["id"] and "train/loss" in row]
        assert [row["train/global_step"] for row in rows] == steps


def test_what_the_user_says_stays(wandb, tmp_path, monkeypatch):
    run = a_run(tmp_path, track=("wandb",), max_steps=1)
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    train(run, tmp_path / "said")
    assert not {"id", "resume"} & wandb.begun[0].keys()
    wandb.init(id="open")
    train(run, tmp_path / "open")
    assert len(wandb.begun) == 2 and wandb.run.id == "open"
    assert {name for name, row in wandb.logged[-2:]} == {"open"}


def test_every_run_of_a_study_is_sent_to_the_project_of_its_board(wandb, tmp_path, monkeypatch):
    launcher = use(InThisProcess(), monkeypatch)
    run = a_run(tmp_path, max_steps=1, eval_every=1)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(to_dict(run)), encoding="utf-8")
    options = ["--variants", "plain,lime", "--seeds", "1", "--out", str(tmp_path / "out")]
    cli.main(["study", "--config", str(tmp_path / "tiny.yaml"), *options, "--track", "wandb"])
    assert len(launcher.begun) == len(wandb.begun) == 2
    assert {begun["project"] for begun in wandb.begun} == {launcher.begun[0].rpartition("/")[0]}
    assert [begun["name"] for begun in wandb.begun] == ["plain-s0", "lime-s0"]
