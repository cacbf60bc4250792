"""A run said in the terms of transformers' Trainer, and the processes' group formed as it says.

It does not know: the trainer, models, data.
"""

import os
from datetime import timedelta

import torch
from torch import distributed as dist
from transformers import TrainingArguments

from layermem.config import Run
from layermem.runs import RunFolder


def arguments(run: Run, folder: RunFolder, *, validates: bool) -> TrainingArguments:
    """Say the run in transformers' terms."""
    compute, optim = run.compute, run.optim
    world = int(os.environ.get("WORLD_SIZE", "1"))
    micro = min(compute.micro_batch, max(1, optim.batch_size // world))
    if optim.batch_size % (micro * world):
        raise ValueError(
            f"optim.batch_size ({optim.batch_size}) must be a multiple of compute.micro_batch "
            f"({micro}) times the number of processes ({world})"
        )
    _meet(world, compute.ddp_timeout)
    said = TrainingArguments(
        output_dir=str(folder.checkpoints),
        max_steps=run.max_steps,
        per_device_train_batch_size=micro,
        per_device_eval_batch_size=micro,
        gradient_accumulation_steps=optim.batch_size // (micro * world),
        max_grad_norm=optim.clip,
        logging_steps=run.log_every,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        eval_strategy="steps" if validates else "no",
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
        # Every parameter has a gradient in every step; to look for others takes time.
        ddp_find_unused_parameters=False,
        ddp_timeout=compute.ddp_timeout,
        disable_tqdm=True,
        log_level="warning",
    )
    # A process that sees several GPUs would give each a batch of its own (nn.DataParallel).
    said._n_gpu = min(1, said.n_gpu)
    return said


def _meet(processes: int, seconds: int) -> None:
    """Form the group of processes on CPUs: accelerate, which forms it, has no timeout for them."""
    if processes > 1 and not torch.cuda.is_available() and not dist.is_initialized():
        dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))


def uses_bfloat16(precision: str) -> bool:
    """Whether the arithmetic of a run is bfloat16, here."""
    if precision == "auto":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    return precision == "bfloat16"
