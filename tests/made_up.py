"""Results of studies from numbers alone."""

from layermem_bench.studies.result import (
    METRICS,
    Arm,
    Board,
    Claim,
    Condition,
    Metric,
    Row,
    RunRecord,
    StudyResult,
)


def a_result(values, claims=(), *, seeds=(0, 1, 2), metrics=None, name="table7", **changes):
    """Return a result from its rows: quantity to arm to its values, seed by seed.

    ``claims``: fields of each claim, which is of LIMe against plain unless they say otherwise.
    """
    rows = [
        Row(metric=quantity, arm=arm, by_seed=dict(zip(seeds, of_arm, strict=False)))
        for quantity, by_arm in values.items()
        for arm, of_arm in by_arm.items()
    ]
    fields = {
        "command": "layermem study",
        "name": f"paper/{name}-tiny",
        "title": "made up",
        "scale": "tiny",
        "boards": (),
        "runs": (),
        "claim": "LIMe is better.",
        "claims": tuple(Claim(**{"arm": "lime", "direction": "lower", **each}) for each in claims),
        "metrics": {**{row.metric: Metric() for row in rows}, **(metrics or {})},
        **changes,
    }
    return StudyResult(seeds=tuple(seeds), rows=tuple(rows), **fields)


def a_comparison(
    values, *, boards=("b",), conditions=("tokens",), metric="validation loss", **changes
):
    """Return the result of a study: arm to its values, seed by seed, on every board."""
    runs = tuple(
        RunRecord(
            name=f"{board}/{arm}-s{seed}", run_id=f"{board}{arm}{seed}", folder="", board=board,
            state="diverged" if value is None else "ended", arm=arm, seed=seed,
            conditions=conditions, metrics={} if value is None else {metric: value},
            note="step 20: not finite" if value is None else "",
        )
        for board in boards
        for arm, of_arm in values.items()
        for seed, value in enumerate(of_arm)
    )  # fmt: skip
    arms = tuple(Arm(name=arm, steps=100, parameters=7) for arm in values)
    fields = {
        "boards": tuple(
            Board(
                name=board,
                metric=metric,
                conditions=tuple(Condition(name=name, arms=arms) for name in conditions),
            )
            for board in boards
        ),
        **changes,
    }
    seeds = tuple(range(max(map(len, values.values()))))
    return StudyResult(
        command="layermem study b", name="b", title="a study", seeds=seeds, metrics=dict(METRICS),
        runs=runs, **fields,
    )  # fmt: skip
