"""The long table of a study: nothing is lost, and its own tables follow from it."""

from dataclasses import replace
from pathlib import Path

import pandas
import pytest
from recorded import record

from layermem_bench import cli
from layermem_bench.report import study as report
from layermem_bench.report.export import COLUMNS, export
from layermem_bench.results.files import read_result
from layermem_bench.results.study import StudyResult, Validation

RECORD = Path(__file__).parents[2] / "docs" / "records" / "tiny-aet-6.json"


def read_back(result, table):
    """Return the study with the numbers of the table in place of its own."""
    runs = []
    for run in result.runs:
        rows = table[table["run"] == run.name].drop_duplicates(["metric", "step"])
        at_end = rows[rows["step"].isna() & rows["metric"].notna()]
        values = dict(zip(at_end["metric"], at_end["value"], strict=True))
        speed = values.pop("tokens per second", None)
        validations = [
            Validation(
                step=int(step),
                tokens=of_step["tokens"].iloc[0],
                flops=of_step["flops"].iloc[0],
                **dict(zip(of_step["metric"], of_step["value"], strict=True)),
            )
            for step, of_step in rows.groupby("step")
        ]
        runs.append(
            replace(run, metrics=values, validations=tuple(validations), tokens_per_second=speed)
        )
    return replace(result, runs=tuple(runs))


@pytest.mark.parametrize(
    ("suffix", "read"), [(".parquet", pandas.read_parquet), (".csv", pandas.read_csv)]
)
def test_the_tables_of_a_study_follow_from_its_export(suffix, read, tmp_path):
    result, path = read_result(StudyResult, RECORD), tmp_path / f"long{suffix}"
    cli.main(["report", str(RECORD), "--export", str(path)])
    table = read(path)
    assert tuple(table.columns) == COLUMNS
    assert table["value"].dtype == "float64" and set(table["study"]) == {result.name}
    again = read_back(result, table)
    for ours, theirs in zip(again.runs, result.runs, strict=True):
        assert ours.metrics == theirs.metrics
        assert ours.validations == theirs.validations
    shown, expected = ([t.texts() for t in report.tables(each)] for each in (again, result))
    assert shown == expected and shown
    # And nothing of the record stands in for the numbers that were taken out.
    emptied = read_back(result, table[table["metric"] != "right answers"])
    assert [t.texts() for t in report.tables(emptied)] != expected


def test_a_run_of_several_records_is_there_once_or_refused(tmp_path):
    result = read_result(StudyResult, RECORD)
    path, alone = tmp_path / "long.csv", tmp_path / "alone.csv"
    assert export([result, result], path) == export([result], alone)
    assert path.read_text() == alone.read_text()
    run, *others = result.runs
    (metric, value), *_ = run.metrics.items()
    again = replace(run, metrics={**run.metrics, metric: value + 1e-3})
    with pytest.raises(ValueError, match=f"the run {run.name} with two values of {metric}"):
        export([result, replace(result, runs=(again, *others))], path)
    # On another page its arm has another name, for what it is compared with.
    named = [replace(each, arm=f"{each.arm}:lr=0.01") for each in result.runs]
    with pytest.raises(ValueError, match=r"as an arm (\S+) and as \1:lr=0.01, and .* count as two"):
        export([result, replace(result, runs=tuple(named))], path)


def test_a_run_without_values_has_a_row_that_says_so(tmp_path):
    runs = tmp_path / "runs"
    record(runs / "plain", variant="plain", seed=0)
    record(runs / "lime", variant="lime", seed=0, diverged=3, ended=False)
    path = tmp_path / "long.parquet"
    cli.main(["report", str(runs), "--export", str(path)])
    table = pandas.read_parquet(path)
    lost = table[table["state"] == "diverged"]
    at_end = lost[lost["step"].isna()]
    assert len(lost) and set(lost["arm"]) == {"lime"}
    assert lost["note"].notna().all() and not (at_end["metric"] == "validation loss").any()
    ended = table[(table["state"] == "ended") & (table["metric"] == "validation loss")]
    assert list(ended["arm"]) == ["plain"] and ended["value"].notna().all()
    # Nothing but the table was written.
    assert {each.name for each in tmp_path.iterdir()} == {"runs", "long.parquet"}


def test_numbers_that_are_not_finite_are_missing(tmp_path):
    result = read_result(StudyResult, RECORD)
    run = replace(result.runs[0], metrics={"a": float("nan"), "b": float("inf"), "c": 0.0})
    path = tmp_path / "long.csv"
    export([replace(result, runs=(run,))], path)
    table = pandas.read_csv(path)
    of_end = table[table["metric"].isin(["a", "b", "c"])].set_index("metric")["value"]
    assert of_end.isna().to_dict() == {"a": True, "b": True, "c": False}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--export", "long.xlsx"], "long.xlsx: a table is a file that ends in .parquet or .csv"),
        (["--export", "long"], "got no ending"),
        (["--export", "a.csv", "--figure", "a.svg"], "leave one out"),
    ],
)
def test_what_is_no_table_is_refused(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        cli.main(["report", str(RECORD), *options])
    said = " ".join(f"{left.value}{''.join(capsys.readouterr())}".replace("│", " ").split())
    assert message in said
    assert not list(tmp_path.iterdir())
