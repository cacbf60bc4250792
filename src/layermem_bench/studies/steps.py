"""How long a training step of each arm of a board takes.

The file of measured times stays, as numbers of steps at equal time follow from it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from layermem_base.files import write_atomically
from layermem_bench.config.computing import choose_loss_chunk, uses_bfloat16
from layermem_bench.config.result_files import read_result, to_json
from layermem_bench.config.run import Run
from layermem_bench.costs.measuring import (
    Shape,
    Step,
    describe_machine,
    make_training_step,
    step_of,
    time_interleaved,
)
from layermem_bench.costs.model_sizes import model_sizes
from layermem_bench.run.host_models import load_host
from layermem_bench.studies.result import MeasuredSteps
from layermem_bench.tasks.registry import vocabulary_and_length
from layermem_bench.text.tokenizers import load_tokenizer

STEPS = "steps.json"
"""File of a board's folder."""
_ROUNDS = 9


def make_step(run: Run, shape: Shape) -> Step:
    """Build a run's model and return what takes one training step of it."""
    if run.host.model is not None:
        return step_of(load_host(run), shape)
    fields, _ = model_sizes(run)
    return make_training_step((run.variant, fields | run.model.variant_fields()), shape)


def tokens_of_a_sequence(run: Run) -> int:
    """Return the tokens of a training sequence; of a task, the mean over its problems."""
    if run.host.model is None:
        length = model_sizes(run)[1]
    elif run.task.name is None:
        length = run.data.block_size
    else:
        length = vocabulary_and_length(run.task, load_tokenizer(str(run.host.model)))[1]
    return max(2, round(length))


def shape_of(run: Run) -> Shape:
    """Return a step's micro-batch of sequences, and how it is computed: as the run is."""
    batch = min(run.compute.micro_batch, run.optim.batch_size)
    tokens = tokens_of_a_sequence(run)
    chunk = 0
    # Models of transformers have all logits at once.
    if run.host.model is None:
        vocabulary = model_sizes(run)[0]["vocab_size"]
        chunk = choose_loss_chunk(run.compute.loss_chunk, batch * tokens, vocabulary)
    return Shape(
        batch=batch,
        micro_batches=max(1, run.optim.batch_size // batch),
        tokens=tokens,
        loss_chunk=chunk,
        device=device(),
        precision="bfloat16" if uses_bfloat16(run.compute.precision) else "float32",
        mode="default" if run.compute.compile else "eager",
        checkpoint_activations=run.compute.checkpoint_activations,
        checkpoint_every=run.compute.checkpoint_every,
    )


def device() -> str:
    """Return the device of a run here."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def measured_steps(file: Path, base: Run, arms: Mapping[str, Run], runs: Path) -> MeasuredSteps:
    """Return how long a step of each arm takes: as in ``file``, else measured and written there.

    ``base`` is the run whose sizes and batch are taken. Arms that the file lacks are measured
    against the first arm. ``runs`` is the folder of the runs whose lengths follow, for errors.
    """
    shape = shape_of(base)
    if file.exists():
        steps = read_steps(file, base, arms, runs)
    else:
        machine, digest = describe_machine(shape.device), base_of_step(base)
        steps = MeasuredSteps(machine=machine, base=digest, rounds=_ROUNDS, seconds={}, ratios={})
    missing = [arm for arm in arms if arm not in steps.ratios]
    if not missing:
        return steps
    first = next(iter(arms))
    timed = {arm: run for arm, run in arms.items() if arm in (first, *missing)}
    times = time_steps(timed, shape, _ROUNDS)
    seconds, ratios, digests = dict(steps.seconds), dict(steps.ratios), dict(steps.arms)
    for arm in missing:
        ratios[arm] = median(a / b for a, b in zip(times[arm], times[first], strict=True))
        # Of an arm that joined later, in the seconds of the first measurement.
        joined = first not in missing
        seconds[arm] = ratios[arm] * seconds[first] if joined else median(times[arm])
        digests[arm] = base_of_step(arms[arm])
    steps = replace(steps, seconds=seconds, ratios=ratios, arms=digests)
    write_atomically(file, to_json(steps))
    return steps


def time_steps(runs: Mapping[str, Run], shape: Shape, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of one thread, or of the GPU, of a step of each run, round by round."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        steps = {name: make_step(run, shape) for name, run in runs.items()}
        return time_interleaved(steps, rounds, shape.device, warm_up=shape.warm_up)
    finally:
        torch.set_num_threads(threads)


def base_of_step(base: Run) -> str:
    """Return a digest of a run and of what else decides its steps' cost."""
    compute = base.compute
    how = [base.id, compute.micro_batch, compute.compile, compute.checkpoint_activations]
    how += [compute.checkpoint_every] if compute.checkpoint_every > 1 else []
    shape = shape_of(base)
    # Neither was measured in earlier versions, whose files are kept where it makes no difference.
    how += [f"{shape.micro_batches} micro-batches"] if shape.micro_batches > 1 else []
    how += [f"chunks of {shape.loss_chunk}"] if shape.loss_chunk else []
    return hashlib.sha256(json.dumps(how).encode()).hexdigest()[:12]


def read_steps(file: Path, base: Run, arms: Mapping[str, Run], runs: Path) -> MeasuredSteps:
    """Return what was measured; refuse what does not compare with a measurement of today."""
    steps = read_result(MeasuredSteps, file)
    wanted = {
        "model, data or sizes": (steps.base, base_of_step(base)),
        "first arm": (next(iter(steps.ratios), ""), next(iter(arms))),
    }
    for arm in arms.keys() & steps.arms.keys():
        wanted[f"arm of the name {arm}"] = (steps.arms[arm], base_of_step(arms[arm]))
    if set(arms) - set(steps.ratios):
        wanted["machine"] = (steps.machine, describe_machine(device()))
    for what, (there, here) in wanted.items():
        if there != here:
            raise ValueError(
                f"{file} was measured with another {what} ({there}, and this is {here}): choose "
                f"another --out, or delete it, and {runs} with it, whose runs have the lengths "
                "that followed from it"
            )
    return steps
