"""Labelled records: which fields are read, which side they are on, and what is refused."""

import gzip
import random

import pytest

from layermem_bench.data.labelled_records import (
    LabelledRecord,
    check_labels,
    find_classes,
    read_records,
    split_records,
)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def record(text, label="0"):
    return LabelledRecord(texts=(text, "b"), label=label, where="x, line 1")


@pytest.mark.parametrize(
    ("name", "text", "fields", "texts", "label"),
    [
        (
            "a.tsv",
            'index\tquestion\tsentence\tlabel\n0\t"Who"\tHe.\tyes\n',
            (),
            ('"Who"', "He."),
            "yes",
        ),
        ("a.csv", 'sentence,label\n"one, ""two""\nthree",1\n', (), ('one, "two"\nthree',), "1"),
        ("a.csv", "\ufefftext,label\nx,1\n", (), ("x",), "1"),
        # Without the first column, "question", the others would be read alone.
        ("a.tsv", "\ufeffquestion\tsentence\tlabel\nq\ts\t1\n", (), ("q", "s"), "1"),
        ("a.jsonl", '\ufeff{"text": "x", "label": 1}\n', (), ("x",), "1"),
        ("a.jsonl", '{"premise": "p", "hypothesis": "h", "label": 2}\n', (), ("p", "h"), "2"),
        ("a.jsonl", '{"a": "p", "b": "h", "label": "c"}\n', ("b", "a"), ("h", "p"), "c"),
        ("a.tsv", "sentence1\tsentence2\tlabel\nx\ty\t0\n\n", (), ("x", "y"), "0"),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value[:6] else "",
)
def test_a_record_is_read(name, text, fields, texts, label, tmp_path):
    (read,), names = read_records(write(tmp_path / name, text), fields)
    assert (read.texts, read.label, names.label) == (texts, label, "label")
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert read_records(packed, fields)[0][0].texts == texts


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "sentence\tlabel\na\t0\nb\n", "line 3 has 1 columns, and the header has 2"),
        ("a.tsv", "sentence\tlabel\na\t0\n \t1\n", "line 3: sentence must be a text, got ' '"),
        ("a.tsv", "sentence\tlabel\na\t0\nb\t-1\n", "line 3: label is '-1'"),
        ("a.tsv", "sentence\tlabel\na\t3.8\n", "line 2: label is 3.8"),
        ("a.jsonl", '{"text": "a", "label": 0.5}\n', "line 1: label must be a class, .* got 0.5"),
        ("a.jsonl", '{"text": "a", "label": null}\n', "line 1: label must be a class, .* got None"),
        ("a.jsonl", '{"text": "a", "label": 0}\n{"text": "b"}\n', "line 2 has no field 'label'"),
        ("a.jsonl", '{"text": "a", "label": 0}\n[1]\n', "line 2 must hold an object"),
        ("a.tsv", "gj04\t1\t\tOur friends.\n", "there are no records"),
        ("a.tsv", "a\tb\n1\t2\n", r"line 2 has no field 'label' \(it has a, b\).*--label"),
        ("a.tsv", "a\tlabel\n1\t2\n", "does not say which of a, label hold the texts"),
        ("a.tsv", "question\ttext\tlabel\n1\t2\t0\n", "which of question, text, label hold"),
        (
            "a.tsv",
            "text\tpremise\thypothesis\tlabel\n1\t2\t3\t0\n",
            "name one or two with --fields",
        ),
        ("a.csv", 'text,label\n"a"b,0\n', "line 2 is no row of a .csv"),
        ("a.jsonl", '{"text": "\\ud800", "label": 0}\n', "line 1: .* half a surrogate pair"),
        ("a.txt", "a", "a.txt must be one of .jsonl, .ndjson, .json, .tsv, .csv, .parquet"),
        ("b.tsv", None, "b.tsv"),
    ],
)
def test_what_is_no_record_is_refused_with_its_line(name, text, message, tmp_path):
    path = tmp_path / name
    if text is not None:
        write(path, text)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_records(path)


def test_a_field_that_is_named_must_be_there(tmp_path):
    path = write(tmp_path / "a.tsv", "sentence\tlabel\na\t0\n")
    with pytest.raises(ValueError, match="line 2 has no field 'other'"):
        read_records(path, ("other",))


def test_a_side_depends_on_the_texts_alone():
    records = [record(f"t{i % 300}", str(i % 2)) for i in range(400)]
    train, validation = split_records(records, None, 0.2)[:2]
    shuffled = random.Random(0).sample(records, 200)
    again, held_out = split_records(shuffled, None, 0.2)[:2]
    texts = {each.texts for each in train}
    assert 50 < len(validation) < 110 and not texts & {each.texts for each in validation}
    assert {each.texts for each in again} <= texts
    assert {each.texts for each in held_out} <= {each.texts for each in validation}
    with pytest.raises(ValueError, match="none are left for validation with .*share=0.001"):
        split_records(records[:3], None, 0.001)


def test_copies_that_differ_in_white_space_are_on_one_side():
    texts = [f"text {i}" for i in range(100)]
    records = [record(text) for t in texts for text in (t, f" {t}\n", t.replace(" ", "  "))]
    sides = split_records(records, None, 0.3)[:2]
    assert all(len(side) % 3 == 0 for side in sides)
    # A text that is normal already is where it was.
    assert record(texts[0]).split_key == f"{texts[0]}\x1fb"
    assert split_records(records, [record(texts[7])], 0.1)[2] == 3


def test_records_of_the_validation_file_are_left_out_of_training():
    records = [record("a", "0"), record("b"), record("a", "1")]
    kept, held_out, left_out = split_records(records, [record("a")], 0.1)
    assert (held_out, left_out) == ([record("a")], 2)
    assert [each.texts[0] for each in kept] == ["b"]
    with pytest.raises(ValueError, match="all 1 training records are in the validation file too"):
        split_records([record("a")], [record("a")], 0.1)


def test_classes_are_the_labels_of_training():
    assert find_classes([record("a", label) for label in ("10", "9", "9", "10")]) == ["9", "10"]
    classes = find_classes([record("a", label) for label in "abba"])
    assert classes == ["a", "b"]
    with pytest.raises(ValueError, match="x, line 1: the label 'c' is none of the classes .* a, b"):
        check_labels([record("a", "c")], classes)
    with pytest.raises(ValueError, match="all 2 training records have the label '0'"):
        find_classes([record("a"), record("b")])
    with pytest.raises(ValueError, match="3 training records have 3 labels, such as '0'"):
        find_classes([record("a", str(i)) for i in range(3)])
