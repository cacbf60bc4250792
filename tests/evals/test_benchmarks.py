"""Evaluation tasks: records in all forms, examples, scores of lm-eval's own command, cuts."""

import json
import lzma

import pytest
from eval_fixtures import docs

from layermem_bench.evals import benchmarks
from layermem_bench.evals.benchmark_records import TASKS, find_tasks, read_docs
from layermem_bench.evals.result import EvalOptions
from layermem_bench.run.trained_models import open_checkpoints

lm_eval = pytest.importorskip("lm_eval")
TaskManager = pytest.importorskip("lm_eval.tasks").TaskManager

OF_BIGBENCH = "logical_deduction_three_objects"
SHOTS = 3


def write(folder, task, of_splits):
    """Write records of a task as JSON lines, and return the folder."""
    for split, items in of_splits.items():
        name = task.stem if split == "default" else f"{task.stem}_{split}"
        lines = "".join(json.dumps(item) + "\n" for item in items)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return str(folder)


def contexts(task, seed):
    """Return the whole prompt of every item."""
    task.set_fewshot_seed(seed)
    return [task.fewshot_context(doc, SHOTS) for doc in task.eval_docs]


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_asked_with_other_examples_by_another_seed(name, tmp_path):
    task, of_splits = TASKS[name], docs(name, count=8)
    mine, about = benchmarks.load_tasks([name], [write(tmp_path, task, of_splits)])[name]
    assert (mine.config.task, mine.config.output_type) == (name, "multiple_choice")
    assert "acc" in [metric["metric"] for metric in mine.config.metric_list]
    assert len(mine.eval_docs) == 8 and about["items from"].startswith(task.stem)
    for doc in mine.eval_docs:
        place, choices = mine.doc_to_target(doc), mine.doc_to_choice(doc)
        assert (place in choices) if isinstance(place, str) else (0 <= int(place) < len(choices))
    assert len(set(contexts(mine, 0)) - set(contexts(mine, 1))) > 4


def test_a_task_that_the_hub_does_not_have_needs_records(tmp_path):
    with pytest.raises(ValueError, match="logical_deduction__three_objects.json"):
        benchmarks.load_tasks([OF_BIGBENCH], [str(tmp_path)])


@pytest.mark.parametrize("name", ["copa", OF_BIGBENCH])
def test_an_item_is_never_its_own_example(name, tmp_path):
    """Without records to draw from, examples are the other items."""
    task = TASKS[name]
    items = docs(name, count=SHOTS + 1)[task.split]
    folder = write(tmp_path, task, {task.split: items})
    mine, about = benchmarks.load_tasks([name], [folder])[name]
    assert about["examples from"] == "the other evaluated items"
    prompts = [mine.doc_to_text(doc) for doc in mine.eval_docs]
    for prompt, context in zip(prompts, contexts(mine, 0), strict=True):
        # With one item more than examples, every other item is one.
        assert all(context.count(other) == 1 for other in prompts) and context.endswith(prompt)


ARC = {"question": "Why?", "choices": {"text": ["no", "so"], "label": ["A", "B"]}, "answerKey": "B"}
BOOK = {"text": ["a", 'b"', "c", "d (B) e"], "label": list("ABCD")}
OTHER_FORMS = [
    ({"query": "Question: Why?", "choices": ["no", "so"], "gold": 1}, ARC),
    (
        {"ctx": "Swimming: A man: he", "endings": ["a", "b"], "label": "1"},
        {"activity_label": "Swimming", "ctx_a": "A man: he", "ctx_b": "", "endings": ["a", "b"]},
    ),
    ({"question": "q", "sentence": "s", "label": "not_entailment"}, {"label": 1}),
    ({"sentence1": "q", "sentence2": "s", "label": "0"}, {"label": 0}),
    (
        {"Question Stem": "So", "Choices": '(A) a (B) b" (C) c (D) d (B) e', "Answer Key": "B"},
        {"question_stem": "So", "choices": BOOK, "answerKey": "B"},
    ),
]


@pytest.mark.parametrize(("record", "expected"), OTHER_FORMS)
@pytest.mark.parametrize("kind", ["jsonl", "tsv"])
def test_other_forms(record, expected, kind, tmp_path):
    if kind == "tsv" and any(isinstance(value, list) for value in record.values()):
        pytest.skip("a table has no lists")
    texts = json.dumps(record)
    if kind == "tsv":
        texts = "\n".join("\t".join(map(str, row)) for row in (record, record.values()))
    path = tmp_path / f"x.{kind}.xz"
    path.write_bytes(lzma.compress(f"{texts}\n".encode()))
    (read,) = read_docs([path])
    assert {**read, **expected} == read


