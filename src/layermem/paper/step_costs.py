"""Costs of training steps at the sizes of a run: counted in closed form, and measured.

A measurement is repeated, each time with all arms in turn in one process, and each repeat is kept
in a file of its own, so that an interrupted one goes on.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from layermem.config import Run
from layermem.efficiency.measuring import ModelSpec, Shape, describe_machine, measure
from layermem.efficiency.model_sizes import model_sizes
from layermem.results.costs import CostPoint, Costs, Measurement, MeasuringOptions, Mode, Precision
from layermem.results.files import read_result, to_json
from layermem.runs import write_atomically
from layermem.study.costs import count_point


def count(run: Run, arms: Sequence[str]) -> CostPoint:
    """Return what variants cost at a run's sizes on one sequence of it."""
    models, tokens = _models(run, arms)
    return count_point(run.preset, models, tokens)


def measure_once(
    run: Run, arms: Sequence[str], modes: Sequence[Mode], batch: int, repeats: int, file: Path
) -> dict[str, dict[str, Measurement]]:
    """Return mode and arm to what a training step took: as in ``file``, else measured now."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    precision: Precision = "float32" if device == "cpu" else "bfloat16"
    options = MeasuringOptions(
        batch=batch, repeats=repeats, modes=tuple(modes), precision=precision
    )
    machine, point = describe_machine(device), count(run, arms)
    if file.exists():
        costs = read_result(Costs, file)
        kept = costs.points[0]
        if (costs.measuring, costs.machine) != (options, machine) or kept.counted != point.counted:
            raise ValueError(
                f"{file} was measured with other sizes or options, or on another machine; delete "
                "it, or choose another --out"
            )
        return {mode: dict(of_mode) for mode, of_mode in (kept.measured or {}).items()}
    models, tokens = _models(run, arms)
    measured: dict[str, dict[str, Measurement]] = {}
    for mode in modes:
        shape = Shape(batch=batch, tokens=tokens, device=device, precision=precision, mode=mode)
        measured[mode] = measure(models, shape, repeats)
    costs = Costs(
        command="layermem study paper/table9",
        points=(replace(point, measured=measured),),
        machine=machine,
        precision=precision,
        measuring=options,
    )
    write_atomically(file, to_json(costs))
    return measured


def _models(run: Run, arms: Sequence[str]) -> tuple[dict[str, ModelSpec], int]:
    fields, length = model_sizes(run)
    return {arm: (arm, fields) for arm in arms}, round(length)
