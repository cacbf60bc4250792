"""Files of records for evaluation tasks: which file is of which task and split, and their items.

    --records FOLDER ...            names say it: arc_easy_test.jsonl, wnli_train.tsv,
                                    bigbench/key_value_maps__extends.json (a part of a task)
    --records TASK=FILE             the split that is evaluated
    --records TASK:train=FILE       what few-shot examples are drawn from

JSON lines, tables with a header (.tsv) and BIG-bench's JSON are read, plain or compressed.

It does not know: prompts, lm-eval, models.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from layermem.data import compression
from layermem.data.local_files import json_records
from layermem.data.tables import tab_separated_rows
from layermem.evals.bigbench_records import read_examples
from layermem.evals.task_catalog import EvalTask, find_task
from layermem.evals.task_records import SCHEMAS, Doc

_KINDS = (".jsonl", ".ndjson", ".json", ".tsv")

Files = Mapping[str, tuple[Path, ...]]
"""Of a task: split to its files."""


def find_records(places: Sequence[str], tasks: Sequence[EvalTask]) -> dict[str, Files]:
    """Return the name of each of the tasks that has files, and these by split."""
    folders, given = _read_places(places)
    found: dict[str, Files] = {}
    for task in tasks:
        if task.file is not None:
            continue
        files = {
            split: given.get((task.name, split)) or _in_folders(folders, task, split)
            for split in task.splits
        }
        if files[task.split]:
            found[task.name] = {split: paths for split, paths in files.items() if paths}
    return found


def expected_file(task: EvalTask) -> str:
    """Return the name of a file that would hold a task's records."""
    end = ".json" if task.split == "default" else ".jsonl"
    return f"{task.stems(task.split)[0]}{end}"


def read_docs(task: EvalTask, paths: Sequence[Path]) -> list[Doc]:
    """Return the records of files in the fields that the task's definition reads."""
    read = SCHEMAS[task.schema]
    docs = []
    for path in paths:
        for record, where in _records(path):
            if not isinstance(record, Mapping):
                raise ValueError(f"{where} must hold an object, got {record!r:.60}")
            docs.append(read(record, where))
    if not docs:
        raise ValueError(f"there are no records in {', '.join(map(str, paths))}")
    return docs


def _read_places(
    places: Sequence[str],
) -> tuple[list[Path], dict[tuple[str, str], tuple[Path, ...]]]:
    folders: list[Path] = []
    given: dict[tuple[str, str], tuple[Path, ...]] = {}
    for place in places:
        name, equals, file = place.partition("=")
        path = Path(file if equals else place).expanduser()
        if not path.exists():
            raise FileNotFoundError(
                f"{path} does not exist; --records takes folders, and files as TASK=FILE"
            )
        if not equals:
            if not path.is_dir():
                raise ValueError(f"{path} is a file: say of which task, as in TASK={path}")
            folders.append(path)
            continue
        task_name, colon, split = name.partition(":")
        task = find_task(task_name)
        split = split if colon else task.split
        if split not in task.splits:
            raise ValueError(f"{task.name} has no split {split!r}, only {', '.join(task.splits)}")
        given[task.name, split] = (path,)
    return folders, given


def _in_folders(folders: Sequence[Path], task: EvalTask, split: str) -> tuple[Path, ...]:
    for folder in (inner for outer in folders for inner in (outer, outer / "bigbench")):
        if not folder.is_dir():
            continue
        files = [path for path in sorted(folder.iterdir()) if path.is_file() and _kind(path)]
        stems = task.stems(split)
        whole = [path for path in files if _stem(path) in stems]
        if len(whole) > 1:
            raise ValueError(
                f"{' and '.join(map(str, whole))} are both of {task.name}: say which, as in "
                f"--records {task.name}={whole[0]}"
            )
        parts = [path for path in files if _stem(path).startswith(f"{task.stem}__")]
        if whole or (split == "default" and parts):
            return tuple(whole or parts)
    return ()


def _records(path: Path) -> Iterator[tuple[Any, str]]:
    kind = _kind(path)
    if kind == ".tsv":
        yield from tab_separated_rows(path)
    elif kind == ".json" and _is_bigbench(path):
        yield from read_examples(path)
    elif kind:
        yield from json_records(path)
    else:
        raise ValueError(f"{path} is of no kind that is read: {', '.join(_KINDS)}")


def _is_bigbench(path: Path) -> bool:
    """Return whether a file holds one JSON value over all its lines, and not one in each."""
    with compression.open_decompressed(path) as file:
        try:
            first = json.loads(file.readline())
        except ValueError:
            return True
    return isinstance(first, dict) and "examples" in first


def _kind(path: Path) -> str:
    """Return the suffix without a compression's, or nothing if such files are not read."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in compression.SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in _KINDS else ""


def _stem(path: Path) -> str:
    return path.name.partition(".")[0]
