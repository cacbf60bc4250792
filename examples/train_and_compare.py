"""Trains a plain decoder and LIMe on arithmetic, seed by seed, and prints how they compare.

Each variant starts from the same shared weights and sees the same batches. The defaults take about
five minutes on one CPU core; a run that has ended is not trained again.

    python examples/train_and_compare.py --seeds 2 --out runs/example
"""

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path

from layermem_bench import presets
from layermem_bench.evals.solving import evaluate
from layermem_bench.run.training import train


def solve_with_each(variant: str, seeds: int, steps: int, problems: int, out: Path) -> list[float]:
    """Train one variant on every seed; return the share of test problems that each run solves."""
    shares = []
    for seed in range(seeds):
        # A run is data: a preset, and what differs from it.
        run = replace(presets.get_preset("tiny-aet-4"), variant=variant, seed=seed, max_steps=steps)
        run = replace(run, eval_every=steps, save_every=0)
        run = replace(run, task=replace(run.task, validation=problems, test=problems))
        folder = train(run, out / f"{variant}-s{seed}", resume=True, evaluate=evaluate)
        shares.append(json.loads(folder.result.read_text(encoding="utf-8"))["accuracy"])
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2, help="seeds of each variant")
    parser.add_argument("--steps", type=int, default=1500, help="training steps (preset: 3750)")
    parser.add_argument("--problems", type=int, default=500, help="validation and test problems")
    parser.add_argument("--out", type=Path, default=Path("runs/example"), help="folder of the runs")
    options = parser.parse_args()

    plain, lime = (
        solve_with_each(variant, options.seeds, options.steps, options.problems, options.out)
        for variant in ("plain", "lime")
    )
    for seed, (share_of_plain, share_of_lime) in enumerate(zip(plain, lime, strict=True)):
        print(f"seed {seed}: plain {share_of_plain:.1%} solved, LIMe {share_of_lime:.1%}")
    gap = statistics.mean(lime) - statistics.mean(plain)
    print(f"LIMe solves {gap:+.1%} more on average; intervals: layermem report {options.out}")


if __name__ == "__main__":
    main()
