"""The runs of studies as one long table, which pandas, duckdb and polars read.

A row is one value of one run under one condition: of a metric that it is judged by, or of one of
its validations (with the step). A run without values has one row, whose state says why.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from layermem_bench.studies.result import RunRecord, StudyResult

COLUMNS = (
    *("study", "board", "condition", "arm", "seed", "run", "run_id", "state", "metric", "step"),
    *("tokens", "flops", "value"),
)
"""The columns of the table."""
_OF_VALIDATION = ("val_loss", "val_accuracy", "val_steps")


def long_rows(results: Iterable[StudyResult]) -> Iterator[dict[str, Any]]:
    """Yield the rows of some studies; a run that chose a learning rate is under no condition."""
    for result in results:
        for run in result.runs:
            for condition in run.conditions or (None,):
                labels = {"study": result.name, "condition": condition}
                for name in ("board", "arm", "seed", "run_id", "state"):
                    labels[name] = getattr(run, name)
                labels["run"] = run.name
                for values in list(_values(run)) or [{}]:
                    yield dict.fromkeys(COLUMNS) | labels | values


def _values(run: RunRecord) -> Iterator[dict[str, Any]]:
    for metric, value in run.metrics.items():
        yield {"metric": metric, "value": value}
    for each in run.validations:
        at = {"step": each.step, "tokens": each.tokens, "flops": each.flops}
        for metric in _OF_VALIDATION:
            if (value := getattr(each, metric)) is not None:
                yield {"metric": metric, "value": value, **at}


def write_table(results: Iterable[StudyResult], path: Path) -> int:
    """Write the rows of some studies as .csv or .parquet; return their number."""
    import pyarrow
    from pyarrow import csv, parquet

    table = pyarrow.Table.from_pylist(list(long_rows(results)))
    (csv.write_csv if path.suffix == ".csv" else parquet.write_table)(table, str(path))
    return int(table.num_rows)
