"""The tables of the results are those of the records beside them."""

import re
from dataclasses import replace

import pytest
import results_tables as script
from made_up import a_comparison, a_result

from layermem_bench.config.typed_dicts import to_json
from layermem_bench.paper import names
from layermem_bench.studies.result import PaperNumber, RunRecord
from layermem_bench.studies.result import Question as Planned

# Of three pairs: told from 0, told alone but not among two claims, not told.
SURE, FAIR, NOISE = (-0.5, -0.51, -0.52), (-0.5, -0.9, -0.7), (-0.5, 0.5, 0.1)


def write(path, made):
    path.parent.mkdir(exist_ok=True)
    path.write_text(to_json(made), encoding="utf-8")


def an_artefact(name, *differences, papers=(), seeds=(0, 1, 2), **changes):
    """Return a result with a claim of each of these paired differences, in this order."""
    zeros = (0.0,) * len(seeds)
    values = {f"q{i}": {"lime": of, "plain": zeros} for i, of in enumerate(differences)}
    run = RunRecord(name="plain-s0", run_id="0", folder="runs/plain-s0", state="ended")
    fields = {"runs": (run,), **changes}
    claims = [{"quantity": quantity} for quantity in values]
    return a_result(values, claims, seeds=seeds, name=name, papers=papers, **fields)


PAPERS = tuple(
    PaperNumber(quantity="q0", arm=arm, value=value, where="Table 7")
    for arm, value in (("lime", 1.5), ("plain", 2.0))
)


@pytest.mark.parametrize("path", script.PAGES, ids=lambda path: path.name)
def test_the_pages_have_what_was_recorded(path):
    page = path.read_text(encoding="utf-8")
    assert script.with_tables(page) == page, f"{path.name}: run python docs/results_tables.py"
    for place in script._PLACE.finditer(page):
        assert place[0].splitlines()[1].count("|") - 1 <= 6, "a table must fit on a page"


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ((0.5, 0.61, 0.7), "**yes**"),
        ((0.1, 0.21, 0.3), "**no**"),
        ((0.2, 0.61, 0.5), "open"),
        # One pair has no interval.
        ((0.5,), "not tested"),
        # As where it diverged in some: those that are left may be the lucky ones.
        ((0.5, 0.61, None), None),
        ((None, 0.61, 0.7), None),
    ],
)
def test_a_question_is_answered_by_its_difference(tmp_path, ours, verdict):
    shares = {"plain": (0.3, 0.4, 0.5)[: len(ours)], "lime": ours}
    made = a_comparison(shares, metric="right answers", conditions=("recorded",))
    write(tmp_path / "made-up.json", made)
    question = script.Question(asks="?", evidence="results.md", arm="lime", record="made-up")
    question = replace(question, condition="recorded", metric="right answers")
    if verdict is None:
        with pytest.raises(SystemExit, match="made-up must have"):
            script.answer(question, tmp_path)
        return
    assert script.answer(question, tmp_path).verdict == verdict
    assert script.answer(replace(question, record=""), tmp_path).verdict == "not measured yet"
    with pytest.raises(SystemExit, match="made-up has 0 tables"):
        script.answer(replace(question, condition="tokens"), tmp_path)


def test_a_planned_question_is_answered_by_its_study(tmp_path):
    planned = Planned(
        board="b", condition="tokens", arm="lime", direction="lower", against="mudd", margin=0.5
    )
    losses = {"plain": (1.0, 1.1, 1.2), "mudd": (2.0, 2.1, 2.2), "lime": (1.9, 2.01, 2.1)}
    write(tmp_path / "made-up.json", a_comparison(losses, questions=(planned,)))
    asked = script.Question(
        asks="?", evidence="results.md", record="made-up", condition="tokens", arm="lime",
        against="mudd",
    )  # fmt: skip
    found = script.answer(asked, tmp_path)
    assert found.verdict.startswith("**yes**, not more than") and found.line.p < 0.05
    with pytest.raises(SystemExit, match="made-up"):
        script.answer(replace(asked, against="plain"), tmp_path)
    page = script.with_tables("<!-- made-up: questions -->\n<!-- made-up: rates -->\n", tmp_path)
    assert "lime below mudd" in page


