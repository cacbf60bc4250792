"""Where artefacts stand: what is recorded of them, and what a result is good for."""

import logging
from dataclasses import replace

import pytest
from made_up import BASE, a_study, made_up
from recorded import record

from layermem_bench.paper import get_artefact, standing
from layermem_bench.study.carrying_out import carry_out


@pytest.fixture
def use(monkeypatch):
    """Have a made-up artefact stand under the name table7, beside others."""

    def use(artefact, *others):
        monkeypatch.setattr(standing, "names", lambda: [*others, "table7"])
        known = {"table7": artefact}
        monkeypatch.setattr(
            standing, "get_artefact", lambda name: known.get(name) or get_artefact(name)
        )

    return use


def test_the_list_says_what_is_recorded(tmp_path, begun, use):
    needs = {"paper": "a GPU"}
    use(made_up(needs=needs), "table1")

    def states(seeds=None):
        listed = standing.standings(tmp_path, seeds=seeds)
        return [each.state for each in listed if each.name == "table7"]

    assert states()[0] == "not begun (0 of 10 runs)"
    begun.does = lambda run: "fails" if (run.variant, run.seed) == ("lime", 1) else "ends"
    carry_out(a_study(), tmp_path)
    assert states(2)[0] == "3 of 4 runs, 1 failed"
    begun.does = lambda run: "ends"
    carry_out(a_study(), tmp_path)
    assert states(2) == ["done", "4 of 4 runs", "4 of 4 runs"]
    listed = standing.standings(tmp_path)
    assert [each.needs for each in listed if each.name == "table7"] == ["", "", "a GPU"]
    assert {each.name for each in listed} == {"table1", "table7"}


def test_the_list_says_what_a_result_is_good_for(tmp_path, begun, use, caplog):
    use(made_up())

    def state(seeds=None):
        return standing.standings(tmp_path, seeds=seeds)[0].state

    begun.does = lambda run: "fails" if (run.variant, run.seed) == ("lime", 1) else "ends"
    carry_out(a_study(3), tmp_path)
    file = tmp_path / "studies" / "paper" / "table7-tiny" / "study.json"
    lacks_a_run = file.read_text()
    assert (state(), state(3)) == ("5 of 10 runs, 1 failed", "5 of 6 runs, 1 failed")
    begun.does = lambda run: "ends"
    carry_out(a_study(3), tmp_path)
    of_three = file.read_text()
    assert (state(), state(3), state(2)) == ("done with 3 of 5 seeds", "done", "done with 3 seeds")
    carry_out(a_study(5), tmp_path)
    assert state() == "done"
    # The runs of all five seeds are recorded; the result is of three.
    file.write_text(of_three)
    assert state() == "done with 3 of 5 seeds"
    file.write_text(lacks_a_run)
    assert state() == state(3) == "out of date: run it again"
    file.write_text(of_three[:-20])
    with caplog.at_level(logging.WARNING):
        assert state() == f"damaged: delete {file}"
    assert str(file) in caplog.text
    # The plan has another arm since.
    file.write_text(of_three)
    record(tmp_path / "study" / "mudd-s0", run=replace(BASE, variant="mudd"))
    use(made_up(arms=("plain", "lime", "mudd")))
    assert state(3) == "out of date: run it again"
