"""A run goes on only from its own checkpoints, its own data and the model it began with."""

import json
import logging
import shutil
from dataclasses import replace

import pytest
import torch
from small_run import a_run, curve, rewound
from transformers import LlamaConfig, LlamaForCausalLM

from layermem_bench.config.run import Task
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.tasks import registry
from layermem_bench.train import processes
from layermem_bench.train.run import train


def test_other_data_is_refused(tmp_path):
    run = a_run(tmp_path, keep=9, max_steps=4)
    folder = rewound(train(run, tmp_path / "whole").path, tmp_path / "begun", 2)
    before = folder.metrics.read_text()
    source = tmp_path / "words.jsonl"
    text = source.read_text()
    # As many tokens, and other ones.
    source.write_text(text.replace("w1", "w2"))
    with pytest.raises(ValueError, match="the training data is not what .*checkpoint-2 was"):
        train(run, folder.path, resume=True)
    assert folder.metrics.read_text() == before
    source.write_text(text)
    train(run, folder.path, resume=True)
    assert curve(folder) == curve(RunFolder(tmp_path / "whole"))


def test_a_task_that_makes_other_problems_is_refused(tmp_path, monkeypatch):
    task = Task(name="arithmetic", examples=40, validation=8, test=4)
    run = a_run(tmp_path, task=task, max_steps=4, eval_every=4, save_every=2)
    folder = rewound(train(run, tmp_path / "whole").path, tmp_path / "begun", 2)
    drawn = registry.TaskDefinition.problems

    def in_another_order(self, split, *args, **options):
        # Another draw of a later version, say.
        problems = list(drawn(self, split, *args, **options))
        return problems if split == "train" else problems[::-1]

    monkeypatch.setattr(registry.TaskDefinition, "problems", in_another_order)
    with pytest.raises(ValueError, match="the validation data is not what .*checkpoint-2 was"):
        train(run, folder.path, resume=True)


def test_a_checkpoint_of_another_run_is_refused(run, whole, place, tmp_path):
    other = train(replace(run, seed=3), tmp_path / "other")
    folder = rewound(whole.path, tmp_path / "begun")
    shutil.rmtree(folder.latest_checkpoint())
    shutil.copytree(other.checkpoints / "checkpoint-4", folder.checkpoints / "checkpoint-4")
    with pytest.raises(ValueError, match="written by another run: seed was 3, is 0"):
        train(run, folder.path, resume=True)


def test_a_renamed_checkpoint_is_refused(run, whole, tmp_path):
    folder = rewound(whole.path, tmp_path / "begun")
    folder.latest_checkpoint().rename(folder.checkpoints / "checkpoint-6")
    with pytest.raises(ValueError, match="checkpoint-6 is of step 4: it was renamed"):
        train(run, folder.path, resume=True)


def test_a_model_that_starts_otherwise_by_now_is_refused(tmp_path):
    """The rest of a config than the weights, which come from the checkpoint."""
    tokenizer = load_tokenizer("bytes")
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes))
    llama.save_pretrained(tmp_path / "llama")
    tokenizer.save_pretrained(tmp_path / "llama")
    source = str(tmp_path / "llama")
    run = a_run(tmp_path, max_steps=4, eval_every=4, model={"pretrained": source})
    folder = rewound(train(run, tmp_path / "whole").path, tmp_path / "begun", 2)
    config = tmp_path / "llama" / "config.json"
    values = json.loads(config.read_text())
    config.write_text(json.dumps({**values, "rms_norm_eps": 0.1}))
    with pytest.raises(ValueError, match=r"not that of .*: rms_norm_eps was 1e-06, is 0\.1"):
        train(run, folder.path, resume=True)
    config.write_text(json.dumps(values))
    train(run, folder.path, resume=True)
    assert curve(folder) == curve(RunFolder(tmp_path / "whole"))


@pytest.mark.parametrize("kept", ["final", "checkpoints", "metrics"])
def test_a_run_without_its_config_or_rows_is_a_run(kept, run, whole, tmp_path):
    folder = RunFolder(shutil.copytree(whole.path, tmp_path / "copy"))
    if kept != "final":
        shutil.rmtree(folder.final)
    if kept != "checkpoints":
        shutil.rmtree(folder.checkpoints)
    if kept != "metrics":
        folder.metrics.unlink()
    other = replace(run, seed=5)
    with pytest.raises(FileExistsError, match="holds a run already"):
        train(other, folder.path)
    folder.config.unlink()
    for resume in (False, True):
        with pytest.raises(FileNotFoundError, match="no config.yaml that says of what"):
            train(other, folder.path, resume=resume)


@pytest.mark.parametrize("damage", ["deleted", "a row less", "edited"])
def test_rows_from_before_the_checkpoint_are_as_they_were(damage, run, whole, tmp_path, caplog):
    folder = rewound(whole.path, tmp_path / "begun")
    first, *others = folder.metrics.read_text().splitlines(keepends=True)
    if damage == "deleted":
        folder.metrics.unlink()
    else:
        less = first.replace('"loss": ', '"loss": 1') if damage == "edited" else ""
        folder.metrics.write_text("".join([less, *others]))
    with caplog.at_level(logging.WARNING, "layermem_bench"):
        train(run, folder.path, resume=True)
    assert "does not hold the rows that" in caplog.text
    assert curve(folder) == curve(whole)


def test_a_resumed_run_logs_validates_and_saves_as_it_says_now(run, whole, tmp_path):
    folder = rewound(whole.path, tmp_path / "begun")
    train(replace(run, log_every=2, eval_every=1, save_every=3), folder.path, resume=True)
    rows = [(row["step"], "loss" in row) for row in folder.rows() if row["step"] > 4]
    validated = [(step, False) for step in (5, 6, 7, 8)]
    assert rows == sorted([*validated, (6, True), (8, True)], key=lambda row: (row[0], not row[1]))
    last_two = folder.complete_checkpoints()[-2:]
    assert [path.name for path in last_two] == ["checkpoint-6", "checkpoint-8"]


def test_processes_must_see_the_same(monkeypatch):
    class Two:
        is_available = is_initialized = staticmethod(lambda: True)
        get_world_size = staticmethod(lambda: 2)

        @staticmethod
        def all_gather_object(everyone, own):
            everyone[:] = [own, theirs]

    monkeypatch.setattr(processes, "distributed", Two)
    theirs = {"checkpoint": "checkpoint-4", "data": "a"}
    processes.check_processes_agree(theirs)
    with pytest.raises(ValueError, match="the same checkpoint: None in process 0, 'checkpoint-4'"):
        processes.check_processes_agree({"checkpoint": None, "data": "a"})
