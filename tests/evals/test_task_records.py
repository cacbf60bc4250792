"""Records of evaluation tasks: every form that is read, and what is refused, with its line."""

import json
import lzma
import re

import pytest
from eval_fixtures import docs

from layermem_bench.evals.task_catalog import TASKS, chosen_tasks, find_task
from layermem_bench.evals.task_records import expected_file, find_records, read_docs

COLOURS = "bigbench_reasoning_about_colored_objects_multiple_choice"


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def read(name, path):
    return read_docs(TASKS[name], [path])


@pytest.mark.parametrize("name", TASKS)
def test_records_as_the_hub_has_them(name, tmp_path):
    task = TASKS[name]
    items = docs(name)[task.split]
    write_lines(tmp_path / expected_file(task), [{**item, "more": 1} for item in items])
    files = find_records([str(tmp_path)], [task])
    assert list(files) == [name] and list(files[name]) == [task.split]
    assert read_docs(task, files[name][task.split]) == items


@pytest.mark.parametrize(
    ("name", "record", "expected"),
    [
        (
            "arc_easy",
            {"query": "Question: Why?", "choices": ["no", "so"], "gold": 1},
            {
                "question": "Why?",
                "choices": {"text": ["no", "so"], "label": ["A", "B"]},
                "answerKey": "B",
            },
        ),
        (
            "hellaswag",
            {"ctx": "Swimming: A man: he", "endings": ["a", "b"], "label": "1"},
            {
                "activity_label": "Swimming",
                "ctx_a": "A man: he",
                "ctx_b": "",
                "endings": ["a", "b"],
                "label": 1,
            },
        ),
        (
            "qnli",
            {"question": "q", "sentence": "s", "label": "not_entailment"},
            {"question": "q", "sentence": "s", "label": 1},
        ),
        (
            "wic",
            {"sentence1": "a bank", "sentence2": "b", "start1": 2, "end1": 6, "label": True},
            {"sentence1": "a bank", "sentence2": "b", "start1": 2, "end1": 6, "label": 1},
        ),
    ],
)
def test_other_forms(name, record, expected, tmp_path):
    assert read(name, write_lines(tmp_path / "x.jsonl", [record])) == [expected]


