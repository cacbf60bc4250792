"""The tables of the results are those of the records beside them."""

import re
from dataclasses import replace

import pytest
import results_tables as script
from made_up import a_comparison, a_result

from layermem_bench.paper import names
from layermem_bench.results.eval import EvalOptions, EvalResult, Part, Row, Score
from layermem_bench.results.eval import Table as EvalTable
from layermem_bench.results.files import to_json
from layermem_bench.results.intervals import p_value, paired
from layermem_bench.results.study import (
    MeasuredSteps,
    Metric,
    PaperNumber,
    RunRecord,
)

# Of three pairs: held up by p < 0.05, undone by Holm among two claims, within noise.
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


def a_question(**fields):
    of_made_up = {"record": "made-up", "condition": "recorded", "metric": "right answers"}
    return script.Question(asks="?", evidence="results.md", arm="lime", **{**of_made_up, **fields})


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ((0.5, 0.61, 0.7), "**yes**"),
        ((0.1, 0.21, 0.3), "**no**"),
        ((0.2, 0.61, 0.5), "unclear"),
        # One pair has no interval.
        ((0.5,), "unclear"),
    ],
)
def test_a_question_is_answered_by_its_difference(tmp_path, ours, verdict):
    shares = {"plain": (0.3, 0.4, 0.5)[: len(ours)], "lime": ours}
    made = a_comparison(shares, metric="right answers", conditions=("recorded",))
    write(tmp_path / "made-up.json", made)
    assert script.answer(a_question(), tmp_path).verdict == verdict
    assert script.answer(a_question(record=""), tmp_path).verdict == "not measured yet"
    with pytest.raises(SystemExit, match="made-up must have one difference"):
        script.answer(a_question(condition="tokens"), tmp_path)


@pytest.mark.parametrize("loses", ["plain", "lime"])
def test_a_question_about_an_arm_that_lost_seeds_is_not_answered(tmp_path, loses):
    """As where it diverged in some: those that are left may be the lucky ones."""
    shares = {"plain": (0.3, 0.4, 0.5), "lime": (0.5, 0.61, 0.7)}
    made = a_comparison(shares, metric="right answers", conditions=("recorded",))
    runs = [
        replace(run, state="diverged") if run.arm == loses and run.seed == 2 else run
        for run in made.runs
    ]
    write(tmp_path / "made-up.json", replace(made, runs=tuple(runs)))
    with pytest.raises(SystemExit, match="of seeds 2 there is no pair"):
        script.answer(a_question(), tmp_path)


def test_the_readme_links_to_the_same_evidence():
    header, *rows = script.answers_table(script.RECORDS)
    _, *brief = script.answers_table(script.RECORDS, brief=True, above_docs=True)
    assert len(header) <= 6 and len(brief) == 5
    above_docs = [[asked.replace("](", "](docs/"), *cells] for asked, *cells in rows]
    assert all(row in above_docs for row in brief)


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
    _, *rows = script.claims(tmp_path)
    (row,) = [row for row in rows if row[0] == "`table7`"]
    assert row[2:] == [
        "-0.5000",
        "q0, lime against plain: -0.510 ± 0.025",
        "tiny, 3 seeds",
        "holds: 1; cannot be said at this scale: 1",
    ]
    assert [row[-1] for row in rows if row[0] == "`fig6`"] == ["not run"]
    assert len(rows) == len(names())
    unknown = an_artefact("table1", missing="lm-eval", seeds=(0,))
    write(tmp_path / "table1-tiny.json", unknown)
    (row,) = [row for row in script.claims(tmp_path) if row[0] == "`table1`"]
    assert row[4:] == ["tiny, 1 seed", "lm-eval"]


def test_verdicts_are_counted_by_artefact(tmp_path):
    # With 3 seeds of the 5 that its scale has; alone p would be 0.03, and of two claims is 0.06.
    write(tmp_path / "table7-tiny.json", an_artefact("table7", FAIR, NOISE))
    write(tmp_path / "fig6-small.json", an_artefact("fig6", SURE, SURE, scale="small"))
    # Of two scales the larger counts.
    other = tuple(-value for value in SURE)
    write(tmp_path / "fig6-tiny.json", an_artefact("fig6", other))
    rows = {row[0]: row[1:] for row in script.verdicts(tmp_path)}
    assert rows["about"] == ["holds", "does not hold", "cannot be said at this scale"]
    assert rows["quality"] == [
        "**2**: `fig6`",
        "0",
        "**2**: `table7` (3 seeds)",
    ]
    assert rows["price"] == ["0", "0", "0"]
    assert sorted(name for of_kind in script.KINDS.values() for name in of_kind) == sorted(names())


