"""Model cards: metadata that parses, what was trained and measured, and code that runs."""

import json
import re

import yaml
from huggingface_hub import ModelCard
from small_run import a_run, rewound

from layermem_bench.config.run import Task
from layermem_bench.evals.solving import evaluate
from layermem_bench.run.training import train

TASK = Task(
    name="arithmetic",
    examples=30,
    validation=5,
    test=8,
    options=(
        *("operands=2", "operand_max=20", "value_max=40", "trivial=1.0"),
        "held_out=strict",
    ),
)


def card_of(folder):
    return (folder.final / "README.md").read_text(encoding="utf-8")


def rows_of(text):
    return dict(re.findall(r"^\| (.+?) \| (.+) \|$", text, re.MULTILINE))


def run_the_code(text, path, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(compile(code.replace("path/to/this/folder", str(path)), "card", "exec"), {})
    return capsys.readouterr().out


def test_a_run_on_text_writes_a_card(run, whole, tmp_path, capsys):
    text = card_of(whole)
    data, rows = ModelCard(text).data, rows_of(text)
    assert data.library_name == "layermem" and data.pipeline_tag == "text-generation"
    assert "lime" in data.tags
    assert data.license is None and "base_model" not in data.to_dict()
    about = yaml.safe_load(whole.config.read_text())["about"]
    last = [row for row in whole.rows() if "val_loss" in row][-1]
    assert rows["validation loss (nats a token)"] == f"{last['val_loss']:.4f}"
    assert rows["tokens"] == f"{last['tokens']:,}" and rows["steps"] == "8 of 8 sequences"
    assert yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1]) == about
    assert about["run_id"] == run.id
    assert run_the_code(text, whole.final, capsys).startswith("The")
    # A run that goes on writes the card of its end.
    assert card_of(train(run, rewound(whole.path, tmp_path / "again").path, resume=True)) == text


def test_a_run_on_a_task_has_its_shares_and_a_prompt_of_its_test_set(tmp_path, capsys):
    folder = train(a_run(tmp_path, task=TASK), tmp_path / "run", evaluate=evaluate)
    text, result = card_of(folder), json.loads(folder.result.read_text())
    rows = rows_of(text)
    assert rows["right final answer"].startswith(f"{result['accuracy']:.1%} (95% interval")
    assert rows["test problems"] == "8" and "operands=2" in text
    prompt = json.loads(folder.attempts.read_text().splitlines()[0])["prompt"]
    said = run_the_code(text, folder.final, capsys).replace(" ", "")
    assert said.startswith(prompt.replace(" ", ""))