def test_records_that_lack_a_field_are_refused_with_their_file(tmp_path):
    (tmp_path / "copa_valid.jsonl").write_text('{"premise": "Rain.", "label": 1}\n')
    with pytest.raises(ValueError, match="copa_valid.jsonl"):
        benchmarks.load_tasks(["copa"], [str(tmp_path)])


def test_parts_of_a_bigbench_task_as_it_is_published(tmp_path):
    task = TASKS["key_value_maps"]
    (tmp_path / "bigbench").mkdir()
    for part, is_shown in (("b", False), ("a", True)):
        example = {"input": part, "target_scores": {"red": 0, "a dog": 1, "blue": 1}}
        published = {"task_prefix": "Say.\n", "choice_prefix": "\n* ", "examples": [example]}
        text = json.dumps({**published, "append_choices_to_input": is_shown}, indent=1)
        (tmp_path / "bigbench" / f"key_value_maps__{part}.json").write_text(text)
    (paths,) = task.find_records([str(tmp_path)]).values()
    first, second = read_docs(paths)
    assert first["inputs"] == "Say.\n\nQ: a\n* a dog\n* blue\n* red\nA:"
    assert second["inputs"] == "Say.\n\nQ: b\nA:" and second["targets"] == ["a dog", "blue"]
    assert task.expected_file == "key_value_maps.json"


@pytest.mark.parametrize("name", ["copa", "arc_challenge"])
def test_scores_are_those_of_lm_eval(name, saved, tmp_path, monkeypatch):
    """Its own command on the same items, with the same draw of examples."""
    folder = write(tmp_path, TASKS[name], docs(name, count=6))
    task, _ = benchmarks.load_tasks([name], [folder])[name]
    options = EvalOptions(tasks=(name,), records=(folder,), seeds=1)
    opened = open_checkpoints(saved[1:])
    part = benchmarks.measure_benchmarks(opened, [name], options, lambda *_: None)
    theirs = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": saved[1], "dtype": "float32"},
        tasks=[task],
        num_fewshot=SHOTS,
        fewshot_random_seed=0,
        bootstrap_iters=0,
        device="cpu",
        task_manager=TaskManager(include_defaults=False),
    )["results"][name]
    right, *more = part.rows
    assert right.scores["lime"].value == theirs["acc,none"]
    assert [row.scores["lime"].value for row in more] == [
        value for metric, value in theirs.items() if metric == "acc_norm,none"
    ]


def test_long_prompts_are_refused_or_cut_and_counted(saved, tmp_path):
    folder = write(tmp_path, TASKS["copa"], docs("copa", count=4))
    asked = {"tasks": ("copa",), "records": (folder,), "seeds": 1, "max_length": 100}
    opened = open_checkpoints(saved[:1])
    with pytest.raises(ValueError, match="--truncate"):
        benchmarks.measure_benchmarks(opened, ["copa"], EvalOptions(**asked), lambda *_: None)
    cut = EvalOptions(**asked, truncate=True)
    (row,) = benchmarks.measure_benchmarks(opened, ["copa"], cut, lambda *_: None).rows
    assert row.scores["plain"].counts == {"prompts cut": 8}


def sample(number, target, values=(-1.0, -2.0), choices=(" yes", " no")):
    return {
        "doc_id": number,
        "target": target,
        "arguments": [("", choice) for choice in choices],
        "filtered_resps": [(value, False) for value in values],
        "acc": float(target == 0),
        "cut": {1},
    }


def test_a_guess_is_one_of_the_choices_or_the_most_frequent_answer():
    three = sample(2, 1, choices=(" no", " yes", " so"))
    chance, most_frequent = benchmarks.baselines([sample(0, 0), sample(1, " yes"), three])
    assert chance == pytest.approx((1 / 2 + 1 / 2 + 1 / 3) / 3) and most_frequent == 1
    # Of a split without answers, to which every answer would be wrong.
    for target in (-1, 2):
        with pytest.raises(ValueError, match="item 0 has no right answer"):
            benchmarks.baselines([sample(0, target)])


def test_ties_and_cut_prompts_are_counted():
    score = benchmarks.score_answers([[sample(0, 0), sample(1, 1, values=(-1.0, -1.0))]])
    assert (score.value, score.counts) == (0.5, {"ties": 1, "prompts cut": 2})
    # The first of such choices would be taken for the answer.
    with pytest.raises(ValueError, match="item 3 is not finite"):
        benchmarks.score_answers([[sample(3, 0, values=(float("nan"), -1.0))]])


def test_tasks_by_name():
    assert [task.name for task in find_tasks(["paper", "copa"])] == [*TASKS]
    with pytest.raises(ValueError, match="did you mean implicit_relations"):
        find_tasks(["implicit_relation"])
