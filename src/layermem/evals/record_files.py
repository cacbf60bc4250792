"""Files of records for evaluation tasks: which file is of which task and split, and their items.

    --records FOLDER ...            names say it: arc_easy_test.jsonl, wnli_train.tsv,
                                    bigbench/key_value_maps__extends.json (a part of a task)
    --records TASK=FILE             the split that is evaluated
    --records TASK:train=FILE       what few-shot examples are drawn from

BIG-bench's own JSON is read, and all kinds of ``data.records``.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from layermem.data.records import KINDS, Record, file_records, kind_of, open_decompressed
from layermem.evals.task_catalog import EvalTask, find_task
from layermem.evals.task_records import SCHEMAS, Doc, read_examples

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
    docs = [read(record) for path in paths for record in _records(path)]
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
        files = [
            path for path in sorted(folder.iterdir()) if path.is_file() and kind_of(path) in KINDS
        ]
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


def _records(path: Path) -> Iterator[Record]:
    whole = kind_of(path) == ".json" and _is_bigbench(path)
    return read_examples(path) if whole else file_records(path)


def _is_bigbench(path: Path) -> bool:
    """Return whether a file holds one JSON value over all its lines, and not one in each."""
    with open_decompressed(path) as file:
        try:
            first = json.loads(file.readline())
        except ValueError:
            return True
    return isinstance(first, dict) and "examples" in first


def _stem(path: Path) -> str:
    return path.name.partition(".")[0]
