"""Training one run: from its config to a folder with metrics, checkpoints and the final model."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from transformers import TrainingArguments, set_seed

from layermem_base.files import write_atomically
from layermem_bench.analysis.earlier_stages import (
    Lineage,
    check_earlier_stages,
    stage_of,
    write_lineage,
)
from layermem_bench.config.run import Run
from layermem_bench.results.run_folder import RunFolder, read_config, recorded_run, temporary_folder
from layermem_bench.train.extending import extends
from layermem_bench.train.host_models import merge_lora
from layermem_bench.train.learning import Evaluate, Learning, Save, prepare_learning
from layermem_bench.train.model_card import write_model_card
from layermem_bench.train.processes import wait_for_all
from layermem_bench.train.run_config import claim_folder, record_beginning
from layermem_bench.train.sequences import (
    data_digest,
    prompts_digest,
    starting_weights,
    text_digest,
)
from layermem_bench.train.setup import (
    check_options,
    check_router_lr,
    check_sharing,
    training_arguments,
)
from layermem_bench.train.sharded import ShardedTrainer
from layermem_bench.train.stopping import NotFiniteError
from layermem_bench.train.trainer import Trainer

logger = logging.getLogger(__name__)


def train(
    run: Run,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    evaluate: Evaluate | None = None,
) -> RunFolder:
    """Train; return the folder, which holds the config, the metrics and the final model.

    ``resume`` goes on from the newest checkpoint in ``out``, or from the beginning where there is
    none; a run that has ended is left as it is. ``evaluate`` (``evals.solving.evaluate``) has the
    model of a task solve problems: at each validation, and at the end for ``result.json``. SIGTERM
    and Ctrl-C stop the run with a checkpoint; a Ctrl-C is then raised (``KeyboardInterrupt``).
    """
    if run.host.model is None:
        check_sharing(run, check_options(run.variant, run.model))
        check_router_lr(run)
    folder = RunFolder(out)
    args = training_arguments(run, folder)
    is_first = args.process_index == 0
    if is_first:
        folder.create()
    with folder.locked() if is_first else nullcontext():
        with wait_for_all():
            if is_first:
                if resume:
                    _check_extension(run, folder, evaluate)
                claim_folder(folder, run, resume=resume)
        # Only now: a run that is extended has a final model until the folder is claimed.
        with wait_for_all():
            has_ended = folder.final.exists()
            prepared = None if has_ended else _prepare(run, folder, args, evaluate)
        if prepared is None:
            logger.info("%s has ended already", folder.path)
        else:
            _train(run, folder, *prepared, folder.latest_checkpoint() if resume else None)
    return folder


def _check_extension(run: Run, folder: RunFolder, evaluate: Evaluate | None) -> None:
    """Raise where a run that is to have more steps would go on with other data or weights: before
    the run is taken back to the steps before its learning rates fell."""
    if not folder.config.exists() or not extends(recorded_run(folder), run):
        return
    about, learning = read_config(folder.config)[1], prepare_learning(run, evaluate)
    now = {
        "data": data_digest(learning.train_data, learning.validation_data),
        "weights": starting_weights(run),
    }
    if others := [name for name in now if about.get(name) not in (None, now[name])]:
        raise ValueError(
            f"{folder.path} cannot go on to max_steps={run.max_steps}: its {' and '.join(others)} "
            "are others now. Put back what they were, or begin again in another --out"
        )


def _prepare(
    run: Run, folder: RunFolder, args: TrainingArguments, evaluate: Evaluate | None
) -> tuple[Learning, Lineage]:
    """Return what the run learns, and what trained the model that it starts from."""
    learning = prepare_learning(run, evaluate)
    earlier = check_earlier_stages(run, learning.validation_data.documents)
    if args.process_index == 0:
        beginning = {
            "data": data_digest(learning.train_data, learning.validation_data),
            "text": text_digest(learning.train_data),
            "precision": "bfloat16" if args.bf16 else "float32",
            "weights": starting_weights(run),
            "trained_before_by": str(earlier) or None,
        }
        record_beginning(folder, run, beginning)
    return learning, earlier


def _train(
    run: Run, folder: RunFolder, learning: Learning, earlier: Lineage, checkpoint: Path | None
) -> None:
    """Train from a checkpoint or the beginning, measure the final model, and save it."""
    set_seed(run.seed)
    model = learning.load_model()
    # Every checkpoint says it from the first step on.
    stage = stage_of(run, learning.train_data.documents)
    write_lineage(model.config, earlier.followed_by(stage))
    is_divided = run.compute.shard or run.compute.tensor > 1
    trainer_class = ShardedTrainer if is_divided else Trainer
    trainer = trainer_class(run, folder, model, learning)
    if trainer.is_world_process_zero():
        name, count = type(trainer.model).__name__, trainer.model.num_parameters()
        logger.info("%s, %s parameters, seed %d", name, f"{count:,}", run.seed)
    if checkpoint:
        logger.info("going on from %s", checkpoint)
    with trainer.stop.handle_signals():
        with _record_divergence(trainer, folder):
            ended = trainer.train_from(checkpoint)
            if ended:
                trainer.finite.check_weights()
        if ended and learning.save:
            save = partial(_save_result, trainer, folder, learning.save)
            ended = trainer.stop.run_unless_stopped(save, trainer.args)
        if ended:
            _save_final_model(trainer, folder)
        else:
            logger.info("stopped at step %d; --resume goes on", trainer.state.global_step)


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


def _save_result(trainer: Trainer, folder: RunFolder, save: Save) -> None:
    measured = save(trainer, folder)
    if measured is None:
        return
    solved, problems = measured
    steps, digest = trainer.state.global_step, prompts_digest(problems)
    solved = replace(solved, run_id=trainer.run.id, steps_taken=steps, problems=digest)
    write_atomically(folder.result, solved.to_json())
    for name, text in trainer.learning.describe(folder).results.items():
        logger.info("%s: %s", name, text)


def _save_final_model(trainer: Trainer, folder: RunFolder) -> None:
    """Save model and tokenizer; delete the last step's checkpoint unless the run asks for any."""
    temporary = folder.path / ".final"
    is_first = trainer.is_world_process_zero()
    what = f"the final model, {folder.final},"
    with temporary_folder(temporary, what) if is_first else nullcontext():
        merge_lora(trainer.model)
        trainer.accelerator.wait_for_everyone()
        trainer.save_model(str(temporary))
        trainer.accelerator.wait_for_everyone()
        if is_first:
            write_model_card(temporary, trainer)
            os.replace(temporary, folder.final)
    if is_first and not trainer.run.save_every:
        folder.delete_checkpoint(trainer.run.max_steps)
