"""One long table of a study's runs, which pandas, duckdb and polars read: Parquet or CSV.

A row is one value of one run: a metric that it is judged by (``step`` is missing), or a number of
one of its validations. A run without values (diverged, failed, begun) has one row without metric
and value, so that none is left out; ``state`` and ``note`` say why. A run that counts under several
conditions has its rows under each, and one that several records of a study have, has them once. A
missing number is null in Parquet and an empty field in CSV; no value is NaN or infinite.
"""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from layermem_base.files import write_atomically
from layermem_bench.results.study import RunRecord, StudyResult

SUFFIXES = (".parquet", ".csv")
_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("study", "board", "condition", "arm"), "string"),
    "seed": "int64",
    **dict.fromkeys(("run", "run_id", "state", "metric"), "string"),
    "step": "int64",
    "tokens": "double",
    "flops": "double",
    "value": "double",
    **dict.fromkeys(("note", "device", "versions"), "string"),
}
COLUMNS = tuple(_KINDS)
"""The columns of the table."""
# What two rows of one value have in common.
_IDENTITY = (
    *("study", "board", "condition", "arm", "seed", "run", "run_id", "state", "metric", "step"),
)
_OF_VALIDATION = ("val_loss", "val_accuracy", "val_steps")


def check(path: Path) -> None:
    """Raise unless a table can be written under this name."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(
            f"--export {path}: a table is a file that ends in {' or '.join(SUFFIXES)}, got "
            f"{path.suffix or 'no ending'}"
        )


def export(results: Sequence[StudyResult], path: Path) -> int:
    """Write the runs of some studies, whole or not at all; return the number of rows."""
    check(path)
    rows = _distinct(row for result in results for row in long_rows(result))
    path.parent.mkdir(parents=True, exist_ok=True)
    content = _as_csv(rows) if path.suffix.lower() == ".csv" else _as_parquet(rows)
    write_atomically(path, content)
    return len(rows)


def _distinct(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without those that several records of one study have alike.

    Raise ``ValueError`` where they have other values: as two values, a run would count twice.
    """
    seen: dict[tuple[Any, ...], dict[str, Any]] = {}
    arms: dict[tuple[Any, ...], str] = {}
    for row in rows:
        if row["run_id"]:
            place = (row["study"], row["condition"], row["run_id"])
            if (arm := arms.setdefault(place, row["arm"])) != row["arm"]:
                raise ValueError(
                    f"the records of {row['study']} have the run {row['run']} as an arm {arm} and "
                    f"as {row['arm']}, and it would count as two; export each record into a table "
                    "of its own"
                )
        key = tuple(row[name] for name in _IDENTITY)
        known = seen.setdefault(key, row)
        if known["value"] != row["value"]:
            what = f"the run {row['run']}" if row["run"] else f"{row['arm']}, seed {row['seed']},"
            raise ValueError(
                f"the records of {row['study']} have {what} with two values of {row['metric']}, "
                f"{known['value']} and {row['value']}: it was done twice, and would count as two "
                "runs; export each record into a table of its own"
            )
    return list(seen.values())


def long_rows(result: StudyResult) -> Iterator[dict[str, Any]]:
    """Yield the rows of a study, under each condition that a run counts under."""
    for run in result.runs:
        # One that chose a learning rate counts under none.
        for condition in run.conditions or (None,):
            common = _common(result, run, condition)
            empty = True
            for values in _values(run):
                empty = False
                yield {**common, **values}
            if empty:
                yield common
    # What was computed of several runs, or of none, has no run of its own.
    for row in result.rows:
        for seed, number in row.by_seed.items():
            computed = {"study": result.name, "arm": row.arm, "seed": seed, "state": "computed"}
            yield (
                dict.fromkeys(COLUMNS) | computed | {"metric": row.metric, "value": _finite(number)}
            )


def _common(result: StudyResult, run: RunRecord, condition: str | None) -> dict[str, Any]:
    about = dict(run.about)
    device = about.pop("machine", None) or about.pop("device", None)
    versions = "; ".join(f"{name}: {value}" for name, value in about.items())
    return dict.fromkeys(COLUMNS) | {
        "study": result.name,
        "board": run.board or None,
        "condition": condition,
        "arm": run.arm or None,
        "seed": run.seed,
        "run": run.name,
        "run_id": run.run_id,
        "state": run.state,
        "note": run.note or None,
        "device": device,
        "versions": versions or None,
    }


def _values(run: RunRecord) -> Iterator[dict[str, Any]]:
    for metric, value in run.metrics.items():
        yield {"metric": metric, "value": _finite(value)}
    for validation in run.validations:
        at = {
            "step": validation.step,
            "tokens": _finite(validation.tokens),
            "flops": _finite(validation.flops),
        }
        for metric in _OF_VALIDATION:
            number = _finite(getattr(validation, metric))
            if number is not None:
                yield {"metric": metric, "value": number, **at}
    if run.tokens_per_second is not None:
        yield {"metric": "tokens per second", "value": _finite(run.tokens_per_second)}


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _as_parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in _KINDS.items()])
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema), sink)
    return bytes(sink.getvalue().to_pybytes())