def test_numbers_of_an_artefact_are_shown_by_quantity(tmp_path):
    values = {
        "time, eager": {"plain": (0.0, 0.0), "lime": (0.05, 0.05)},
        "memory, eager": {"plain": (0.0, 0.0)},
    }
    papers = tuple(
        PaperNumber(quantity=name, arm="lime", value=0.01, where="Table 9", is_share=True)
        for name in ("time, eager", "time, compiled")
    )
    metrics = dict.fromkeys((*values, "time, compiled"), Metric(is_share=True))
    made = a_result(values, seeds=(0, 1), name="table9", papers=papers, metrics=metrics)
    # Their order in the file is by arm.
    made = replace(made, rows=tuple(sorted(made.rows, key=lambda row: row.arm, reverse=True)))
    write(tmp_path / "artefacts" / "table9-tiny.json", made)
    header, *shown = script.rows_of("table9-tiny", "numbers", tmp_path)
    assert header == ["", "arm", "paper", "here"]
    assert [line[:3] for line in shown] == [
        ["time, eager", "`plain`", ""],
        ["time, eager", "`lime`", "1.00%"],
        ["memory, eager", "`plain`", ""],
    ]
    page = script.with_tables("<!-- table9-tiny: numbers: memory -->\n", tmp_path)
    assert "| memory, eager | `plain` | 0.0% ± 0.0% |" in page and "time" not in page
    with pytest.raises(SystemExit, match="'compiled'"):
        script.rows_of("table9-tiny", "numbers: compiled", tmp_path)


SHARES = {"plain": (0.3, 0.4), "lime": (0.5, 0.6), "mudd": (0.3, 0.5)}


def test_a_table_is_written_from_its_record(tmp_path):
    made = a_comparison(SHARES, metric="right answers", conditions=("recorded",))
    write(tmp_path / "made-up.json", made)
    before = "# Results\n\n<!-- made-up: right answers -->\n| old |\n| --- |\n\nMore.\n"
    page = script.with_tables(before, tmp_path)
    # Two seeds: 12.706 times half their distance; a difference that is always the same has none.
    assert "| `plain` | 35% (0% to 99%) |" in page
    # Its p-value is that of two equal signs, 0.5, as is mudd's by t; of two such, Holm's are 1.
    assert re.search(
        r"\| `lime` \| 55% \(0% to 100%\) \| \+20\.0% ± 0\.0% \| 1\.000, within noise", page
    )
    assert re.search(r"\| `mudd` \| 40% \(0% to 100%\) \| \+5% ± 64% \| 1\.000, within noise", page)
    assert "| old |" not in page and page.endswith("\n\nMore.\n")
    assert script.with_tables(page, tmp_path) == page
    with pytest.raises(SystemExit, match="made-up.*'taste'.*right answers"):
        script.rows_of("made-up", "taste", tmp_path)


def test_runs_that_have_not_ended_are_in_no_table(tmp_path):
    made = a_comparison(SHARES, metric="right answers", conditions=("recorded",))
    begun = replace(made.runs[0], state="begun", metrics={})
    write(tmp_path / "early.json", replace(made, runs=(begun, *made.runs[1:])))
    with pytest.raises(SystemExit, match=f"early.*{begun.name}"):
        script.with_tables("<!-- early: right answers -->\n", tmp_path)
    lost = replace(begun, state="diverged")
    write(tmp_path / "early.json", replace(made, runs=(lost, *made.runs[1:])))
    page = script.with_tables("<!-- early: right answers -->\n", tmp_path)
    assert "diverged: seed 0" in page


def test_conditions_stand_side_by_side(tmp_path):
    losses = {"plain": (2.0, 2.5, 2.25), "lime": (1.5, 1.75, 1.625)}
    made = a_comparison(losses, boards=("one", "two"), conditions=("tokens", "time"))
    one, two = made.boards
    steps = MeasuredSteps(
        machine="", base="", rounds=1, seconds={}, ratios={"plain": 1.0, "lime": 1.25}
    )
    write(tmp_path / "two.json", replace(made, boards=(replace(one, steps=steps), two)))
    header, lime, plain = script.rows_of("two", "one, all conditions", tmp_path)
    against = "against plain, equal tokens"
    assert header == ["arm", "validation loss", against, "equal training time", "time"]
    p = p_value(paired(losses["lime"], losses["plain"]))
    assert lime == ["`lime`", "1.62 ± 0.31", *[f"-0.62 ± 0.31 (p = {p:.3f})"] * 2, "1.25"]
    assert plain == ["`plain`", "2.25 ± 0.62", "", "", "1.00"]
    page = script.with_tables("<!-- two: two, all conditions -->\n", tmp_path)
    assert script.with_tables(page, tmp_path) == page and "| 1.25 |" not in page
    with pytest.raises(SystemExit, match="'three, all conditions'.*one, all conditions"):
        script.with_tables("<!-- two: three, all conditions -->\n", tmp_path)
    # One board needs no name.
    write(tmp_path / "alone.json", replace(made, boards=(two,)))
    assert len(script.rows_of("alone", "all conditions", tmp_path)) == 3


