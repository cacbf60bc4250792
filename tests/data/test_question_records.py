"""Questions with answers in a text: flat and nested files, and what is refused with its place."""

import gzip
import json

import pytest

from layermem_bench.data.question_records import Answer, QuestionFields, read_questions

ROW = {
    "id": "q1",
    "context": "Denver beat Carolina.",
    "question": " Who won? ",
    "answers": {"text": ["Denver"], "answer_start": [0]},
}
NONE = {"text": [], "answer_start": []}


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def nested(path, *questions, context=ROW["context"]):
    paragraph = {"context": context, "qas": list(questions)}
    content = {"version": "v2.0", "data": [{"title": "t", "paragraphs": [paragraph]}]}
    path.write_text(json.dumps(content))
    return path


def read(path, *, unanswerable=False, **names):
    return read_questions(path, QuestionFields(**names), unanswerable=unanswerable)


def test_a_flat_record_is_read(tmp_path):
    other = {**ROW, "id": 7, "answers": {"text": [" beat ", "beat"], "answer_start": [6, 7]}}
    path = lines(tmp_path / "a.jsonl", ROW, other)
    first, second = read(path)
    assert (first.id, first.question, first.gold) == ("q1", "Who won?", ["Denver"])
    assert second.id == "7" and second.answers == (Answer(text="beat", start=7),) * 2
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert [each.answers for each in read(packed)] == [first.answers, second.answers]


def test_fields_may_have_other_names(tmp_path):
    row = {"n": 1, "text": "a b", "q": "?", "spans": [{"text": "b", "answer_start": 2}]}
    names = {"context": "text", "question": "q", "answers": "spans", "id": "n"}
    (record,) = read(lines(tmp_path / "a.jsonl", row), **names)
    assert (record.id, record.context, record.gold) == ("1", "a b", ["b"])


def test_the_files_of_squad_are_read(tmp_path):
    asked = {"id": "1", "question": "Who?", "answers": [{"text": "Denver", "answer_start": 0}]}
    impossible = {
        "id": "2",
        "question": "When?",
        "is_impossible": True,
        "answers": [],
        "plausible_answers": [{"text": "Carolina", "answer_start": 12}],
    }
    possible = {**asked, "id": "3", "is_impossible": False}
    path = nested(tmp_path / "a.json", asked, impossible, possible)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    records = read(path, unanswerable=True)
    assert [each.gold for each in records] == [["Denver"], [], ["Denver"]]
    assert records[1].where.endswith("a.json, article 1, paragraph 1, question 2")
    with pytest.raises(ValueError, match="paragraph 1, question 2 has no answer"):
        read(path)
    with pytest.raises(ValueError, match="leave --fields"):
        read(path, answers="spans", unanswerable=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"answers": {"text": ["Carolina"], "answer_start": [11]}},
            r"line 2: answers: 'Carolina' does not stand at character 11 of .* \(it stands at 12\)",
        ),
        ({"answers": {"text": ["Rome"], "answer_start": [0]}}, "line 2: .* stands nowhere in it"),
        ({"answers": {"text": ["denver"], "answer_start": [0]}}, "line 2: .* 'Denver' is"),
        ({"answers": {"text": ["."], "answer_start": [-1]}}, "line 2: .*answer_start .* got -1"),
        ({"answers": {"text": ["."], "answer_start": ["20"]}}, "line 2: .*answer_start.* got '20'"),
        ({"answers": {"text": ["D"], "answer_start": [False]}}, "line 2: .*answer_start.* got Fal"),
        ({"answers": {"text": [" "], "answer_start": [6]}}, "line 2: .* must be a text, got ' '"),
        ({"answers": {"text": [""], "answer_start": [6]}}, "line 2: .* must be a text, got ''"),
        ({"answers": {"text": ["Denver"], "answer_start": []}}, "line 2: .* an answer_start for"),
        ({"answers": {"text": "Denver", "answer_start": 0}}, "line 2: .* an answer_start for each"),
        ({"answers": "Denver"}, "line 2: .* an answer_start for each"),
        ({"answers": NONE}, "line 2 has no answer"),
        ({"answers": NONE, "is_impossible": False}, "line 2: is_impossible is False"),
        ({"is_impossible": True}, "line 2: is_impossible is True"),
        ({"id": "q1"}, r"line 2: id 'q1' is that of .*line 1 too"),
        ({"id": None}, "line 2: id must be a text or a number, got None"),
        ({"context": " "}, "line 2: context must be a text, got ' '"),
        ({"question": 4}, "line 2: question must be a text, got 4"),
        ({"question": None, "q": "?"}, "line 2: question must be a text, got None"),
    ],
    ids=str,
)
def test_a_damaged_record_is_refused_with_its_line(changes, message, tmp_path):
    path = lines(tmp_path / "a.jsonl", ROW, {**ROW, "id": "q2", **changes})
    with pytest.raises(ValueError, match=message):
        read(path)


@pytest.mark.parametrize("name", ["id", "context", "question", "answers"])
def test_a_missing_field_is_refused_with_its_line(name, tmp_path):
    row = {key: value for key, value in ROW.items() if key != name}
    with pytest.raises(ValueError, match=f"line 1 has no field '{name}' .*--id-field"):
        read(lines(tmp_path / "a.jsonl", row))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", "[1]\n", "line 1 must hold an object"),
        ("a.jsonl", "\n", "there are no questions in"),
        ("a.jsonl", "{\n", "line 1 is not JSON"),
        ("a.json", '{"data": [{"id": "1"}]}', "article 1 has no list 'paragraphs'.*as .jsonl"),
        ("a.json", "[]", "has no list 'data'"),
        ("a.json", '{"a": 1}\n{"a": 1}\n', "is not JSON .* JSON lines end in .jsonl"),
        ("a.json", '{"data": [{"paragraphs": [{"qas": [1]}]}]}', "question 1 must hold an object"),
        (
            "a.json",
            '{"data": [{"paragraphs": [{"qas": [{"id": 1, "question": "?", "answers": []}]}]}]}',
            "question 1: context must be a text, got None",
        ),
        ("a.txt", "", "a.txt must be one of"),
        ("b.jsonl", None, "b.jsonl"),
        ("b.json", None, "b.json"),
    ],
)
def test_what_is_no_file_of_questions_is_refused(name, text, message, tmp_path):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read(tmp_path / name)
