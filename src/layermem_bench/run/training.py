"""Training one run: from its config to a folder with metrics, checkpoints and the final model."""

import json
import logging
import os
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
import yaml
from accelerate import Accelerator
from transformers import set_seed

from layermem_base.files import write_atomically
from layermem_bench.config.computing import sequences_at_once, uses_bfloat16
from layermem_bench.config.hashing import digest
from layermem_bench.config.run import Run
from layermem_bench.run.checkpoints import whole_weights
from layermem_bench.run.folder import RunFolder, Solved, read_config, step_of, temporary_folder
from layermem_bench.run.learning import Evaluate, prepare_learning
from layermem_bench.run.loop import Loop
from layermem_bench.run.processes import NotFiniteError, join_processes, process_count
from layermem_bench.run.progress import check_trackers
from layermem_bench.run.run_config import claim_folder, record_beginning
from layermem_bench.run.setup import check_options, merge_lora, weights_digest
from layermem_bench.run.trained_models import check_earlier_stages, stage_of, write_lineage

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
    and Ctrl-C stop the steps with a checkpoint; a Ctrl-C is then raised (``KeyboardInterrupt``).
    """
    if run.host.model is None:
        check_options(run.variant, run.model)
    check_trackers(run)
    sequences_at_once(run, process_count())
    folder = RunFolder(out)
    accelerator = join_processes(run, folder.path)
    is_first = accelerator.is_main_process
    if is_first:
        folder.create()
    with folder.locked() if is_first else nullcontext():
        if is_first:
            claim_folder(folder, run, resume=resume)
        accelerator.wait_for_everyone()
        if folder.final.exists():
            logger.info("%s has ended already", folder.path)
        else:
            _train(run, folder, accelerator, evaluate)
        accelerator.wait_for_everyone()
    return folder


def _train(
    run: Run, folder: RunFolder, accelerator: Accelerator, evaluate: Evaluate | None
) -> None:
    """Train from the newest checkpoint or the beginning, measure the final model, and save it."""
    learning = prepare_learning(run, evaluate)
    earlier = check_earlier_stages(run, learning.validation_data.documents)
    if accelerator.is_main_process:
        data = learning.train_data, learning.validation_data
        beginning = {
            "data": digest([split.identity() for split in data]),
            "text": learning.text_digest,
            "precision": "bfloat16" if uses_bfloat16(run.compute.precision) else "float32",
            "weights": weights_digest(run.model.pretrained or run.host.model, run.host.revision),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "trained_before_by": str(earlier) or None,
        }
        record_beginning(folder, run, beginning)
    checkpoint = folder.latest_checkpoint()
    set_seed(run.seed)
    model = learning.load_model()
    _end_as_in_training(model, learning.tokenizer)
    # Every checkpoint says it from the first step on.
    stage = stage_of(run, learning.train_data.documents)
    write_lineage(model.config, replace(earlier, stages=(*earlier.stages, stage)))
    if accelerator.is_main_process:
        folder.drop_rows_after(step_of(checkpoint) if checkpoint else -1)
        folder.diverged.unlink(missing_ok=True)
        count = f"{model.num_parameters():,}"
        logger.info("%s, %s parameters, seed %d", type(model).__name__, count, run.seed)
    if checkpoint:
        logger.info("going on from %s", checkpoint)
    # Whatever making the model has drawn.
    set_seed(run.seed)
    loop = Loop(run, folder, model, learning, accelerator, checkpoint)
    try:
        with loop.stop.handle_signals():
            ended = loop.train()
            if not ended:
                logger.info("stopped at step %d; --resume goes on", loop.step)
    except NotFiniteError as error:
        if loop.is_first:
            folder.record_divergence(run.id, loop.step, str(error))
        raise
    if ended:
        # The last step has been saved: what stops the process now costs no training.
        if learning.evaluate:
            _save_result(loop, learning.evaluate)
        _save_final_model(loop)


def _end_as_in_training(model: Any, tokenizer: Any) -> None:
    """Have the texts that a model generates end where those that it is trained on do."""
    end, known = tokenizer.eos_token_id, model.generation_config.eos_token_id
    ends = known if isinstance(known, list) else [known] if known is not None else []
    if end is not None and end not in ends:
        model.generation_config.eos_token_id = [end, *ends]
        model.config.get_text_config().eos_token_id = end


def _save_result(loop: Loop, evaluate: Evaluate) -> None:
    """Have the final model solve the test problems; write each attempt, and the result."""
    run, folder = loop.run, loop.folder
    # A run that goes on from its last step has validated nothing.
    loop.model.eval()
    solved, attempts = evaluate(loop.model, loop.learning.tokenizer, run.task, "test")
    if not loop.is_first:
        return
    rows = [attempt.row() for attempt in attempts]
    write_atomically(folder.attempts, "".join(f"{json.dumps(row)}\n" for row in rows))
    solved = replace(
        solved,
        run_id=run.id,
        steps_taken=loop.step,
        problems=digest([row["prompt"] for row in rows]),
        solutions=digest([row["solution"] for row in rows]),
    )
    write_atomically(folder.result, solved.to_json())
    for name, text in _describe(solved).items():
        logger.info("%s: %s", name, text)


def _save_final_model(loop: Loop) -> None:
    """Save model and tokenizer; delete checkpoints unless the run asks for any."""
    run, folder = loop.run, loop.folder
    if run.host.train == "lora":
        merge_lora(loop.model)
    weights = whole_weights(loop.model)
    if not loop.is_first:
        return
    temporary = folder.path / ".final"
    with temporary_folder(temporary, f"the final model, {folder.final},"):
        loop.write_model(temporary, weights)
        # Below what ``save_pretrained`` says of the model.
        with (temporary / "README.md").open("a", encoding="utf-8") as card:
            card.write(_card_of_training(run, folder, loop.learning.description))
        os.replace(temporary, folder.final)
    if not run.save_every:
        for checkpoint in folder.complete_checkpoints():
            folder.delete_checkpoint(step_of(checkpoint))


def _card_of_training(run: Run, folder: RunFolder, data: str) -> str:
    """Return what a model card says of the training and its results; ``data``: what the model was
    trained on."""
    rows, optim = folder.rows(), run.optim
    told = {
        "run": f"{run.preset}, {run.variant}, seed {run.seed}",
        "started from": run.model.pretrained or run.host.model or "new weights",
        "training data": data,
        "steps": f"{run.max_steps:,} of {optim.batch_size:,} sequences",
        "tokens": f"{max((row['tokens'] for row in rows), default=0):,}",
        "learning rate": f"{optim.lr:g}, {optim.schedule} to {optim.min_lr:g}",
    }
    losses = [f"{row['val_loss']:.4f}" for row in rows if "val_loss" in row]
    if losses:
        told["validation loss (nats a token)"] = losses[-1]
    if folder.result.exists():
        told |= _describe(Solved.from_json(folder.result.read_text(encoding="utf-8")))
    lines = [f"| {name} | {' '.join(v.replace('|', '').split())} |" for name, v in told.items()]
    about = yaml.safe_dump(read_config(folder.config)[1], sort_keys=False)
    table = "\n".join(["|  | value |", "|---|---|", *lines])
    return f"\n## Training\n\nOne run of one seed.\n\n{table}\n\n```yaml\n{about}```\n"


def _describe(solved: Solved) -> dict[str, str]:
    """Return what a model solves of the test problems, by what each number is of."""
    low, high = solved.interval
    interval = f"95% interval over problems: {low:.1%} to {high:.1%}"
    return {
        "test problems": f"{solved.count:,}",
        "right final answer": f"{solved.accuracy:.1%} ({interval})",
        "every step right": f"{solved.steps:.1%}",
        "right by chance": f"{solved.chance:.1%}",
    }