def test_a_table_says_by_how_much_an_arm_may_be_behind(tmp_path):
    shares = {"plain": (0.3, 0.4, 0.5), "lime": (0.2, 0.35, 0.45), "mudd": (0.5, 0.61, 0.7)}
    made = a_comparison(shares, metric="right answers", conditions=("recorded",))
    write(tmp_path / "made-up.json", made)
    table = script.table_of("made-up", "right answers, with bounds", tmp_path)
    bounds = {row[0]: row[-1] for row in table.rows}
    # 1 / 15 and 0.0717 to each side.
    assert bounds == {"`plain`": "", "`lime`": "13.8%", "`mudd`": "0.0%"}


def test_every_record_has_a_place():
    texts = "\n".join(path.read_text(encoding="utf-8") for path in script.PAGES)
    places = {place["name"] or "" for place in script._PLACE.finditer(texts)} - {""}
    places = {name for joined in places for name in joined.split(" + ")}
    recorded = {path.stem for path in script.RECORDS.glob("*.json")}
    # Those of artefacts have a place in the first table.
    assert recorded == places - {path.stem for path in script.RECORDS.glob("artefacts/*.json")}
    for path in script.RECORDS.rglob("*.json"):
        commands = re.findall(r'"command": "([^"]*)"', path.read_text(encoding="utf-8"))
        assert not [each for each in commands if re.search(r"[ =]/\w", each)], path
    for path in (script.RECORDS / "artefacts").iterdir():
        assert path.stem.rpartition("-")[0] in names()


def test_the_table_of_claims_says_what_came_of_each(tmp_path):
    write(tmp_path / "table7-tiny.json", an_artefact("table7", SURE, NOISE, papers=PAPERS))
    unknown = an_artefact("table1", missing="lm-eval", seeds=(0,))
    write(tmp_path / "table1-tiny.json", unknown)
    found = {row[0]: row[2:] for row in script.claims(tmp_path).rows}
    assert found["`table7`"] == [
        "-0.5000",
        "q0, lime against plain: -0.510 ± 0.025",
        "tiny, 3 seeds",
        "holds: 1; cannot be said at this scale: 1",
    ]
    assert found["`table1`"][2:] == ["tiny, 1 seed", "lm-eval"]
    assert found["`fig6`"][-1] == "not run" and len(found) == len(names())


def test_verdicts_are_counted_by_artefact(tmp_path):
    # With 3 seeds of the 5 that its scale has; alone p would be 0.03, and of two claims is 0.06.
    write(tmp_path / "table7-tiny.json", an_artefact("table7", FAIR, NOISE))
    write(tmp_path / "fig6-small.json", an_artefact("fig6", SURE, SURE, scale="small"))
    # Of two scales the larger counts.
    write(tmp_path / "fig6-tiny.json", an_artefact("fig6", tuple(-value for value in SURE)))
    table = script.verdicts(tmp_path)
    rows = {row[0]: row[1:] for row in table.rows}
    assert table.header[1:] == ["holds", "does not hold", "cannot be said at this scale"]
    assert rows["quality"] == ["**2**: `fig6`", "0", "**2**: `table7` (3 seeds)"]
    assert rows["price"] == ["0", "0", "0"]
    assert sorted(name for of_kind in script.KINDS.values() for name in of_kind) == sorted(names())


@pytest.mark.parametrize(
    "mark",
    [
        "tiny-lm-gqa: taste",
        "study-tiny-lm: three, all conditions",
        "tiny-lm-4x-perplexity: right pairs over seeds",
        "table9-tiny: numbers: compilation",
        # One is of the paper's tasks, the other of pairs.
        "half-tasks-plain + half-blimp-heads: right pairs over seeds: all",
    ],
)
def test_what_no_record_has_is_refused(mark):
    with pytest.raises(SystemExit, match=re.split("[: ]", mark)[0]):
        script.with_tables(f"<!-- {mark} -->\n")


def test_runs_that_have_not_ended_are_in_no_table(tmp_path):
    shares = {"plain": (0.3, 0.4), "lime": (0.5, 0.6)}
    made = a_comparison(shares, metric="right answers", conditions=("recorded",))
    before = "<!-- early: right answers -->\n| old |\n\nMore.\n"
    begun = replace(made.runs[0], state="begun", metrics={})
    write(tmp_path / "early.json", replace(made, runs=(begun, *made.runs[1:])))
    with pytest.raises(SystemExit, match=f"early.*{begun.name}"):
        script.with_tables(before, tmp_path)
    lost = replace(begun, state="diverged")
    write(tmp_path / "early.json", replace(made, runs=(lost, *made.runs[1:])))
    page = script.with_tables(before, tmp_path)
    assert "diverged: seed 0" in page and "| old |" not in page and page.endswith("\n\nMore.\n")
