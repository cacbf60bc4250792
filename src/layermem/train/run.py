"""Training one run: from its config to a folder with metrics, checkpoints and the final model.

It does not know: presets, the command line.
"""

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from transformers import TrainingArguments, set_seed

from layermem.config import Run, Task
from layermem.lineage import stage_of, write_lineage
from layermem.models.causal_lm import DecoderForCausalLM
from layermem.results.solved import Solved
from layermem.runs import RunFolder, temporary_folder, write_atomically
from layermem.train.arguments import training_arguments
from layermem.train.data_digest import data_digest, prompts_digest, weights_digest
from layermem.train.divergence import NotFiniteError
from layermem.train.earlier_stages import content_of
from layermem.train.lora import merge_lora
from layermem.train.model_card import write_model_card
from layermem.train.processes import wait_for_all
from layermem.train.run_config import claim_folder, record_beginning
from layermem.train.setup import (
    Prepared,
    build_model,
    check_options,
    check_router_lr,
    prepare_run,
)
from layermem.train.sharded import ShardedTrainer
from layermem.train.trainer import Trainer

logger = logging.getLogger(__name__)
# From a model, its tokenizer, a task and the name of a split to the result and every attempt.
Evaluate: TypeAlias = Callable[[Any, Any, Task, str], tuple[Solved, Sequence[Any]]]
# From a run with a host, and what it starts with, to the model of transformers that it trains.
LoadHost: TypeAlias = Callable[[Run, Prepared], Any]


def train(
    run: Run,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    evaluate: Evaluate | None = None,
    load_host: LoadHost | None = None,
) -> RunFolder:
    """Train; return the folder, which holds the config, the metrics and the final model.

    ``resume`` goes on from the newest checkpoint in ``out``, or from the beginning where there is
    none; a run that has ended is left as it is. ``evaluate`` (``evals.solving.evaluate``) has the
    model of a task solve problems: at each validation, and at the end for ``result.json``. SIGTERM
    and Ctrl-C stop the run with a checkpoint; a Ctrl-C is then raised (``KeyboardInterrupt``).
    ``load_host`` (``experiments.finetuning.load_host``) returns the model of a run of transformers.
    """
    if run.host.model is not None and load_host is None:
        raise ValueError(
            f"the run trains {run.host.model}, a model of transformers: use "
            "experiments.finetuning.finetune"
        )
    # The sizes of a saved model, or of a host, are not the run's own.
    if run.model.pretrained is None and run.host.model is None:
        check_options(run.variant, run.model)
        check_router_lr(run)
    folder = RunFolder(out)
    args = training_arguments(run, folder, validates=True)
    if run.compute.shard and args.world_size == 1:
        raise ValueError(
            "compute.shard needs several processes: torchrun --nproc-per-node N -m layermem train"
        )
    is_first = args.process_index == 0
    if is_first:
        folder.create()
    with folder.locked() if is_first else nullcontext():
        with wait_for_all():
            prepared = _claim_and_prepare(run, folder, args, resume=resume)
        if prepared is None:
            logger.info("%s has ended already", folder.path)
        else:
            checkpoint = folder.latest_checkpoint() if resume else None
            solve = evaluate if run.task.name else None
            _train(run, folder, prepared, checkpoint, solve, load_host)
    return folder


def _claim_and_prepare(
    run: Run, folder: RunFolder, args: TrainingArguments, *, resume: bool
) -> Prepared | None:
    """Claim the folder and prepare the data; return None if the run has ended already."""
    is_first = args.process_index == 0
    if is_first:
        claim_folder(folder, run, resume=resume)
    if folder.final.exists():
        return None
    prepared = prepare_run(run)
    if is_first:
        beginning = {
            "data": data_digest(prepared.train_data, prepared.validation_data),
            "precision": "bfloat16" if args.bf16 else "float32",
            "weights": weights_digest(run.model.pretrained or run.host.model),
            "trained_before_by": str(prepared.earlier) or None,
        }
        record_beginning(folder, run, beginning)
    return prepared


