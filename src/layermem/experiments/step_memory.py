"""How much memory a training step of each arm takes: measured once, and kept in a file.

Nothing that is trained follows from it, so what was measured of other sizes, or on another machine,
is measured again.

It does not know: what an arm is, how a peak is measured.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from layermem.config import Run
from layermem.efficiency.measuring import (
    MakeStep,
    Shape,
    describe_machine,
    measure_peak_of,
    release_memory,
)
from layermem.experiments.step_times import base_of_step
from layermem.results.arena import MeasuredMemory
from layermem.results.files import read_result, to_json
from layermem.runs import write_atomically

logger = logging.getLogger(__name__)


def measured_memory(
    file: Path, base: Run, steps: Mapping[str, MakeStep], shape: Shape
) -> MeasuredMemory:
    """Return the peak of a step of each arm: as in ``file``, else measured and written there.

    ``base`` is the run whose sizes the models have. ``steps`` make a step of each arm; each is
    measured in a process of its own.
    """
    machine = describe_machine(shape.device)
    memory = MeasuredMemory(machine=machine, base=base_of_step(base), peaks={})
    if file.exists():
        try:
            known = read_result(MeasuredMemory, file)
        except ValueError as error:
            raise ValueError(f"{error}; delete it: it is measured again") from error
        if (known.machine, known.base) == (machine, memory.base):
            memory = known
    missing = [arm for arm in steps if arm not in memory.peaks]
    # The models whose steps were timed.
    release_memory(shape.device)
    for number, arm in enumerate(missing):
        logger.info("measuring the memory of a step, arm %d of %d", number + 1, len(missing))
        peak = measure_peak_of(steps[arm], shape)
        memory = replace(memory, peaks={**memory.peaks, arm: peak})
        write_atomically(file, to_json(memory))
    return memory
