"""How often a study tells a difference that is there, and one that is not, by simulation.

The spread of a pair is read from docs/records: the standard deviation, over seeds, of an arm's
validation loss minus the first arm's. Tables of arms are drawn with it, in which one arm differs
from the first by so much. A test sees that if its p-value is below 0.05: a paired t-test of this
arm alone, the share of all signs alone, or t-tests of all arms by Holm's method. Of no difference,
the share of tables in which any arm's is seen by Holm's method is shown.

    python benchmarks/power.py
"""

import argparse
import statistics
from itertools import product
from pathlib import Path

import numpy as np
from scipy import stats

from layermem_bench.config.typed_dicts import read_result
from layermem_bench.statistics import LEVEL, holm
from layermem_bench.studies.result import LOSS, StudyResult

RECORDS = Path(__file__).parents[1] / "docs" / "records"
STEPS, SEEDS, DIFFERENCES = 1600, (5, 8), (0.0, 0.005, 0.01, 0.02)
# How much wider one arm, which does not differ, varies in the last rows.
WIDER = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", default="*", help="which records, as a pattern of names")
    parser.add_argument("--arms", type=int, default=6, help="arms of a table, the first with them")
    parser.add_argument("--tables", type=int, default=1500, help="tables that are drawn")
    options = parser.parse_args()
    spreads = spreads_of_records(options.records)
    low, spread, high = (float(np.quantile(spreads, share)) for share in (0.25, 0.5, 0.75))
    print(f"{len(spreads)} spreads of pairs: {spread:.4f}, quartiles {low:.4f} and {high:.4f}\n")
    print("| seeds | spread | true difference | alone | signs alone | Holm |")
    print("| --- | --- | --- | --- | --- | --- |")
    others = options.arms - 2
    rows = [
        (seeds, f"{of:.4f}", [of] * (others + 1), true)
        for seeds, of, true in product(SEEDS, (spread, high), DIFFERENCES)
    ]
    wide = [spread] * others + [WIDER * spread]
    rows += [(seeds, f"{spread:.4f}, of one arm {WIDER} times", wide, 0.0) for seeds in SEEDS]
    for seeds, said, of_arms, true in rows:
        shares = seen(np.random.default_rng(0), seeds, of_arms, true, options.tables)
        print(f"| {seeds} | {said} | {true} | {' | '.join(f'{s:.1%}' for s in shares)} |")


def spreads_of_records(pattern: str) -> list[float]:
    """Return the spread of each arm's pairs with the first arm, of trainings of 1,600 steps; runs
    that stand in several tables count once."""
    spreads = {}
    for path in sorted(RECORDS.glob(f"{pattern}.json")):
        if '"kind": "study"' not in path.read_text(encoding="utf-8"):
            continue
        result = read_result(StudyResult, path)
        for board, condition in ((b, c) for b in result.boards for c in b.conditions):
            values = result.values(board.name, condition.name, LOSS)
            ids = {(run.arm, run.seed): run.run_id for run in result.of(board.name, condition.name)}
            arms = [arm.name for arm in condition.arms if arm.steps == STEPS]
            for arm in arms[1:]:
                pairs = {
                    ids[arm, seed]: value - values[arms[0]][seed]
                    for seed, value in values.get(arm, {}).items()
                    if seed in values[arms[0]]
                }
                if len(pairs) >= min(SEEDS):
                    spreads[frozenset(pairs)] = statistics.stdev(pairs.values())
    return sorted(spreads.values())


def seen(
    generator: np.random.Generator, seeds: int, spreads: list[float], true: float, tables: int
) -> tuple[float, float, float]:
    """Return the shares of tables in which the first of some arms is told from the plain decoder:
    alone, by all signs, and by Holm's method (of no true difference: in which any arm is)."""
    # Half of a pair's variance is the plain decoder's, which all pairs of a table share.
    plain = generator.normal(0, spreads[0] / 2**0.5, (tables, 1, seeds))
    own = np.sqrt(np.square(spreads) - spreads[0] ** 2 / 2)[:, None]
    differences = generator.normal(0, 1, (tables, len(spreads), seeds)) * own - plain
    differences[:, 0] -= true
    p_values = stats.ttest_1samp(differences, 0, axis=-1).pvalue
    adjusted = np.array([holm(row) for row in p_values.tolist()])
    first, signs = differences[:, 0], np.array(list(product((1, -1), repeat=seeds)))
    as_far = np.abs(first @ signs.T) >= np.abs(first.sum(-1))[:, None] - 1e-12
    together = adjusted[:, 0] if true else adjusted.min(-1)
    found = p_values[:, 0], as_far.mean(-1), together
    alone, by_signs, by_holm = (float((each < LEVEL).mean()) for each in found)
    return alone, by_signs, by_holm


if __name__ == "__main__":
    main()
