"""Evaluation tasks of a user's own: asked as lm-eval asks them, and what is refused."""

import json
import logging

import pytest
import torch
import transformers
from tiny import TINY

from layermem_bench import cli
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.evals.benchmarks import RIGHT, RIGHT_NORM
from layermem_bench.evals.task_catalog import examples_split, own_task
from layermem_bench.results.eval import EvalResult
from layermem_bench.results.files import read_result

lm_eval = pytest.importorskip("lm_eval")

GOALS = [
    {"goal": f"open box {n}", "sol1": f"lift lid {n}", "sol2": f"sit on {n}", "label": n % 3 % 2}
    for n in range(14)
]
PIQA = """
include: base.yaml
task: my_piqa
validation_split: validation
doc_to_text: "Question: {{goal}}\\nAnswer:"
doc_to_target: label
doc_to_choice: "{{[sol1, sol2]}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
# The same answer after two contexts, as of WinoGrande.
CONTEXTS = """
include: base.yaml
task: my-contexts
test_split: validation
doc_to_text: label
doc_to_choice: "{{['First ' + goal, 'Then ' + goal]}}"
doc_to_target: "which works."
"""


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "llama"
    torch.manual_seed(1)
    sizes = {**TINY, "vocab_size": 300, "max_position_embeddings": 2048}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).save_pretrained(path)
    load_tokenizer("bytes").save_pretrained(path)
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch, llama):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(logging.getLogger("lm_eval"), "level", logging.ERROR)
    lines = [json.dumps(item) + "\n" for item in GOALS]
    (tmp_path / "items.jsonl").write_text("".join(lines))
    base = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"validation": str(tmp_path / "items.jsonl")}},
        "output_type": "multiple_choice",
    }
    (tmp_path / "base.yaml").write_text(json.dumps(base))
    (tmp_path / "piqa.yaml").write_text(PIQA)
    (tmp_path / "contexts.yaml").write_text(CONTEXTS)
    (tmp_path / "llama").symlink_to(llama)
    return tmp_path


def evaluate(folder, *words):
    cli.main(["eval", str(folder / "llama"), *map(str, words), "--out", str(folder / "out")])
    return read_result(EvalResult, folder / "out")


def test_a_definition_is_asked_as_by_lm_eval(folder, capsys):
    """Without examples, so that lm-eval's own draw of them does not matter."""
    names = f"{folder / 'piqa.yaml'},{folder / 'contexts.yaml'}"
    result = evaluate(folder, "--tasks", names, "--shots", "0")
    theirs = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(folder / "llama"), "dtype": "float32"},
        tasks=[str(folder / "piqa.yaml"), str(folder / "contexts.yaml")],
        num_fewshot=0,
        bootstrap_iters=0,
        device="cpu",
        # Its own thousands of definitions take seconds to list.
        task_manager=lm_eval.tasks.TaskManager(include_defaults=False),
    )["results"]
    piqa, contexts = (result.of(RIGHT)[name] for name in ("my_piqa", "my-contexts"))
    assert piqa.scores["llama"].value == theirs["my_piqa"]["acc,none"]
    norm = result.of(RIGHT_NORM)["my_piqa"].scores["llama"]
    assert norm.value == theirs["my_piqa"]["acc_norm,none"]
    assert contexts.scores["llama"].value == theirs["my-contexts"]["acc,none"]
    assert (piqa.scores["llama"].count, piqa.chance, piqa.paper) == (14, 0.5, {})
    labels = [item["label"] for item in GOALS]
    majority = max(labels.count(0), labels.count(1)) / 14
    assert piqa.most_frequent == contexts.most_frequent == majority
    assert piqa.about["items from"] == "json (by piqa.yaml), split validation"
    assert "my_piqa" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [
        "",
        "fewshot_split: validation",
        "fewshot_config: {split: validation}",
        "fewshot_config: {sampler: default}",
        "training_split: validation",
    ],
)
def test_examples_are_other_items_than_the_one_that_is_asked(folder, monkeypatch, line):
    """lm-eval leaves the item out only where ``test_split`` names the split of the examples."""
    (folder / "piqa.yaml").write_text(f"{PIQA}{line}\n")
    seen = []
    from layermem_bench.evals import harness

    answer = harness.answer_task

    def spy(model, task, *rest):
        found = answer(model, task, *rest)
        seen.extend((inst.doc["goal"], inst.args[0]) for inst in task.instances)
        return found

    monkeypatch.setattr(harness, "answer_task", spy)
    result = evaluate(folder, "--tasks", folder / "piqa.yaml", "--seeds", "1", "--shots", "3")
    assert len(seen) == 2 * 14
    for goal, context in seen:
        assert context.count(f"Question: {goal}\n") == 1
        assert context.count("Question: ") == 4
    assert result.of(RIGHT)["my_piqa"].about["examples from"].endswith("split validation")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"doc_to_text": "!function code.ask"}, r"names Python code \(!function\), which is not"),
        ({"output_type": "generate_until"}, "of output_type 'generate_until'; only multiple_choi"),
        ({"task": "copa"}, "calls its task 'copa', as a task of the paper is; call it otherwise"),
        ({"task": "../up"}, "calls its task '../up'; give it letters, digits,"),
        ({"task": ["a", "b"]}, "has no task; .* the definition of one task, not of a group"),
        ({"dataset_path": ""}, "cannot be loaded"),
        ({"validation_split": ""}, "names no test_split and no validation_split"),
        ({"metric_list": "[{metric: f1}]"}, "is scored by f1; its metric_list needs acc"),
        (
            {"metric_list": "[{metric: acc}, {metric: acc_mutual_info}]"},
            "asks for acc_mutual_info, which is not supported",
        ),
        ({"include": "nowhere.yaml"}, "nowhere.yaml does not exist"),
        ({"include": "piqa.yaml"}, "more than 8 files that include each other"),
        ({"validation_split": "test"}, r"cannot be loaded \(.*test"),
        ({"doc_to_target": "7"}, r"cannot be loaded \(IndexError"),
        ({"doc_to_target": "'-1'"}, "item 0 has the answer '-1', which is none of its 2 choices"),
        ({"doc_to_text": "'{{nothing}}'"}, "'nothing' is undefined"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_said(folder, change, message):
    (name, value), *_ = change.items()
    lines = [line for line in PIQA.splitlines() if not line.startswith(f"{name}:")]
    written = value if isinstance(value, str) and value else json.dumps(value)
    (folder / "piqa.yaml").write_text("\n".join([*lines, f"{name}: {written}"]))
    with pytest.raises(SystemExit, match=message):
        evaluate(folder, "--tasks", folder / "piqa.yaml", "--seeds", "1")


@pytest.mark.parametrize(
    ("fields", "split"),
    [
        ({"test_split": "a"}, "a"),
        ({"test_split": "a", "validation_split": "b"}, "b"),
        ({"test_split": "a", "validation_split": "b", "training_split": "c"}, "c"),
        ({"test_split": "a", "training_split": "c", "fewshot_split": "d"}, "d"),
        ({"fewshot_split": "d", "fewshot_config": {"split": "e", "samples": []}}, "e"),
        ({"training_split": "c", "fewshot_config": {"samples": []}}, None),
    ],
)
def test_examples_are_of_the_split_that_lm_eval_draws_them_from(folder, fields, split):
    assert examples_split(fields) == split
    config = lm_eval.config.task.TaskConfig(task="t", output_type="multiple_choice", **fields)
    theirs = config.fewshot_config.split
    if "fewshot_split" in fields or "split" in fields.get("fewshot_config", {}):
        assert theirs == split
    else:
        assert theirs is None


def test_examples_that_are_evaluated_too_are_refused(folder):
    """A file of another name may hold the same items: their answers would be shown."""
    lines = (folder / "items.jsonl").read_text().splitlines(keepends=True)
    other = lines[:2] + [line.replace("open", "close") for line in lines[2:]]
    (folder / "train.jsonl").write_text("".join(other))
    files = {"validation": str(folder / "items.jsonl"), "train": str(folder / "train.jsonl")}
    data = json.dumps({"data_files": files})
    definition = f"{PIQA}training_split: train\ndataset_kwargs: {data}\n"
    (folder / "piqa.yaml").write_text(definition)
    ask = [folder, "--tasks", folder / "piqa.yaml", "--seeds", "1"]
    with pytest.raises(SystemExit, match="2 of the 14 records of my_piqa that examples are drawn"):
        evaluate(*ask)
    without = evaluate(*ask, "--shots", "0").of(RIGHT)["my_piqa"]
    assert without.scores["llama"].count == 14
    (folder / "train.jsonl").write_text("".join(other[2:]))
    found = evaluate(*ask, "--shots", "3").of(RIGHT)["my_piqa"]
    assert found.about["examples from"] == "json (by piqa.yaml), split train"


def test_two_tasks_of_one_name_are_refused(folder):
    (folder / "other.yaml").write_text(PIQA)
    with pytest.raises(SystemExit, match=r"piqa.yaml and .*other.yaml both call their task my_pi"):
        evaluate(folder, "--tasks", f"{folder / 'piqa.yaml'},{folder / 'other.yaml'}")


def test_other_files_that_are_no_definitions(folder):
    for text, message in (("- a\n- b", "must hold the fields of a task"), ("a: [", "is no YAML")):
        (folder / "piqa.yaml").write_text(text)
        with pytest.raises(SystemExit, match=message):
            evaluate(folder, "--tasks", folder / "piqa.yaml")
    with pytest.raises(SystemExit, match=r"gone.yaml does not exist; --tasks takes names, and fi"):
        evaluate(folder, "--tasks", folder / "gone.yaml")
    (folder / "piqa.yaml").write_text(PIQA)
    with pytest.raises(SystemExit, match="my_piqa has 14 records to draw .*, too few for 14"):
        evaluate(folder, "--tasks", folder / "piqa.yaml", "--shots", "14")
    with pytest.raises(SystemExit, match=r"unknown task 'piqa'; .*(my_task.yaml)"):
        evaluate(folder, "--tasks", "piqa")


def test_definitions_of_lm_eval_are_read():
    root = lm_eval.tasks.__path__[0]
    task = own_task(f"{root}/piqa/piqa.yaml")
    assert (task.name, task.split) == ("piqa", "validation")
    with pytest.raises(ValueError, match=r"names Python code"):
        own_task(f"{root}/winogrande/default.yaml")