def test_several_records_are_one_table(tmp_path):
    first = a_comparison(SHARES, metric="right answers", conditions=("recorded",))
    second = {"mudd": (0.2, 0.4), "lime": (0.5, 0.8)}
    second = a_comparison(second, metric="right answers", conditions=("recorded",))
    write(tmp_path / "of-2-layers.json", first)
    write(tmp_path / "of-4-layers.json", second)
    joined = "of-2-layers + of-4-layers"
    header, *rows = script.rows_of(joined, "right answers", tmp_path)
    assert header == ["", "arm", "right answers", "against the first arm", "p (Holm)"]
    assert [row[:2] for row in rows] == [
        *(["2 layers", f"`{arm}`"] for arm in ("lime", "mudd", "plain")),
        *(["4 layers", f"`{arm}`"] for arm in ("lime", "mudd")),
    ]
    page = script.with_tables(f"<!-- {joined}: right answers -->\n", tmp_path)
    assert "| 4 layers | `lime` | 65% (0% to 100%) | +35% ± 64% |" in page
    assert script.with_tables(page, tmp_path) == page


def an_evaluation(means, arms, count=100):
    rows = tuple(
        Row(
            table="loss", name=name, is_comparable=name != "nats per word",
            scores={m: Score(value=v, count=count) for m, v in means.items()},
        )
        for name in ("nats per word", "nats per token")
    )  # fmt: skip
    return EvalResult(
        command="layermem eval p-s0 p-s1", options=EvalOptions(tasks=("ppl=a",)),
        models=tuple(means), arms=arms,
        parts=(
            Part(
                title="", how="", rows=rows,
                tables={"loss": EvalTable(better="lower", is_share=False)},
            ),
        ),
    )  # fmt: skip


MEANS = {"p-s0": 2.0, "p-s1": 3.0, "l-s0": 1.0, "l-s1": 2.5}


def test_evaluations_over_seeds_are_tables(tmp_path):
    measured = an_evaluation(MEANS, {"plain": ("p-s0", "p-s1"), "lime": ("l-s0", "l-s1")})
    write(tmp_path / "late.json", measured)
    page = script.with_tables("<!-- late: loss over seeds -->\n", tmp_path)
    assert "| loss | plain | lime | lime against plain |" in page
    assert "| nats per token | 2.5 ± 6.4 | 1.8 ± 9.5 | -0.8 ± 3.2 (p = 0.205) |" in page
    assert script.with_tables(page, tmp_path) == page
    write(tmp_path / "alone.json", replace(measured, arms={}))
    for name, table in (("alone", "loss"), ("late", "right pairs")):
        with pytest.raises(SystemExit, match=f"{name} has no '{table} over seeds'"):
            script.with_tables(f"<!-- {name}: {table} over seeds -->\n", tmp_path)


def test_evaluations_of_one_arm_each_are_one_table(tmp_path):
    def write_arm(name, *models, count=100, **changes):
        made = an_evaluation({m: MEANS[m] for m in models}, {"lime": models}, count)
        write(tmp_path / f"loss-{name}.json", replace(made, **changes))

    write_arm("whole", "p-s0", "p-s1")
    write_arm("half", "l-s0", "l-s1")
    mark = "<!-- loss-whole + loss-half: loss over seeds: nats per token -->\n"
    page = script.with_tables(mark, tmp_path)
    assert "| arm | nats per token | nats per token, against whole |" in page
    assert "| `whole` | 2.5 ± 6.4 |  |" in page
    assert "| `half` | 1.8 ± 9.5 | -0.8 ± 3.2 (p = 0.205) |" in page
    assert script.with_tables(page, tmp_path) == page
    write_arm("half", "l-s0", "l-s1", options=EvalOptions(tasks=("ppl=b",)))
    with pytest.raises(SystemExit, match="loss-half is no evaluation of one arm like that"):
        script.with_tables(mark, tmp_path)
    write_arm("half", "p-s1", "l-s0")
    with pytest.raises(SystemExit, match="not of the same seeds"):
        script.with_tables(mark, tmp_path)
