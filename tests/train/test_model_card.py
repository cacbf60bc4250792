"""Model cards: metadata that parses, what was trained and measured, and code that runs."""

import json
import re
from dataclasses import replace

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from small_run import a_run, rewound
from transformers import AutoModelForCausalLM

import layermem
from layermem_bench.config.run import Task
from layermem_bench.evals.solving import evaluate
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.train.model_card import Learnt, model_card
from layermem_bench.train.run import train

TASK = Task(
    name="arithmetic",
    examples=30,
    validation=5,
    test=8,
    options=(
        *("operands=2", "operators=+", "operand_max=20", "value_max=40", "trivial=1.0"),
        "held_out=strict",
    ),
)


GROUPS = [
    {"name": "decayed", "initial_lr": 1e-3, "weight_decay": 0.1},
    {"name": "plain", "initial_lr": 1e-3, "weight_decay": 0.0},
    {"name": "LimeRouter", "initial_lr": 1e-2, "weight_decay": 0.0},
]
LEARNT = Learnt(task="text-generation", data="letters", unit="token", usage="pass")


def card_of(folder):
    return (folder.final / "README.md").read_text(encoding="utf-8")


def run_the_code(text, path, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(compile(code.replace("path/to/this/folder", str(path)), "card", "exec"), {})
    return capsys.readouterr().out


def test_a_run_on_text_writes_a_card(run, whole, capsys):
    folder, text = whole, card_of(whole)
    card = ModelCard(text)
    assert card.data.library_name == "layermem" and card.data.pipeline_tag == "text-generation"
    assert "lime" in card.data.tags
    assert card.data.license is None and "base_model" not in card.data.to_dict()
    rows = [row for row in folder.rows() if "val_loss" in row]
    about = yaml.safe_load(folder.config.read_text())["about"]
    for figure in (
        f"| validation loss (nats a token) | {rows[-1]['val_loss']:.4f} |",
        f"| validation perplexity | {rows[-1]['val_perplexity']:.2f} |",
        f"| tokens | {rows[-1]['tokens']:,} |",
        f"| run id | {run.id} |",
        f"| digest of the data | {about['data']} |",
        f"| torch | {about['torch']} |",
        f"| training loss of step 1 | {folder.rows()[0]['loss']:.4f} |",
        "\n# lime trained by the preset custom, seed 0\n",
        "| steps | 8 |",
        "| seed | 0 (weights and order of the data) |",
        f"| learning rate | {run.optim.lr:g} (",
        "norms, biases and embeddings, routers, weight matrices); ",
        "chooses one",
        "You Do Not Fully Utilize",
    ):
        assert figure in text
    assert run_the_code(text, folder.final, capsys).startswith("The")


def test_a_run_on_a_task_has_its_shares_and_a_prompt_of_its_test_set(tmp_path, capsys):
    run = a_run(tmp_path, task=TASK)
    folder = train(run, tmp_path / "run", evaluate=evaluate)
    text, result = card_of(folder), json.loads(folder.result.read_text())
    low, high = result["interval"]
    assert (
        f"| right final answer | {result['accuracy']:.1%} (95% interval over problems: "
        f"{low:.1%} to {high:.1%}) |" in text
    )
    assert "| test problems | 8 |" in text and "operands=2" in text
    prompt = json.loads(folder.attempts.read_text().splitlines()[0])["prompt"]
    assert (
        run_the_code(text, folder.final, capsys)
        .replace(" ", "")
        .startswith(prompt.replace(" ", ""))
    )


def test_a_run_that_goes_on_writes_the_card_of_its_end(run, whole, tmp_path):
    resumed = train(run, rewound(whole.path, tmp_path / "again").path, resume=True)
    assert card_of(resumed) == card_of(whole)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return layermem.build(
        "lime", vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2
    )


@pytest.mark.parametrize("name", ["org/a: b #c", "org/'quoted' \"twice\"", "- [x]", "@odd: {y"])
def test_names_that_mean_something_in_yaml_are_quoted(name, tmp_path, model):
    run = a_run(tmp_path, preset=name, model={"pretrained": name})
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.config.write_text(yaml.safe_dump({"about": {"command": f"layermem train | {name}"}}))
    text = model_card(run, folder, model, GROUPS, LEARNT, {})
    _, metadata, _ = text.split("---\n", 2)
    data = yaml.safe_load(metadata)
    assert data["base_model"] == name
    assert data["model_name"] == f"{name}-lime-s0"
    assert f"layermem train \\| {name}" in text
    assert "Nothing was measured." in text


def test_a_local_checkpoint_is_no_base_model(tmp_path, model):
    run = replace(a_run(tmp_path), seed=3)
    run = replace(run, model=replace(run.model, pretrained=str(tmp_path)))
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.config.write_text("{}")
    text = model_card(run, folder, model, GROUPS, LEARNT, {})
    assert "base_model" not in text and f"| started from | {tmp_path} |" in text


def test_a_run_that_ends_with_other_versions_says_both(run, whole):
    folder = whole
    model = AutoModelForCausalLM.from_pretrained(folder.final)
    text = model_card(run, folder, model, GROUPS, LEARNT, {"precision": "bfloat16", "torch": "9.9"})
    about = yaml.safe_load(folder.config.read_text())["about"]
    assert f"| torch | {about['torch']} at the beginning, 9.9 at the end |" in text
    assert "| precision | float32 at the beginning, bfloat16 at the end |" in text
    assert f"| python | {about['python']} |" in text


def test_damaged_records_cost_the_card_and_not_the_model(tmp_path, monkeypatch, caplog):
    def damaged(*_):
        raise ValueError("metrics.jsonl, line 3 is not a JSON row")

    monkeypatch.setattr("layermem_bench.train.model_card.model_card", damaged)
    folder = train(a_run(tmp_path, max_steps=2), tmp_path / "run")
    assert (folder.final / "model.safetensors").exists()
    # What the model is stays said.
    assert "## Training" not in card_of(folder) and "variant `lime`" in card_of(folder)
    assert "has no model card of its training (ValueError: metrics.jsonl, line 3" in caplog.text