def _train(
    run: Run,
    folder: RunFolder,
    prepared: Prepared,
    checkpoint: Path | None,
    evaluate: Evaluate | None,
    load_host: LoadHost | None,
) -> None:
    """Train from a checkpoint or the beginning, solve the test problems, save the final model."""
    tokenizer = prepared.tokenizer
    set_seed(run.seed)
    if load_host and run.host.model:
        model = load_host(run, prepared)
    else:
        model = build_model(run, tokenizer)
    # Every checkpoint says it from the first step on.
    write_lineage(model.config, prepared.earlier.followed_by(stage_of(run, content_of(run))))
    trainer = _trainer_class(run, prepared)(
        run,
        folder,
        model,
        prepared.train_data,
        prepared.validation_data,
        tokenizer,
        collate=prepared.collate,
        evaluate=partial(_solve_validation, evaluate, tokenizer, run.task) if evaluate else None,
    )
    if trainer.is_world_process_zero():
        name, count = type(trainer.model).__name__, trainer.model.num_parameters()
        logger.info("%s, %s parameters, seed %d", name, f"{count:,}", run.seed)
    if checkpoint:
        logger.info("going on from %s", checkpoint)
    with trainer.stop.handle_signals():
        with _record_divergence(trainer, folder):
            ended = trainer.train_from(checkpoint)
            if ended:
                trainer.check_weights()
        if ended and evaluate:
            solve = partial(_save_result, trainer, folder, evaluate, tokenizer)
            ended = trainer.stop.run_unless_stopped(solve, trainer.args)
        if ended and prepared.records and trainer.is_world_process_zero():
            prepared.records.save_results(trainer, folder)
        if ended:
            _save_final_model(trainer, folder)
        else:
            logger.info("stopped at step %d; --resume goes on", trainer.state.global_step)


def _trainer_class(run: Run, prepared: Prepared) -> type[Trainer]:
    if prepared.records is not None:
        return prepared.records.trainer
    return ShardedTrainer if run.compute.shard else Trainer


@contextmanager
def _record_divergence(trainer: Trainer, folder: RunFolder) -> Iterator[None]:
    """Write a record if the block diverges; an earlier record is deleted at its beginning."""
    is_first = trainer.is_world_process_zero()
    if is_first:
        folder.diverged.unlink(missing_ok=True)
    try:
        yield
    except NotFiniteError as error:
        if is_first:
            folder.record_divergence(trainer.run.id, trainer.state.global_step, str(error))
        raise


def _solve_validation(
    evaluate: Evaluate, tokenizer: Any, task: Task, model: DecoderForCausalLM
) -> dict[str, float]:
    """Return the shares of validation problems that a model solves, as columns of metrics."""
    solved, _ = evaluate(model, tokenizer, task, "validation")
    return {"val_accuracy": solved.accuracy, "val_steps": solved.steps}


def _save_result(trainer: Trainer, folder: RunFolder, evaluate: Evaluate, tokenizer: Any) -> None:
    """Have the trained model solve the test problems; save the result and the attempts."""
    solved, attempts = evaluate(trainer.model, tokenizer, trainer.run.task, "test")
    if not trainer.is_world_process_zero():
        return
    rows = [attempt.row() for attempt in attempts]
    solved = replace(
        solved,
        run_id=trainer.run.id,
        steps_taken=trainer.state.global_step,
        problems=prompts_digest([row["prompt"] for row in rows]),
    )
    write_atomically(folder.attempts, "".join(f"{json.dumps(row)}\n" for row in rows))
    write_atomically(folder.result, solved.to_json())


def _save_final_model(trainer: Trainer, folder: RunFolder) -> None:
    """Save model and tokenizer to a temporary folder and move it to its place.

    The last step's checkpoint is deleted unless the run asks for checkpoints.
    """
    temporary = folder.path / ".final"
    is_first = trainer.is_world_process_zero()
    what = f"the final model, {folder.final},"
    with temporary_folder(temporary, what) if is_first else nullcontext():
        merge_lora(trainer.model)
        trainer.accelerator.wait_for_everyone()
        trainer.save_model(str(temporary))
        trainer.accelerator.wait_for_everyone()
        if is_first:
            precision = "bfloat16" if trainer.args.bf16 else "float32"
            groups = trainer.unwrapped_optimizer().param_groups
            write_model_card(temporary, trainer.run, folder, trainer.model, groups, precision)
            os.replace(temporary, folder.final)
    if is_first and not trainer.run.save_every:
        folder.delete_checkpoint(trainer.run.max_steps)
