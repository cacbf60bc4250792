"""How long a training step of each arm of a board takes.

The file of measured times stays, as numbers of steps at equal time follow from it.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from layermem_base.files import write_atomically
from layermem_bench.config.computing import choose_loss_chunk, uses_bfloat16
from layermem_bench.config.run import Run
from layermem_bench.config.typed_dicts import read_result, to_json
from layermem_bench.costs.measuring import (
    Shape,
    Step,
    describe_machine,
    make_training_step,
    step_of,
    time_interleaved,
)
from layermem_bench.costs.model_sizes import model_sizes
from layermem_bench.run.setup import load_host
from layermem_bench.studies.definition import Board
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
    tokens, chunk = tokens_of_a_sequence(run), 0
    # Models of transformers have all logits at once.
    if run.host.model is None:
        vocabulary = model_sizes(run)[0]["vocab_size"]
        chunk = choose_loss_chunk(run.compute.loss_chunk, batch * tokens, vocabulary)
    return Shape(
        batch=batch,
        micro_batches=max(1, run.optim.batch_size // batch),
        tokens=tokens,
        loss_chunk=chunk,
        device="cuda" if torch.cuda.is_available() else "cpu",
        precision="bfloat16" if uses_bfloat16(run.compute.precision) else "float32",
        mode="default" if run.compute.compile else "eager",
        checkpoint_activations=run.compute.checkpoint_activations,
        checkpoint_every=run.compute.checkpoint_every,
    )


def measured_steps(board: Board, out: Path) -> MeasuredSteps:
    """Return how long a step of each arm takes: as in the board's file, else measured and written
    there. Arms that the file lacks are measured against the first arm, all in its shape."""
    arms = _runs_of(board)
    first, shape = board.arms[0].name, shape_of(board.base)
    steps = read_steps(board, out) or MeasuredSteps(
        machine=describe_machine(shape.device),
        base=digest_of_step(board.base),
        rounds=_ROUNDS,
        seconds={},
        ratios={},
    )
    if not (missing := [arm for arm in arms if arm not in steps.ratios]):
        return steps
    timed = {arm: make_step(arms[arm], shape) for arm in arms if arm in (first, *missing)}
    times = time_interleaved(timed, _ROUNDS, shape.device, warm_up=shape.warm_up)
    seconds, ratios, digests = dict(steps.seconds), dict(steps.ratios), dict(steps.arms)
    for arm in missing:
        ratios[arm] = median(a / b for a, b in zip(times[arm], times[first], strict=True))
        # Of an arm that joined later, in the seconds of the first measurement.
        joined = first not in missing
        seconds[arm] = ratios[arm] * seconds[first] if joined else median(times[arm])
        digests[arm] = digest_of_step(arms[arm])
    steps = replace(steps, seconds=seconds, ratios=ratios, arms=digests)
    write_atomically(out / board.name / STEPS, to_json(steps))
    return steps


def _runs_of(board: Board) -> dict[str, Run]:
    return {arm.name: arm.change(board.base) for arm in board.arms}


def step_facts(run: Run) -> tuple[Any, ...]:
    """Return what decides how long a step of a run takes; its seed and its length do not."""
    task, data = run.task, run.data
    of_data = (task.name, task.options) if task.name else (data.block_size, data.tokenizer)
    return run.variant, run.model, run.host, run.compute, run.optim.batch_size, of_data


def digest_of_step(run: Run) -> str:
    """Return a digest of what decides how long a step of a run takes."""
    return hashlib.sha256(repr(step_facts(run)).encode()).hexdigest()[:12]


def read_steps(board: Board, out: Path) -> MeasuredSteps | None:
    """Return what was measured (None: nothing); refuse what does not compare with a measurement of
    today: times of other steps or beside another first arm, further arms on another machine."""
    file, arms, first = out / board.name / STEPS, _runs_of(board), board.arms[0].name
    if not file.exists():
        return None
    steps = read_result(MeasuredSteps, file)
    there: dict[str, str | None] = {"first arm": next(iter(steps.ratios))}
    here = {"first arm": first}
    for arm in arms.keys() & steps.ratios.keys():
        # Of what earlier versions timed is not known what it was.
        there[arm], here[arm] = steps.arms.get(arm), digest_of_step(arms[arm])
    if arms.keys() - steps.ratios.keys():
        there["machine"] = steps.machine
        here["machine"] = describe_machine(shape_of(board.base).device)
    if differing := [what for what in here if there[what] != here[what]]:
        raise ValueError(
            f"{file} was measured with another {', '.join(differing)}: choose another --out, or "
            f"delete it, and with it the runs in {file.parent / 'time'}, whose lengths followed "
            "from it"
        )
    return steps
