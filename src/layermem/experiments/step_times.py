"""How long a training step of each arm takes: measured once, and kept in a file.

Numbers of steps at equal training time follow from it, so that another measurement would mean other
runs: what the file has stays, and arms that it lacks are added.

It does not know: what an arm is, how many steps follow.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from layermem.config import Run
from layermem.efficiency.measuring import Shape, describe_machine, time_interleaved
from layermem.results.arena import MeasuredSteps
from layermem.results.files import read_result, to_json
from layermem.runs import write_atomically
from layermem.train.arguments import uses_bfloat16

_ROUNDS = 9


def measured_steps(
    file: Path,
    base: Run,
    arms: Sequence[str],
    tokens: int,
    prepare: Callable[[Shape], Mapping[str, Callable[[], None]]],
    runs: Path,
) -> MeasuredSteps:
    """Return how long a step of each arm takes: as in ``file``, else measured and written there.

    The first arm is what the others are compared with. ``base`` is the run whose batch is taken,
    ``tokens`` the length of its sequences; ``prepare`` returns a step of each arm. Arms that the
    file lacks are measured against the first arm and added; what it has stays as it is. ``runs``
    is the folder of the runs whose lengths follow, which errors name.
    """
    device = _device()
    known = _read(file, base, arms, device, runs) if file.exists() else None
    first = arms[0]
    missing = [arm for arm in arms if known is None or arm not in known.ratios]
    if known is not None and not missing:
        return known
    shape = shape_of(base, tokens)
    timed = [first, *(arm for arm in missing if arm != first)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        prepared = prepare(shape)
        steps_of_arms = {arm: prepared[arm] for arm in timed}
        times = time_interleaved(steps_of_arms, _ROUNDS, device, warm_up=shape.warm_up)
    finally:
        torch.set_num_threads(threads)
    seconds = {arm: median(times[arm]) for arm in missing}
    ratios = {
        arm: median(a / b for a, b in zip(times[arm], times[first], strict=True)) for arm in missing
    }
    if known is None:
        steps = MeasuredSteps(
            machine=describe_machine(device),
            base=base_of_step(base),
            rounds=_ROUNDS,
            seconds=seconds,
            ratios=ratios,
        )
    else:
        steps = replace(
            known, seconds={**known.seconds, **seconds}, ratios={**known.ratios, **ratios}
        )
    write_atomically(file, to_json(steps))
    return steps


def shape_of(base: Run, tokens: int) -> Shape:
    """Return a step's input, a run's micro-batch of sequences of so many tokens, and how it is
    computed: as the run is."""
    return Shape(
        batch=min(base.compute.micro_batch, base.optim.batch_size),
        tokens=tokens,
        device=_device(),
        precision="bfloat16" if uses_bfloat16(base.compute.precision) else "float32",
        mode="default" if base.compute.compile else "eager",
        checkpoint_activations=base.compute.checkpoint_activations,
    )


def base_of_step(base: Run) -> str:
    """Return twelve hexadecimal digits that stand for a run and what else decides its steps' cost,
    which makes it no other run."""
    compute = base.compute
    how = [base.id, compute.micro_batch, compute.compile, compute.checkpoint_activations]
    return hashlib.sha256(json.dumps(how).encode()).hexdigest()[:12]


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _read(file: Path, base: Run, arms: Sequence[str], device: str, runs: Path) -> MeasuredSteps:
    """Return what was measured; refuse what does not compare with a measurement of today."""
    again = f"delete it, and {runs} with it, whose runs have the lengths that followed from it"
    try:
        steps = read_result(MeasuredSteps, file)
    except ValueError as error:
        raise ValueError(f"{error}; {again}: it is measured again") from error
    wanted = {
        "model, data or sizes": (steps.base, base_of_step(base)),
        "first arm": (next(iter(steps.ratios), ""), arms[0]),
    }
    if set(arms) - set(steps.ratios):
        wanted["machine"] = (steps.machine, describe_machine(device))
    for what, (there, here) in wanted.items():
        if there != here:
            raise ValueError(
                f"{file} was measured with another {what} ({there}, and this is {here}); "
                f"{again}, to measure again, or choose another --out"
            )
    return steps
