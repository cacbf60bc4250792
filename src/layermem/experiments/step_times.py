"""How long a training step of each arm takes: measured once, and kept in a file.

Numbers of steps at equal training time follow from it, so that another measurement would mean other
runs.

It does not know: what an arm is, how many steps follow.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

import torch

from layermem.config import Run
from layermem.efficiency.measuring import Shape, describe_machine, time_interleaved
from layermem.results.arena import MeasuredSteps
from layermem.results.files import read_result, to_json
from layermem.runs import write_atomically

_ROUNDS = 9


def measured_steps(
    file: Path,
    base: Run,
    arms: Sequence[str],
    tokens: int,
    prepare: Callable[[Shape], Mapping[str, Callable[[], None]]],
) -> MeasuredSteps:
    """Return how long a step of each arm takes: as in ``file``, else measured and written there.

    The first arm is what the others are compared with. ``base`` is the run whose batch is taken,
    ``tokens`` the length of its sequences; ``prepare`` returns a step of each arm.
    """
    if file.exists():
        return _read(file, base, arms)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape = Shape(
        batch=min(base.compute.micro_batch, base.optim.batch_size),
        tokens=tokens,
        device=device,
        precision="float32" if device == "cpu" else "bfloat16",
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = time_interleaved(prepare(shape), _ROUNDS, device)
    finally:
        torch.set_num_threads(threads)
    first = seconds[arms[0]]
    steps = MeasuredSteps(
        machine=describe_machine(device),
        base=base.id,
        rounds=_ROUNDS,
        seconds={arm: median(times) for arm, times in seconds.items()},
        ratios={
            arm: median(a / b for a, b in zip(times, first, strict=True))
            for arm, times in seconds.items()
        },
    )
    write_atomically(file, to_json(steps))
    return steps


def _read(file: Path, base: Run, arms: Sequence[str]) -> MeasuredSteps:
    steps = read_result(MeasuredSteps, file)
    if steps.base != base.id or set(arms) - set(steps.ratios):
        raise ValueError(
            f"{file} was measured with another model, other data, sizes or arms "
            f"({', '.join(steps.ratios)}); delete it to measure again (runs at equal time then "
            "have other lengths), or choose another --out"
        )
    return steps
