"""The watchdog: who hangs is named, by whoever still answers, and not too often."""

import json

import pytest
from torch import distributed

from layermem_bench.train import watching
from layermem_bench.train.watching import COMPUTES, READS, UPDATES, VALIDATES, Watchdog


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves."""
    now = [1000.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(watching.socket, "gethostname", lambda: "node")
    return now


@pytest.fixture
def group(clock):
    """Three processes with one store; each call passes seconds, and returns what each says."""
    store, dogs = distributed.HashStore(), [Watchdog(timeout=400) for _ in range(3)]

    def passing(seconds, silent=()):
        clock[0] += seconds
        ranks = [rank for rank in range(3) if rank not in silent]
        # A second round, since the first reads what others said before.
        said = [{rank: dogs[rank].look(store, rank, 3) for rank in ranks} for _ in range(2)]
        return {rank: text for round_ in said for rank, text in round_.items() if text}

    passing(0)
    return dogs, passing


def test_the_process_that_is_behind_is_named_once_in_a_while(group):
    dogs, passing = group
    for rank, dog in enumerate(dogs):
        dog.now(READS if rank == 1 else COMPUTES, 41)
    assert passing(90) == {}
    (said,) = passing(20).items()
    assert said[0] == 0
    assert "process 1 on node reads its batch (step 42), for 110 s. The other" in said[1]
    assert "process 0" not in said[1] and "process 2" not in said[1]
    # Not again before as long has passed, and then again.
    assert passing(50) == {} and "process 1" in passing(105)[0]


def test_one_step_that_ends_is_enough(group):
    dogs, passing = group
    for _ in range(10):
        dogs[2].now(COMPUTES, 5)
        assert passing(60) == {}


def test_where_the_first_process_is_silent_the_next_one_speaks(group):
    dogs, passing = group
    for dog in dogs:
        dog.now(UPDATES, 7)
    passing(1)
    said = passing(150, silent=(0,))
    assert set(said) == {1}
    assert "process 0 on node updates weights (step 8), without a sign of life for 150 s" in said[1]


def test_where_all_are_at_one_place_it_is_said(group):
    dogs, passing = group
    for dog in dogs:
        dog.now(VALIDATES, 9)
    said = passing(101)[0]
    assert "no process is behind" in said and said.count("validates (step 10)") == 3


def test_a_step_comes_after_the_one_before_it(group):
    dogs, passing = group
    dogs[0].now(READS, 8)
    dogs[1].now(UPDATES, 7)
    dogs[2].now(READS, 8)
    assert "process 1 on node updates weights (step 8)" in passing(101)[0]


@pytest.mark.slow
def test_of_two_processes_the_one_that_gets_no_batch_is_named(two_processes):
    said = json.loads((two_processes / "probes.json").read_text(encoding="utf-8"))["hanging"]
    assert said and all("process 1 on" in each and "(step 3)" in each for each in said)
    assert "reads its batch" in said[0] and "The other processes wait" in said[0]
