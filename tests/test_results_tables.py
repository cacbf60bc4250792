"""The tables of docs/results.md are those of the records beside it."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
from layermem.experiments.comparison import compare_runs
from layermem.experiments.learning_rates import tried_rates
from layermem.experiments.standings import standings
from layermem.results.arena import ArenaResult, MeasuredMemory, MeasuredSteps, Ranking
from layermem.results.artefact import ArtefactResult, ArtefactRow, JudgedClaim, Mean, RunState
from layermem.results.retrofit import RetrofitResult, RetrofitTrial
from recorded import SIZES, record

from layermem import paper as artefacts
from layermem.config import Run
from layermem.intervals import p_value, paired
from layermem.results.files import to_json
from layermem.results.minimal_pairs import (
    JudgedPairs,
    MinimalPairsOptions,
    MinimalPairsResult,
    PairShare,
)
from layermem.results.perplexity import (
    DocumentLosses,
    Perplexity,
    PerplexityOptions,
    PerplexityResult,
    PositionLoss,
)

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "results_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_what_was_recorded(script):
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.with_tables(page) == page, "run python docs/results_tables.py"


def test_every_record_has_a_place(script):
    places = {m["name"] for m in script._PLACE.finditer(script.PAGE.read_text(encoding="utf-8"))}
    recorded = {path.stem.removesuffix("-costs") for path in script.RECORDS.glob("*.json")}
    # Those of artefacts have a place in the first table.
    assert recorded == places - {path.stem for path in script.RECORDS.glob("artefacts/*.json")}


def test_what_was_recorded_of_a_claim_is_of_an_artefact_that_exists(script):
    recorded = {path.stem.rpartition("-")[0] for path in (script.RECORDS / "artefacts").iterdir()}
    assert recorded <= set(artefacts.names())


def test_the_first_table_says_what_came_of_each_claim(script, tmp_path):
    claims = [
        claim("loss", "holds", paper=-0.5, difference=Mean(mean=-0.2, half=0.1, count=3)),
        claim("time", "cannot be said at this scale"),
    ]
    write(tmp_path / "table7-tiny.json", result(claims=claims))
    header, *rows = script.claims_table(tmp_path)
    (row,) = [row for row in rows if row[0] == "`table7`"]
    assert row[2:] == [
        "-0.5000",
        "loss, lime against plain: -0.2000 +- 0.1000",
        "tiny, 3 seeds",
        "holds: 1; cannot be said at this scale: 1",
    ]
    assert [row[-1] for row in rows if row[0] == "`fig6`"] == ["not run"]
    assert len(rows) == len(artefacts.names())


def test_verdicts_are_counted_by_artefact(script, tmp_path):
    both = [claim("loss", "holds", p=0.05), claim("time", "cannot be said at this scale", p=0.5)]
    # With 3 seeds of the 5 that its scale has.
    write(tmp_path / "table7-tiny.json", result(claims=both))
    sure = [claim("loss", "holds", p=0.01), claim("parameters", "holds")]
    write(tmp_path / "fig6-small.json", result(name="fig6", scale="small", claims=sure))
    # Of two scales the larger counts.
    write(tmp_path / "fig6-tiny.json", result(name="fig6", claims=[claim("l", "does not hold")]))
    rows = {row[0]: row[1:] for row in script.verdicts_table(tmp_path)}
    assert rows["holds"] == ["3", "2", "`fig6`, `table7` (1 of 2; 3 seeds)"]
    assert rows["does not hold"] == ["0", "0", ""]
    assert rows["cannot be said at this scale"] == ["1", "", "`table7` (1 of 2; 3 seeds)"]
    assert len(rows["not run"][2].split(", ")) == len(artefacts.names()) - 2


def test_runs_that_have_not_ended_are_in_no_table(script, tmp_path):
    runs = [
        record(tmp_path / f"{variant}{seed}", variant=variant, seed=seed, ended=seed == 0)
        for variant, seed in (("plain", 0), ("plain", 1), ("lime", 0))
    ]
    compare_runs(runs, tmp_path / "out")
    (tmp_path / "out" / "report.json").rename(tmp_path / "early.json")
    with pytest.raises(SystemExit, match="early was recorded before plain1 had ended; repeat its"):
        script.with_tables("<!-- early: validation loss -->\n", tmp_path)


def test_every_difference_has_a_row(script, tmp_path):
    settled = {"difference": Mean(mean=-0.2, half=0.1, count=3), "p": 0.01, "pairs": 4}
    claims = [claim("loss", "holds", paper=-0.5, **settled), claim("time", "does not hold")]
    write(tmp_path / "table7-tiny.json", result(name="table7", claims=claims))
    write(tmp_path / "fig6-small.json", result(name="fig6", scale="small", claims=claims[:1]))
    header, *rows = script.differences_table(tmp_path)
    assert header == ["", "claim", "paper", "here", "p (Holm)", "seeds to settle it", "holds?"]
    assert [row[0] for row in rows] == ["`fig6`, small", "`table7`, tiny", "`table7`, tiny"]
    assert rows[1][1:6] == ["loss: lime below plain", "-0.5000", "-0.2000 +- 0.1000", "0.010", "4"]
    assert [row[6] for row in rows[1:]] == ["holds (made up)", "does not hold (made up)"]


def test_a_counted_number_is_shown_beside_the_papers(script, tmp_path):
    counted = ArtefactRow(
        quantity="FLOPs", arm="lime", unit="share", paper=0.0008, where="Table 8",
        by_seed={0: 0.0008}, mean=Mean(mean=0.0008, half=None, count=1), counted=True,
    )  # fmt: skip
    claims = [claim("FLOPs", "holds", paper=0.0008, against=None)]
    made = replace(result(claims=claims, rows=(counted,), scale="paper"), runs=())
    write(tmp_path / "table8-paper.json", made)
    (row,) = [row for row in script.claims_table(tmp_path) if row[0] == "`table8`"]
    assert row[2:] == ["0.08%", "FLOPs, lime: counted: 0.08%", "paper", "holds"]


def test_numbers_of_an_artefact_are_shown_by_quantity(script, tmp_path):
    def row(quantity, arm, paper, *seeds):
        mean = Mean(mean=seeds[0], half=0.0, count=2) if seeds else None
        return ArtefactRow(
            quantity=quantity, arm=arm, unit="share", paper=paper, where="Table 9",
            by_seed=dict(enumerate(seeds)), mean=mean,
        )  # fmt: skip

    rows = (
        row("time, eager", "plain", None, 0.0, 0.0),
        row("memory, eager", "plain", None, 0.0, 0.0),
        row("time, eager", "lime", 0.01, 0.05, 0.05),
        row("time, compiled", "lime", 0.01),
    )
    (tmp_path / "artefacts").mkdir()
    write(tmp_path / "artefacts" / "table9-tiny.json", result(claims=(), rows=rows))
    header, *shown = script.numbers_table("table9-tiny", "numbers", tmp_path)
    assert header == ["", "arm", "paper", "here"]
    assert [line[:3] for line in shown] == [
        ["time, eager", "`plain`", ""],
        ["time, eager", "`lime`", "1.00%"],
        ["memory, eager", "`plain`", ""],
    ]
    page = script.with_tables("<!-- table9-tiny: numbers: memory -->\n", tmp_path)
    assert "| memory, eager | `plain` | 0.00% +- 0.00% |" in page and "time" not in page
    with pytest.raises(SystemExit, match="no number whose name has 'compiled' in it"):
        script.numbers_table("table9-tiny", "numbers: compiled", tmp_path)


def claim(quantity, verdict, *, paper=None, difference=None, against="plain", p=None, pairs=None):
    return JudgedClaim(
        quantity=quantity, arm="lime", against=against, direction="lower", paper=paper,
        difference=difference, p=p, pairs_to_settle=pairs, verdict=verdict, reason="made up",
    )  # fmt: skip


def result(*, claims, rows=(), scale="tiny", name="made up"):
    run = RunState(name="plain-s0", run_id="0", folder="runs/plain-s0", state="ended")
    return ArtefactResult(
        command="layermem reproduce", name=name, title="", claim="", scale=scale,
        seeds=(0, 1, 2), rows=tuple(rows), claims=tuple(claims), rates={}, runs=(run,),
    )  # fmt: skip


def write(path, made):
    path.write_text(to_json(made), encoding="utf-8")


def test_a_table_is_written_from_its_record(script, tmp_path):
    runs = [
        record(tmp_path / f"{variant}{seed}", variant=variant, seed=seed, right=right)
        for variant, seed, right in (
            *(("plain", 0, 0.3), ("plain", 1, 0.4), ("lime", 0, 0.5)),
            *(("lime", 1, 0.6), ("mudd", 0, 0.3), ("mudd", 1, 0.5)),
        )
    ]
    tried = {arm: {0.001: 3.0, 0.01: 1.0, 0.1: 2.0} for arm in ("plain", "lime")}
    tried["mudd"] = {0.001: 3.0, 0.01: 1.0}
    compare_runs(runs, tmp_path / "out", learning_rates=tried)
    (tmp_path / "out" / "report.json").rename(tmp_path / "made-up.json")
    before = "# Results\n\n<!-- made-up: right answers -->\n| old |\n| --- |\n\nMore.\n"
    page = script.with_tables(before, tmp_path)
    # Two seeds: 12.706 times half their distance; a difference that is always the same has none.
    assert "| `plain` | 0.01 | 35.0% +- 63.5% |  |  |\n" in page
    # Its p-value is that of two equal signs, 0.5, as is mudd's by t; of two such, Holm's are 1.
    assert "| `lime` | 0.01 | 55.0% +- 63.5% | +20.0% +- 0.0% | 1.000, within noise |" in page
    assert "`mudd` | 0.01 (the highest) | 40.0% +- 127.1% | +5.0% +- 63.5% | 1.000, " in page
    assert "| chance |  | 10.0% |" in page
    assert "| old |" not in page and page.endswith("\n\nMore.\n")
    assert script.with_tables(page, tmp_path) == page
    levels = script.with_tables("<!-- made-up: right answers by operands -->\n", tmp_path)
    assert "|  | operands: 2 |" in levels and "| `lime` | 55.0% +- 63.5% |" in levels
    with pytest.raises(SystemExit, match="made-up has no right answers by taste"):
        script.levels_table("made-up", "right answers by taste", tmp_path)
    with pytest.raises(SystemExit, match="no metric 'taste'; there are validation loss"):
        script.metric_table("made-up", "taste", tmp_path)


def test_the_choosing_seed_is_a_pair_where_one_rate_was_tried(script, tmp_path):
    losses = {"plain": (2.0, 2.5, 2.25), "lime": (1.0, 1.75, 1.5)}
    runs = [
        record(tmp_path / f"{variant}{seed}", variant=variant, seed=seed, final=loss)
        for variant, values in losses.items()
        for seed, loss in enumerate(values)
    ]
    compare_runs(runs, tmp_path, learning_rates={"plain": {0.01: 2.0}, "lime": {0.01: 2.5}})
    (tmp_path / "report.json").rename(tmp_path / "made-up.json")
    asked = "validation loss with the choosing seed"
    header, plain, lime = script.all_pairs_table("made-up", asked, tmp_path)
    assert header[1] == "validation loss" and plain[0] == "`plain`"
    pairs = paired([1.0, 1.75, 1.5, 2.5], [2.0, 2.5, 2.25, 2.0])
    assert lime[2] == f"{pairs.mean:.4f} +- {pairs.half:.4f}"
    # These pairs were looked at before without it.
    assert lime[3] == f"{min(1.0, 4 * p_value(pairs)):.3f}, within noise"
    page = script.with_tables(f"<!-- made-up: {asked} -->\n", tmp_path)
    assert "| `lime` | 1.6875 +- " in page
    compare_runs(runs, tmp_path, learning_rates={"plain": {0.01: 2.0, 0.1: 3.0}})
    (tmp_path / "report.json").rename(tmp_path / "chosen.json")
    with pytest.raises(SystemExit, match="where one rate was tried"):
        script.all_pairs_table("chosen", asked, tmp_path)


def test_arms_at_rates_of_their_own_are_named_without_them(script, tmp_path):
    base = Run(preset="made-up", max_steps=40, model=SIZES)
    runs = [
        record(
            tmp_path / f"{variant}{seed}",
            run=replace(base, variant=variant, seed=seed, optim=replace(base.optim, lr=rate)),
            final=loss + seed,
        )
        for variant, rate, loss in (("plain", 0.01, 2.0), ("lime", 0.1, 1.0))
        for seed in (0, 1)
    ]
    tried = {"plain": {0.01: 1.0, 0.1: 2.0}, "lime": {0.01: 2.0, 0.1: 1.0}}
    compare_runs(runs, tmp_path / "out", learning_rates=tried)
    (tmp_path / "out" / "report.json").rename(tmp_path / "made-up.json")
    header, plain, lime = script.metric_table("made-up", "validation loss", tmp_path)
    assert header[3] == "against plain"
    assert plain[:2] == ["`plain`", "0.01 (the lowest)"]
    assert lime[:2] == ["`lime`", "0.1 (the highest)"]
    assert lime[3] == "-1.0000 +- 0.0000"


def ranking(condition, values, steps, board="base"):
    lengths = {arm: (steps[arm], 0, 10) for arm in values}
    return Ranking(
        board=board, condition=condition, metric="validation loss", is_share=False,
        first="plain", standings=standings(values, (0, 1, 2), lengths, higher_is_better=False),
    )  # fmt: skip


def test_rankings_of_the_arena_are_shown_with_their_rates(script, tmp_path):
    values = {"plain": {0: 2.0, 1: 2.5, 2: 2.25}, "lime": {0: 1.5, 1: 1.75, 2: 1.625}}
    ratios = {"plain": 1.0, "lime": 1.25}
    steps = MeasuredSteps(machine="", base="", rounds=1, seconds={}, ratios=ratios)
    made = ArenaResult(
        command="layermem arena", seeds=(0, 1, 2), steps={"one": steps, "two": steps}, runs=(),
        rankings=(
            ranking("tokens", values, {"plain": 100, "lime": 100}, "one"),
            ranking("time", values, {"plain": 100, "lime": 80}, "one"),
            ranking("time", values, {"plain": 60, "lime": 50}, "two"),
        ),
        shapes=(ranking("parameters", values, {"plain": 70, "lime": 70}, "one, shapes of lime"),),
        rates={"one": {"plain": 1e-3, "lime": 3e-3}, "two": {"plain": 1e-2, "lime": 1e-2}},
    )  # fmt: skip
    write(tmp_path / "arena.json", made)
    # One that was written before it said which rates had been tried; and one that does.
    told = {arm: {1e-4: 9.0, 1e-3: 1.0, 3e-3: 2.0} for arm in ("plain", "lime")}
    told["lime"][3e-3] = 0.5
    write(tmp_path / "newer.json", replace(made, tried={"one": tried_rates(told)}))
    newer = script.with_tables("<!-- newer: one, equal training time -->\n", tmp_path)
    assert "`plain` | 0.001 |" in newer and "`lime` | 0.003 (the highest) |" in newer
    peaks = MeasuredMemory(machine="", base="", peaks={"plain": 100, "lime": 110})
    priced = replace(made, memory={"one": peaks})
    write(tmp_path / "priced.json", priced)
    shown = script.with_tables("<!-- priced: one, equal training time -->\n", tmp_path)
    assert "| time | memory |" in shown
    assert "| 1.25 | 1.10 |" in shown and "| 1.00 | 1.00 |" in shown
    shapes = "<!-- priced: one, shapes of lime, equal parameters -->\n"
    assert "| time |" not in script.with_tables(shapes, tmp_path)
    page = script.with_tables("<!-- arena: one, equal training time -->\n", tmp_path)
    assert "| | arm | learning rate | validation loss | against plain |" in page.replace(
        "|  |", "| |"
    )
    assert "| 1 | `lime` | 0.003 | 1.6250 +- 0.3105 | -0.6250 +- 0.3105 |" in page
    assert "| 80 | 0 | 10 |" in page and "| 2 | `plain` | 0.001 |" in page
    assert script.with_tables(page, tmp_path) == page
    shapes = script.with_tables("<!-- arena: one, shapes of lime, equal parameters -->\n", tmp_path)
    assert "| 1 | `lime` | 1.6250" in shapes and "| 70 |" in shapes
    assert "learning rate" not in shapes, "shapes are of boards with rates of their own"
    with pytest.raises(SystemExit, match="no ranking 'three, equal tokens'; it has one, equal tok"):
        script.with_tables("<!-- arena: three, equal tokens -->\n", tmp_path)


def test_ways_of_going_on_training_are_shown_under_each_condition(script, tmp_path):
    values = {"plain": {0: 2.0, 1: 2.5, 2: 2.25}, "all": {0: 1.5, 1: 1.75, 2: 1.625}}
    made = RetrofitResult(
        command="layermem retrofit base", model="base", memory="full", before=3.0, seeds=(0, 1, 2),
        rankings=(
            ranking("tokens", values, {"plain": 100, "all": 100}),
            ranking("time", values, {"plain": 100, "all": 80}),
        ),
        trained={"plain": 10, "all": 10},
        trials=tuple(
            RetrofitTrial(arm=way, rate=1e-3, loss=2.0, chosen=True) for way in ("plain", "all")
        ),
        steps=MeasuredSteps(
            machine="", base="", rounds=1, seconds={}, ratios={"plain": 1.0, "all": 1.25}
        ),
        runs=(),
    )  # fmt: skip
    write(tmp_path / "retrofit-base.json", made)
    page = script.with_tables("<!-- retrofit-base: equal training time -->\n", tmp_path)
    assert "| 1 | all | memory, all weights | 10 | 0.001 | 80 | 1.6250 +- 0.3105 |" in page
    assert "-0.6250 +- 0.3105" in page and "| 2 | plain | all weights, no memory | 10 |" in page
    assert script.with_tables(page, tmp_path) == page


def losses(mean):
    """Return losses of a model on one document of 100 tokens and 200 bytes."""
    return Perplexity(
        loss=mean, bits_per_byte=mean / 2, tokens=100, bytes=200, context=64, stride=32,
        predecessor=0, unknown_tokens=0,
        positions=(PositionLoss(first=1, last=1, tokens=100, loss=mean),),
        documents=DocumentLosses(nats=(100 * mean,), tokens=(100,), bytes=(200,)),
    )  # fmt: skip


def right_pairs(right):
    share = PairShare(count=100, right=right, ties=0, interval=(0.0, 1.0))
    return JudgedPairs(all=share, fields={}, phenomena={"agreement": share}, paradigms={})


ARMS = {"plain": ("p0", "p1"), "lime": ("l0", "l1")}


def test_losses_and_minimal_pairs_over_seeds_are_tables(script, tmp_path):
    means = {"p0": 2.0, "p1": 3.0, "l0": 1.0, "l1": 2.5}
    measured = PerplexityResult(
        command="layermem perplexity p0 p1 l0 l1", options=PerplexityOptions(texts=("a",)),
        models={name: losses(mean) for name, mean in means.items()}, differences={}, arms=ARMS,
    )  # fmt: skip
    rights = {"p0": 50, "p1": 60, "l0": 70, "l1": 70}
    judged = MinimalPairsResult(
        command="layermem blimp p0 p1 l0 l1", options=MinimalPairsOptions(records=("a",)),
        models={name: right_pairs(right) for name, right in rights.items()}, comparisons={},
        probes={}, arms=ARMS,
    )  # fmt: skip
    write(tmp_path / "late.json", measured)
    write(tmp_path / "pairs.json", judged)
    asked = "<!-- late: loss over seeds -->\n\n<!-- pairs: right pairs over seeds -->\n"
    page = script.with_tables(asked, tmp_path)
    assert "| nats per token | 2.5000 +- 6.3531 | 1.7500 +- 9.5297 | -0.7500 +- 3.1766" in page
    assert "| after 1 token | 2.5000 +- 6.3531 |" in page
    assert "| agreement | 55.0% +- 63.5% | 70.0% +- 0.0% | +15.0% +- 63.5%" in page
    assert script.with_tables(page, tmp_path) == page
    write(tmp_path / "alone.json", replace(measured, arms={}))
    with pytest.raises(SystemExit, match="alone has no runs of several seeds"):
        script.with_tables("<!-- alone: loss over seeds -->\n", tmp_path)
