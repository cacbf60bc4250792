"""Records are the same from every kind of file, and an error names the place of each."""

import gzip
import json

import pyarrow
import pytest
from pyarrow import parquet

from layermem_bench.data.records import KINDS, file_records

ROWS = [
    {"question": 'Who is "he"?', "sentence": "2020-01-01", "label": "01"},
    {"question": "NA", "sentence": "∞, he said", "label": "1"},
]


def write(path, rows=ROWS):
    """Write rows of texts, with an empty line before the last where the kind has lines."""
    names, kind = list(rows[0]), path.suffixes[0]
    if kind == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return path
    if kind == ".csv":
        quoted = [[f'"{text.replace(chr(34), chr(34) * 2)}"' for text in r.values()] for r in rows]
        lines = [",".join(names), *map(",".join, quoted)]
    elif kind == ".tsv":
        lines = ["\t".join(names), *("\t".join(row.values()) for row in rows)]
    else:
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    content = "".join(f"{line}\r\n" for line in [*lines[:-1], "", lines[-1]]).encode("utf-8-sig")
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("kind", [*KINDS, ".jsonl.gz", ".csv.gz"])
def test_every_kind_holds_the_same_texts(tmp_path, kind):
    records = list(file_records(write(tmp_path / f"a{kind}")))
    assert [dict(record.fields) for record in records] == ROWS
    places = ["line 1", "line 3"]
    if kind == ".parquet":
        places = ["row 0", "row 1"]
    elif kind[:4] in (".csv", ".tsv"):
        places = ["line 2", "line 4"]
    assert [record.where.rpartition(", ")[2] for record in records] == places


def test_a_field_of_parquet_alone(tmp_path):
    path = write(tmp_path / "a.parquet")
    assert [r.fields for r in file_records(path, only="label")] == [{"label": "01"}, {"label": "1"}]
    with pytest.raises(ValueError, match=r"row 0 has no field 'text' \(it has question, sentence"):
        next(file_records(path, only="text")).text("text")


def test_a_row_of_several_lines_is_named_by_its_first(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('text,label\n"one\n\ntwo",1\nthree\n', encoding="utf-8")
    records = file_records(path)
    first = next(records)
    assert (first.text("text"), first.where) == ("one\n\ntwo", f"{path}, line 2")
    with pytest.raises(ValueError, match="line 5 has 1 columns, and the header has 2"):
        next(records)


@pytest.mark.parametrize("comma", [",", "\t"])
def test_a_column_that_is_named_twice_is_refused(comma, tmp_path):
    path = tmp_path / ("a.csv" if comma == "," else "a.tsv")
    path.write_text(comma.join(["text", "label", "text"]) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 1 names the column text more than once"):
        next(file_records(path))
    # Spreadsheets end rows in commas.
    rows = [["text", "label", "", ""], ["a", "0", "", ""]]
    path.write_text("\n".join(comma.join(row) for row in rows), encoding="utf-8")
    assert next(file_records(path)).text("text") == "a"


@pytest.mark.parametrize("kind", [".jsonl", ".csv", ".tsv"])
def test_bytes_that_are_no_text_are_named_by_their_line(tmp_path, kind):
    path = write(tmp_path / f"a{kind}")
    path.write_bytes(path.read_bytes() + b"ab\xff\n")
    with pytest.raises(ValueError, match=r"line \d is not UTF-8 at byte 2"):
        list(file_records(path))


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("joined.jsonl", '\ufeff{"text": "a"}\n\ufeff{"text": "\ufeffb"}\n', ["a", "\ufeffb"]),
        ("joined.tsv", "\ufefftext\n\ufeffa\n", ["\ufeffa"]),
        ("old.csv", 'text\r"a\rb"\rc\r', ["a\rb", "c"]),
        ("lines.tsv", "text\na\rb\u2028c\x85\r\n", ["a\rb\u2028c\x85"]),
    ],
)
def test_only_what_is_no_text_is_left_out(tmp_path, name, content, texts):
    (tmp_path / name).write_bytes(content.encode())
    assert [record.text("text") for record in file_records(tmp_path / name)] == texts
