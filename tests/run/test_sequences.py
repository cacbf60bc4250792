"""Sequences as the loop gets them: what stands for them, and their order."""

import yaml
from small_run import a_run

from layermem_bench.config.run import Task
from layermem_bench.run.sequences import build_problem_datasets, digest, order_of
from layermem_bench.run.training import train
from layermem_bench.tasks import registry


def about(folder):
    return yaml.safe_load(folder.config.read_text())["about"]


def test_a_run_records_what_it_learnt_and_not_only_where_it_lay(tmp_path):
    run = a_run(tmp_path, max_steps=1, eval_every=1, save_every=0)
    first, again = (about(train(run, tmp_path / name)) for name in ("first", "again"))
    words = tmp_path / "words.jsonl"
    words.write_text(words.read_text().replace("w3", "w4"))
    changed = about(train(run, tmp_path / "changed"))
    assert first["run_id"] == again["run_id"] == changed["run_id"]
    assert first["data"] == again["data"] != changed["data"]
    assert first["precision"] == "float32"


def test_problems_have_digests_of_their_own():
    def digest_of(**changes):
        task = Task(name="arithmetic", examples=20, validation=5, **changes)
        options = ("operands=2", "held_out=strict")
        task = Task(**{**task.__dict__, "options": options})
        tokenizer = registry.get_task("arithmetic").tokenizer(**task.fields())
        return digest([each.identity() for each in build_problem_datasets(task, tokenizer)])

    assert digest_of() == digest_of() != digest_of(seed=1)
    assert digest(["1+1", "2+2"]) != digest(["2+2", "1+1"])


def test_every_epoch_is_a_permutation_of_its_own():
    order = list(order_of(7, 21, seed=0))
    epochs = [order[i : i + 7] for i in (0, 7, 14)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3


def test_the_length_is_kept_and_the_seed_decides():
    assert len(list(order_of(7, 10, 0))) == 10
    assert list(order_of(7, 10, 0)) == list(order_of(7, 10, 0)) != list(order_of(7, 10, 1))
    # A longer run begins as a shorter one.
    assert list(order_of(7, 20, 3))[:10] == list(order_of(7, 10, 3))