def test_tables(tmp_path):
    path = tmp_path / "openbookqa_test.tsv"
    rows = [
        'ID\tQuestion Stem\tChoices\tAnswer Key\n1\tSo "it is\t(A) a (B) b" (C) c (D) d (B) e\tB\n'
    ]
    path.write_text("".join(rows), encoding="utf-8")
    choices = {"text": ["a", 'b"', "c", "d (B) e"], "label": list("ABCD")}
    expected = [{"question_stem": 'So "it is', "choices": choices, "answerKey": "B"}]
    assert read("openbookqa", path) == expected
    packed = tmp_path / "openbookqa_train.tsv.xz"
    packed.write_bytes(lzma.compress(path.read_bytes()))
    files = find_records([str(tmp_path)], [TASKS["openbookqa"]])["openbookqa"]
    assert {split: paths[0].name for split, paths in files.items()} == {
        "train": packed.name,
        "test": path.name,
    }
    assert read("openbookqa", packed) == expected
    path.write_text("Question Stem\tChoices\tAnswer Key\nq\t(A) a (B) b\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"test.tsv, line 2 has 2 columns, and the header has 3"):
        read("openbookqa", path)
    path.write_text("Question Stem\tChoices\tAnswer Key\nq\t(A) a (B) b\tC\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 2: Answer Key must be one of A, B, got 'C'"):
        read("openbookqa", path)


def test_bigbench_as_it_is_published(tmp_path):
    example = {"input": "Which?", "target_scores": {"red": 0, "a dog": 1, "blue": 1}}
    task = {"task_prefix": "Say.\n", "append_choices_to_input": False, "examples": [example]}
    path = tmp_path / "reasoning_about_colored_objects.json"
    path.write_text(json.dumps(task, indent=1), encoding="utf-8")
    (one,) = read(COLOURS, path)
    assert one == {
        "inputs": "Say.\n\nQ: Which?\nA:",
        "targets": ["a dog", "blue"],
        "multiple_choice_targets": ["red", "a dog", "blue"],
    }
    # In one line too; and with the choices shown, in alphabetical order.
    shown = {**task, "append_choices_to_input": True, "choice_prefix": "\n* "}
    path.write_text(json.dumps(shown), encoding="utf-8")
    (one,) = read(COLOURS, path)
    assert one["inputs"] == "Say.\n\nQ: Which?\n* a dog\n* blue\n* red\nA:"


def test_parts_of_a_bigbench_task_are_one(tmp_path):
    (tmp_path / "bigbench").mkdir()
    for part in ("b", "a"):
        example = {"input": part, "target_scores": {"yes": 1, "no": 0}}
        path = tmp_path / "bigbench" / f"key_value_maps__{part}.json"
        content = {"append_choices_to_input": False, "examples": [example]}
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    task = find_task("key_value_maps")
    files = find_records([str(tmp_path)], [task])[task.name]["default"]
    assert [each["inputs"] for each in read_docs(task, files)] == ["Q: a\nA:", "Q: b\nA:"]


GOOD = {"question": "q", "sentence": "s", "label": 0}


@pytest.mark.parametrize(
    ("name", "record", "message"),
    [
        (
            "qnli",
            {"question": "q", "label": 0},
            r"x.jsonl, line 2 has no field 'sentence' \(it has",
        ),
        ("qnli", {**GOOD, "label": 2}, "line 2: label must be from 0 to 1, got 2"),
        ("qnli", {**GOOD, "label": -1}, "got -1; items without a label cannot be graded"),
        ("qnli", {**GOOD, "label": "yes"}, "line 2: label must be a whole number, got 'yes'"),
        ("qnli", {**GOOD, "question": " "}, "line 2: question must be a text, got ' '"),
        ("qnli", ["q"], "line 2 must hold an object"),
        ("copa", {"question": "why"}, "question must be 'cause' or 'effect', got 'why'"),
        (
            "wic",
            {"sentence1": "ab", "sentence2": "b", "start1": 1, "end1": 3, "label": 0},
            "must be a word in sentence1, which has 2 characters, got 1 and 3",
        ),
        (
            "arc_easy",
            {"question": "q", "choices": {"text": ["a"], "label": ["A"]}, "answerKey": "B"},
            "answerKey must be one of A, of 1 texts, got 'B'",
        ),
        (
            COLOURS,
            {"inputs": "q", "targets": ["c"], "multiple_choice_targets": ["a"]},
            r"targets\[0\], 'c', is none of the choices",
        ),
        ("hellaswag", {"ctx": "no colon", "endings": ["a"], "label": 0}, "ctx must be 'activity"),
        ("hellaswag", {"endings": [], "label": 0}, "endings must be a list of texts, got"),
    ],
)
def test_damaged_records_are_refused_with_their_line(name, record, message, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(f"\n{json.dumps(record)}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read(name, path)


def test_damaged_bigbench_files_are_refused(tmp_path):
    path = tmp_path / "x.json"
    for content, message in [
        ({"examples": [{"input": "q"}]}, "example 1 has no field 'target_scores'"),
        ({"examples": [{"input": "q", "target_scores": {}}]}, "must hold a score of each choice"),
        ({"examples": [{"input": "q", "target_scores": {"a": 0}}]}, "no choice of target_scores"),
        ({"examples": []}, "there are no records in"),
        ({"examples": 3}, "it has no list 'examples'"),
    ]:
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            read(COLOURS, path)


def test_places_that_are_refused(tmp_path):
    qnli = [TASKS["qnli"]]
    lines = write_lines(tmp_path / "qnli_dev.jsonl", [GOOD])
    assert find_records([f"qnli={lines}"], qnli) == {"qnli": {"validation": (lines,)}}
    trained = find_records([str(tmp_path), f"qnli:train={lines}"], qnli)
    assert trained == {"qnli": {"train": (lines,), "validation": (lines,)}}
    for place, message in [
        (str(tmp_path / "nowhere"), "nowhere does not exist; --records takes folders"),
        (str(lines), "is a file: say of which task, as in TASK="),
        (f"qnly={lines}", "unknown task 'qnly'; did you mean qnli?"),
        (f"qnli:dev={lines}", "qnli has no split 'dev', only train, validation"),
    ]:
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            find_records([place], qnli)
    with pytest.raises(ValueError, match="qnli has the records .* for its split validation: name"):
        find_records([f"qnli={lines}", f"qnli={lines}"], qnli)
    write_lines(tmp_path / "qnli_valid.jsonl", [GOOD])
    with pytest.raises(ValueError, match="are both of qnli: say which"):
        find_records([str(tmp_path)], qnli)
    other = tmp_path / "other"
    other.mkdir()
    write_lines(other / "qnli_valid.jsonl", [GOOD])
    (tmp_path / "qnli_valid.jsonl").unlink()
    with pytest.raises(ValueError, match="other both have records of qnli, split validation: put"):
        find_records([str(tmp_path), str(other)], qnli)
    assert find_records([str(other), f"{other}/"], qnli)
    (tmp_path / "x.txt").write_text("a,b", encoding="utf-8")
    with pytest.raises(ValueError, match="x.txt must be one of"):
        find_records([f"qnli={tmp_path / 'x.txt'}"], qnli) and read("qnli", tmp_path / "x.txt")


def test_names_of_tasks():
    assert [task.name for task in chosen_tasks(["paper"])] == list(TASKS) and len(TASKS) == 16
    chosen = chosen_tasks(["qnli,implicit_relations", "qnli"])
    assert [task.stem for task in chosen] == ["qnli", "implicit_relations"]
    for name, hint in [
        ("arc_esay", "did you mean arc_easy?"),
        ("implicit_relation", "did you mean implicit_relations?"),
        ("xyzxyz", "there are paper, multirc, wic"),
    ]:
        with pytest.raises(ValueError, match=f"unknown task {name!r}; {re.escape(hint)}"):
            find_task(name)
    with pytest.raises(ValueError, match="name tasks: --tasks paper, some of multirc"):
        chosen_tasks([","])


def test_the_figures_of_the_paper_have_its_means():
    """The tables print averages too: a wrong figure would not give them."""
    means = {
        "1": (48.20, 49.93, 51.74),
        "4": (53.96, 56.77, 57.86),
        "5": (49.85, 50.73, 50.75),
        "6": (30.46, 31.00, 32.66),
    }
    for table, printed in means.items():
        figures = [task.paper for task in TASKS.values() if table in task.tables.split(", ")]
        for model, mean in zip(("LLaMA", "HC", "LIMe"), printed, strict=True):
            average = sum(each[model] for each in figures) / len(figures)
            assert average == pytest.approx(mean, abs=0.011), (table, model)
