"""How a run is carried out: transformers' ``TrainingArguments``, number format, loss chunks."""

import os

import torch
from transformers import TrainingArguments

from layermem.config import Run
from layermem.runs import RunFolder
from layermem.train.processes import form_cpu_group

# A micro-batch whose float32 logits take no more bytes than this has them all in memory at once.
# Its loss is computed in one piece, and agrees with earlier recorded losses to the last bit.
_MAX_LOGITS_BYTES = 2**30


def training_arguments(run: Run, folder: RunFolder) -> TrainingArguments:
    """Translate a run's config into transformers' arguments; form the group of its processes."""
    compute, optim = run.compute, run.optim
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    micro = min(compute.micro_batch, max(1, optim.batch_size // processes))
    if optim.batch_size % (micro * processes):
        raise ValueError(
            f"optim.batch_size ({optim.batch_size}) must be a multiple of compute.micro_batch "
            f"({micro}) times the number of processes ({processes})"
        )
    if run.regularizer.penalty and micro < 2:
        raise ValueError(
            f"regularizer.penalty={run.regularizer.penalty} needs a covariance over at least 2 "
            f"sequences, and a process computes {micro} at once: raise compute.micro_batch "
            f"({compute.micro_batch}) or optim.batch_size ({optim.batch_size}, over {processes} "
            "processes)"
        )
    form_cpu_group(processes, compute.ddp_timeout)
    args = TrainingArguments(
        output_dir=str(folder.checkpoints),
        max_steps=run.max_steps,
        per_device_train_batch_size=micro,
        per_device_eval_batch_size=micro,
        gradient_accumulation_steps=optim.batch_size // (micro * processes),
        max_grad_norm=optim.clip,
        logging_steps=run.log_every,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        eval_strategy="steps",
        eval_steps=run.eval_every,
        save_strategy="steps" if run.save_every else "no",
        save_steps=run.save_every or run.max_steps,
        save_total_limit=None,
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        prediction_loss_only=True,
        bf16=uses_bfloat16(compute.precision),
        torch_compile=compute.compile,
        use_cpu=not torch.cuda.is_available(),
        seed=run.seed,
        data_seed=run.seed,
        remove_unused_columns=False,
        report_to=list(run.track) or "none",
        run_name=folder.path.name,
        dataloader_pin_memory=torch.cuda.is_available(),
        # Every parameter has a gradient in every step; looking for others takes time.
        ddp_find_unused_parameters=False,
        ddp_timeout=compute.ddp_timeout,
        disable_tqdm=True,
        log_level="warning",
    )
    # With several visible GPUs transformers would use nn.DataParallel, a batch for each GPU.
    args._n_gpu = min(1, args.n_gpu)
    return args


def uses_bfloat16(precision: str) -> bool:
    """Return whether a run of this ``compute.precision`` computes in bfloat16 on this machine."""
    if precision == "auto":
        # Older GPUs emulate bfloat16, slower than they compute in float32.
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return precision == "bfloat16"


def choose_loss_chunk(configured: int | None, tokens: int, vocabulary: int) -> int:
    """Return how many tokens' logits are in memory at once; 0 means all of them.

    ``configured`` is the run's ``compute.loss_chunk``. Where it is None, a micro-batch of few
    logits is not chunked, and one of many has chunks of a quarter of the limit.
    """
    if configured is not None:
        return configured
    bytes_per_token = 4 * vocabulary
    if tokens * bytes_per_token <= _MAX_LOGITS_BYTES:
        return 0
    return max(1, _MAX_LOGITS_BYTES // 4 // bytes_per_token)
