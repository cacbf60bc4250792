"""Files of a task's splits: held-out problems are left out, and one file is not three splits."""

import json
from dataclasses import asdict

import pytest

from layermem_bench.config.run import Task
from layermem_bench.tasks import prosqa
from layermem_bench.tasks.registry import get_task
from layermem_bench.train.learning.text import build_problem_datasets

RECORDS = prosqa.generate(12, 0)


def write(path, records):
    path.write_text(json.dumps([asdict(record) for record in records]))
    return str(path)


def load_problems(split, **files):
    return prosqa.generate(split=split, count=100, seed=0, **files)


@pytest.mark.parametrize(
    "splits",
    [("train", "validation", "test"), ("train", "test"), ("validation", "test")],
    ids=" ".join,
)
def test_one_file_for_several_splits_is_refused(tmp_path, splits):
    path = write(tmp_path / "a.json", RECORDS)
    turned = write(tmp_path / "b.json", RECORDS[::-1])
    for last in (path, turned):
        files = dict.fromkeys(splits, path) | {splits[-1]: last}
        for split in splits:
            with pytest.raises(ValueError, match="give each split problems of its"):
                load_problems(split, **files)


def test_what_is_held_out_is_left_out_of_what_comes_before_it(tmp_path, caplog):
    files = {
        "train": write(tmp_path / "train.json", RECORDS),
        "validation": write(tmp_path / "validation.json", RECORDS[4:8]),
        "test": write(tmp_path / "test.json", RECORDS[7:10]),
    }
    assert load_problems("test", **files) == RECORDS[7:10] and not caplog.messages
    assert load_problems("validation", **files) == RECORDS[4:7]
    assert load_problems("train", **files) == [*RECORDS[:4], *RECORDS[10:]]
    counts = [message.partition(" problems")[0] for message in caplog.messages]
    assert counts == ["1 of 4", "4 of 12", "2 of 8"]


def test_what_is_apart_stays_whole(tmp_path, caplog):
    files = {
        "train": write(tmp_path / "a.json", RECORDS[:6]),
        "test": write(tmp_path / "b.json", RECORDS[6:]),
    }
    assert load_problems("train", **files) == RECORDS[:6]
    assert load_problems("test", **files) == RECORDS[6:]
    assert len(load_problems("validation", **files)) == 100 and not caplog.messages


def test_a_run_on_one_file_for_everything_is_refused(tmp_path):
    path = write(tmp_path / "a.json", RECORDS)
    options = tuple(f"{split}={path}" for split in ("train", "validation", "test"))
    task = Task(name="prosqa", options=options)
    with pytest.raises(ValueError, match="give each split problems of its own"):
        build_problem_datasets(task, get_task("prosqa").tokenizer())
