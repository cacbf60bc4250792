"""The prompts and targets of the tasks' definitions, against lm-eval's own, to the letter."""

import logging
from pathlib import Path

import pytest
from eval_fixtures import docs

from layermem_bench.evals.prepared_tasks import local_definition, write_docs
from layermem_bench.evals.task_catalog import DEFINITIONS, TASKS
from layermem_bench.evals.task_records import find_records, read_docs

lm_eval = pytest.importorskip("lm_eval")
datasets = pytest.importorskip("datasets")

REAL = Path(__file__).parents[3] / "shared" / "data" / "evals"
OWN_FOLDERS = ("arc", "hellaswag", "openbookqa", "super_glue", "glue", "bigbench/multiple_choice")
SHOTS = 3


@pytest.fixture(autouse=True)
def quiet(tmp_path, monkeypatch):
    monkeypatch.setattr(logging.getLogger("lm_eval"), "level", logging.ERROR)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture(scope="module")
def own_tasks():
    """lm-eval's own definitions of these tasks."""
    from lm_eval.tasks import TaskManager

    root = Path(lm_eval.__file__).parent / "tasks"
    folders = [root / folder for folder in OWN_FOLDERS]
    return TaskManager(include_defaults=False, include_path=folders)


def own(manager, task, of_splits, monkeypatch):
    """Return lm-eval's own task on given items."""
    name = task.name.replace("_three_objects", "").replace("_five_objects", "")
    # The hub's data sets have a validation set beside; nothing is read of it here.
    splits = {"validation": next(iter(of_splits.values())), **of_splits}
    tables = {split: datasets.Dataset.from_list(items) for split, items in splits.items()}
    with monkeypatch.context() as patch:
        patch.setattr(datasets, "load_dataset", lambda **_: datasets.DatasetDict(tables))
        return manager.load([name])["tasks"][name]


def ours(task, of_splits, folder):
    from layermem_bench.evals.harness import load_task

    return load_task(local_definition(task, write_docs(of_splits, task, folder)))


def contexts(task, seed):
    """Return the whole prompt of every item."""
    task.set_fewshot_seed(seed)
    return [task.fewshot_context(doc, SHOTS) for doc in task.eval_docs]


def assert_same(mine, theirs):
    """Compare prompts, targets, choices and contexts of all items."""
    pairs = list(zip(mine.eval_docs, theirs.eval_docs, strict=True))
    for doc, other in pairs:
        assert mine.doc_to_text(doc) == theirs.doc_to_text(other)
        assert mine.doc_to_target(doc) in _forms(theirs, other)
        assert mine.doc_to_choice(doc) == theirs.doc_to_choice(other)
    for name in ("target_delimiter", "fewshot_delimiter", "output_type", "description"):
        assert mine.config[name] == theirs.config[name]
    assert mine.VERSION == theirs.VERSION
    metrics = [[each["metric"] for each in task.config.metric_list] for task in (mine, theirs)]
    assert metrics[0] == metrics[1]
    for seed in (0, 1):
        assert contexts(mine, seed) == contexts(theirs, seed)


def _forms(task, doc):
    target = task.doc_to_target(doc)
    # A field that is a number as text is that number.
    return [target, int(target)] if isinstance(target, str) and target.isdigit() else [target]


# The other definitions of BIG-bench differ from this one by their names alone.
OF_BIGBENCH = "bigbench_logical_deduction_three_objects_multiple_choice"
DIFFERENT = [name for name in TASKS if not name.startswith("bigbench") or name == OF_BIGBENCH]


def test_definitions_of_bigbench_differ_by_their_names_alone():
    def without_names(task):
        definition = task.definition()
        name = task.name.removeprefix("bigbench_").removesuffix("_multiple_choice")
        assert definition.pop("task") == task.name
        # The hub has none of logical deduction.
        data = [definition.pop(field, None) for field in ("dataset_path", "dataset_name")]
        has_data = "deduction" not in name
        assert data == (["hails/bigbench", f"{name}_zero_shot"] if has_data else [None, None])
        return definition

    of_bigbench = [task for name, task in TASKS.items() if name.startswith("bigbench")]
    first, *others = map(without_names, of_bigbench)
    assert len(of_bigbench) == 7 and all(other == first for other in others)


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFERENT)
def test_items_of_ours_get_the_prompts_of_lm_eval(name, own_tasks, tmp_path, monkeypatch):
    task, of_splits = TASKS[name], docs(name, count=8)
    theirs = own(own_tasks, task, of_splits, monkeypatch)
    if task.split == "default":
        # Its own definition names no split of examples, and can show an item as its own example.
        theirs.fewshot_cfg.split = "default"
    mine = ours(task, of_splits, tmp_path)
    assert_same(mine, theirs)
    assert len(set(contexts(mine, 0)) - set(contexts(mine, 1))) > 4


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="the records are not on this machine")
@pytest.mark.parametrize("name", [name for name in DIFFERENT if name not in ("multirc", "wic")])
def test_real_records_get_the_prompts_of_lm_eval(name, own_tasks, tmp_path, monkeypatch):
    task = TASKS[name]
    files = find_records([str(REAL)], [task])[name]
    of_splits = {split: read_docs(task, paths)[:40] for split, paths in files.items()}
    theirs = own(own_tasks, task, {"train": of_splits[task.split], **of_splits}, monkeypatch)
    if "train" not in of_splits:
        theirs.fewshot_cfg.split = theirs.config.test_split = task.split
        theirs.sampler.replace_df(list(theirs.eval_docs))
    assert_same(ours(task, of_splits, tmp_path), theirs)


@pytest.mark.parametrize(
    "name", ["arc_easy", "copa", "bigbench_implicit_relations_multiple_choice"]
)
def test_an_item_is_never_its_own_example(name, tmp_path):
    """Without records to draw from, examples are the other items, all of them at some seed."""
    task = TASKS[name]
    items = docs(name, count=SHOTS + 1)[task.split]
    mine = ours(task, {task.split: items}, tmp_path)
    for doc, context in zip(mine.eval_docs, contexts(mine, 0), strict=True):
        prompts = [mine.doc_to_text(each) for each in mine.eval_docs]
        # With one item more than examples, every other item is one.
        assert all(context.count(prompt) == 1 for prompt in prompts)
        assert context.endswith(mine.doc_to_text(doc))


def test_definitions_hold_no_code():
    files = sorted(DEFINITIONS.glob("*.yaml"))
    assert [file.stem for file in files] == sorted(TASKS)
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert text.startswith("# ")
        assert ("fewshot_split: default" in text) == ("test_split: default" in text)
        assert "!function" not in text and "trust_remote_code" not in text
