"""Evaluations as tables, forest plots and a sentence, on their own page and on that about runs."""

import math

from layermem_bench.evals.result import Difference, EvalOptions, EvalResult, Part, Row, Score, Table
from layermem_bench.pages.eval import build, over_seeds, tables
from layermem_bench.statistics import holm, p_value, paired

ARMS = {"plain": ("a0", "a1", "a2"), "lime": ("b0", "b1", "b2")}
SHARES = {"a0": 0.5, "a1": 0.6, "a2": 0.7, "b0": 0.6, "b1": 0.7, "b2": 0.8}


def result_of(*rows, better="higher", is_share=True, arms=None, **kind):
    """Return a result of one part, whose tables are all of one kind."""
    table = Table(better=better, is_share=is_share, **kind)
    names = tuple(dict.fromkeys(name for row in rows for name in row.scores))
    part = Part(title="A part", how="So.", tables={r.table: table for r in rows}, rows=rows)
    return EvalResult(
        command="layermem eval made-up",
        options=EvalOptions(tasks=("arc_easy",)),
        models=names,
        parts=(part,),
        arms=arms or {},
    )


def row(values, name="all", table="right", **more):
    return Row(
        table=table, name=name, scores={m: Score(value=v) for m, v in values.items()}, **more
    )


def test_a_table_has_what_a_score_is_beside_and_what_tempers_it():
    scores = {
        "one": Score(value=0.625, interval=(0.5, 0.74), count=1200, repeats=(0.6, 0.65)),
        "two": Score(value=0.25, interval=(0.2, 0.3), count=1200, counts={"ties": 1100}),
    }
    more = {"unit": "items", "chance": 0.04, "most_frequent": 0.5, "about": {"items from": "a.xz"}}
    (shown,) = tables(result_of(Row(table="right", name="copa", scores=scores, **more)))
    # 12.7062 x 0.025: Student's t of one degree, half the distance of the two seeds.
    assert dict(zip(shown.header, shown.rows[0], strict=True)) == {
        "right": "copa",
        "count": "1,200 items",
        "one": "62% (50% to 74%) ± 31.8% over seeds",
        "two": "25.0% (20.0% to 30.0%)",
        "chance": "4.0%",
        "most frequent": "50.0%",
        "noted": "items from a.xz; two: 1,100 ties",
    }


def test_a_model_without_a_row_has_a_blank_counts_may_differ_and_folds_have_a_deviation():
    scores = {"one": Score(value=2.0, count=10), "two": Score(value=3.0, count=12)}
    first = Row(table="loss", name="a", unit="tokens", scores=scores)
    second = Row(table="loss", name="b", unit="tokens", scores={"one": scores["one"]})
    (table,) = tables(result_of(first, second, better="lower", is_share=False))
    assert table.rows == [
        ["a", "10 / 12 tokens", "2.0000", "3.0000"],
        ["b", "10 tokens", "2.0000", ""],
    ]


def test_differences_over_items_have_a_table():
    values = {"one": 0.5, "two": 0.7}
    of = {"value": 0.2, "interval": (0.05, 0.35)}
    rows = [row(values, str(p), differences={"two": Difference(p=p, **of)}) for p in (0.01, 0.2)]
    told = result_of(*rows)
    _, differences = tables(told)
    assert differences.header == ["right, against one", "two"]
    assert differences.rows == [
        ["0.01", "+20% (+5% to +35%) (p = 0.010)"],
        ["0.2", "+20% (+5% to +35%) (p = 0.200)"],
    ]
    (section, again) = build(told).sections
    assert section.tables[1] == differences and not section.figures
    assert again.commands == ["layermem eval made-up"]


def test_means_over_seeds_and_differences_seed_by_seed():
    """Equal differences have no spread, however far the seeds are apart, and the p-value of their
    three signs: how they vary is not known."""
    result = result_of(row(SHARES), arms=ARMS)
    table = over_seeds(result, "right")
    assert table.header == ["right", "plain", "lime", "lime against plain"]
    # t(0.975, 2) = 4.3027, the deviation 0.1: 4.3027 x 0.1 / sqrt(3) = 0.2484.
    assert table.rows[0][:3] == ["all", "60% ± 25%", "70% ± 25%"]
    assert table.rows[0][3] == "+10.0% ± 0.0% (p = 0.250)"
    assert table in tables(result)
    (section, _) = build(result).sections
    (forest,) = section.figures
    assert "over seeds" in forest.caption


def test_p_values_over_seeds_are_adjusted_for_all_rows():
    ours, theirs = (1.0, 1.2, 1.5), (1.1, 1.0, 1.1)
    numbers = dict(zip((*ARMS["lime"], *ARMS["plain"]), (*ours, *theirs), strict=True))
    alone = over_seeds(result_of(row(numbers, "one"), is_share=False, arms=ARMS), "right")
    p = p_value(paired(ours, theirs))
    assert f"p = {p:.3f}" in alone.rows[0][3] and not math.isclose(p, 1)
    both = result_of(row(numbers, "one"), row(numbers, "two"), is_share=False, arms=ARMS)
    table = over_seeds(both, "right")
    assert f"p = {holm([p, p])[0]:.3f}" in table.rows[0][3] != alone.rows[0][3]
    # A row that models cannot be compared by, or that one of them lacks, is not among them.
    few = {name: value for name, value in numbers.items() if name != "b2"}
    more = (row(numbers, "two", is_comparable=False), row(few, "three"))
    several = result_of(row(numbers, "one"), *more, is_share=False, arms=ARMS)
    assert over_seeds(several, "right").rows == alone.rows


def test_one_arm_has_means_and_one_seed_has_none():
    result = result_of(row({"a0": 0.5, "a1": 0.6}), arms={"plain": ("a0", "a1")})
    assert over_seeds(result, "right").rows == [["all", "55% (0% to 100%)"]]
    one = {arm: names[:1] for arm, names in ARMS.items()}
    for arms in (one, {}):
        assert not over_seeds(result_of(row(SHARES), arms=arms), "right").rows
