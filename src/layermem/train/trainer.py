"""transformers' Trainer, with our groups, schedule, order of data, checkpoints and metrics.

What differs from it: parameter groups and rates come from the variant (``groups``), the order of
the data from the seed (``order``), checkpoints are whole or absent and hold no pickled arguments
(``RunFolder``), metrics go to metrics.jsonl, a loss that is not finite stops the run, SIGTERM and
Ctrl-C save and stop.

It does not know: any particular variant, presets, where data came from.
"""

import math
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Sampler
from transformers import PrinterCallback, ProgressCallback, TrainingArguments
from transformers.integrations import TensorBoardCallback
from transformers.trainer_utils import EvalLoopOutput

from layermem.config import Run
from layermem.models.counting import forward_flops
from layermem.models.decoder import DecoderForCausalLM
from layermem.runs import RunFolder, step_of
from layermem.train.clock import Clock
from layermem.train.groups import adamw, schedule
from layermem.train.order import Order
from layermem.train.peaks import peak_flops
from layermem.train.progress import Progress
from layermem.train.stopping import Stop
from layermem.train.tracking import continued

# Bytes of float32 logits up to which a micro-batch has them all at once; its loss is then, to the
# last bit, what it always was.
_LOGITS = 2**30


class Sequences(Protocol):
    """A dataset of token sequences: ``input_ids`` and ``labels`` of each."""

    length: float
    """Tokens in a sequence, on average."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> dict[str, Tensor]: ...


class NotFiniteError(RuntimeError):
    """The loss or the gradients are NaN or infinite."""


class Trainer(transformers.Trainer):
    """One run's training loop, which is transformers'."""

    optimizer: Any
    lr_scheduler: Any

    def __init__(
        self,
        run: Run,
        folder: RunFolder,
        model: DecoderForCausalLM,
        train_data: Sequences,
        validation_data: Sequences | None,
        tokenizer: Any,
        *,
        collate: Callable[..., dict[str, Tensor]] | None = None,
        evaluate: Callable[[DecoderForCausalLM], Mapping[str, float]] | None = None,
    ) -> None:
        self.run, self.folder, self._solve = run, folder, evaluate
        length = train_data.length
        self._tokens_per_step = run.optim.batch_size * length
        self._healthy: Tensor | None = None
        self._judged: list[Tensor] = []
        args = arguments(run, folder, validates=validation_data is not None)
        self.stop = Stop(saves_last=evaluate is not None, processes=args.world_size)
        self._clock = Clock()
        self._flops_per_token = 3 * forward_flops(model.config, model.variant, round(length))
        if run.compute.checkpoint_activations:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        super().__init__(
            model=model,
            args=args,
            train_dataset=train_data,
            eval_dataset=validation_data,
            processing_class=tokenizer,
            data_collator=collate,
            callbacks=[Progress(run.max_steps), self.stop, self._clock],
        )
        for shown in (ProgressCallback, PrinterCallback):
            self.remove_callback(shown)
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
                callback.logging_dir = str(folder.path / "tensorboard")

    def train(self, *args: Any, **kwargs: Any) -> Any:
        tracked = "wandb" in self.run.track and self.is_world_process_zero()
        with continued(self.folder) if tracked else nullcontext():
            return super().train(*args, **kwargs)

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        if self.optimizer is None:
            trained, overrides = model or self.model, self.model.variant.overrides
            self.optimizer = adamw(trained, overrides, self.run.optim, self.args.device)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> Any:
        if self.lr_scheduler is None:
            self.lr_scheduler = schedule(
                optimizer or self.optimizer, self.run.optim, self.run.max_steps
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        data = train_dataset if train_dataset is not None else self.train_dataset
        return Order(len(data), self.run.max_steps * self.run.optim.batch_size, self.run.seed)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = super().training_step(*args, **kwargs)
        # Looked at only where the host waits for the device anyway.
        fine = loss.detach().isfinite()
        self._healthy = fine if self._healthy is None else self._healthy & fine
        return loss

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Return transformers' loss; of many tokens over many words a chunk at a time."""
        if chunk := self._loss_chunk(inputs):
            inputs = {**inputs, "loss_chunk": chunk}
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _loss_chunk(self, inputs: Mapping[str, Tensor]) -> int:
        tokens, words = inputs["input_ids"].numel(), self.model.config.vocab_size
        return loss_chunk(self.run.compute.loss_chunk, tokens, words)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        self._check_finite({})
        with self._clock.stopped():
            return super().evaluate(*args, **kwargs)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Return the mean over labels; batches and processes have no weight of their own."""
        self._judged = []
        output = super().evaluation_loop(*args, **kwargs)
        lost, labels = torch.cat(self._judged).cpu().double().sum(0)
        output.metrics["eval_loss"] = float(lost / labels)
        return output

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any
    ) -> tuple[None, None, None]:
        """Note the loss and the labels of each sequence, once, whichever process has them."""
        inputs = self._prepare_inputs(inputs)
        labels, chunk = inputs.pop("labels"), self._loss_chunk(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            if chunk:
                lost = model(**inputs, labels=labels, loss_chunk=chunk, use_cache=False)
                found = summed(lost.token_losses, labels)
            else:
                found = losses(model(**inputs, use_cache=False).logits, labels)
        self._judged.append(self.accelerator.gather_for_metrics(found))
        return None, None, None

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write the checkpoint in a staging folder; it is moved into place whole."""
        self._check_finite({})
        with self._clock.stopped():
            # One process makes the folder and moves it; all write their parts between.
            with self.folder.staged() if self.args.should_save else nullcontext():
                self.accelerator.wait_for_everyone()
                super()._save_checkpoint(model, trial)
                self.accelerator.wait_for_everyone()
            if self.args.should_save:
                self.folder.rotate(self.run.keep, self.state.best_global_step)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.folder.staging)

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        super()._save(output_dir, state_dict)
        # Pickled, and all in it stands in config.yaml.
        (Path(output_dir or self.args.output_dir) / "training_args.bin").unlink(missing_ok=True)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Check the loss, then write the row and hand it to whoever watches."""
        self._check_finite(logs)
        step = self.state.global_step
        row: dict[str, float] = {"step": step, "tokens": round(step * self._tokens_per_step)}
        if "loss" in logs:
            row |= self._training_row(logs)
        elif "eval_loss" in logs:
            row |= {
                "val_loss": logs["eval_loss"],
                "val_perplexity": math.exp(min(logs["eval_loss"], 700.0)),
            }
            if self._solve is not None:
                row |= self._solve(self.model)
        else:
            return
        if self.is_world_process_zero():
            self.folder.append(row)
        super().log(row, start_time)
        if "loss" in logs:
            self._clock.start(step)

    def _training_row(self, logs: Mapping[str, float]) -> dict[str, float]:
        step = self.state.global_step
        groups = [group["name"] for group in self.optimizer.param_groups]
        speed = self._clock.steps_per_second(step) * self._tokens_per_step
        row = {
            "loss": logs["loss"],
            "lr": self._rate(groups.index("decayed")),
            "grad_norm": logs.get("grad_norm", math.nan),
            "flops": round(step * self._tokens_per_step * self._flops_per_token),
            "tokens_per_second": speed,
        }
        own = [i for i, name in enumerate(groups) if name not in ("decayed", "plain")]
        row["router_lr"] = self._rate(own[0]) if own else row["lr"]
        if peak := peak_flops(self.args.device):
            row["model_flops_use"] = speed * self._flops_per_token / (peak * self.args.world_size)
        return row | self.own_metrics()

    def own_metrics(self) -> dict[str, float]:
        """Return what the variant watches of its own parameters."""
        found: dict[str, float] = self.model.variant.metrics(self.model)
        return found

    def _rate(self, group: int) -> float:
        """The rate that the step just taken had; the schedule is one ahead."""
        factor = self.lr_scheduler.lr_lambdas[group]
        return float(self.lr_scheduler.base_lrs[group] * factor(self.state.global_step - 1))

    def _check_finite(self, logs: Mapping[str, float]) -> None:
        healthy = self._healthy is None or bool(self._healthy)
        values = [logs[name] for name in ("loss", "grad_norm") if name in logs]
        if healthy and all(map(math.isfinite, values)):
            return
        last = self.folder.latest()
        good = f"the last good checkpoint is {last}" if last else "there is no checkpoint"
        raise NotFiniteError(
            f"the loss or its gradient is not finite at step {self.state.global_step}; {good}. "
            "Lower optim.lr (or optim.router_lr), or clip more"
        )

    def go(self, checkpoint: Path | None) -> bool:
        """Train from a checkpoint or the beginning; return whether the last step was reached.

        Rows of metrics after the checkpoint are dropped, to be written again.
        """
        if self.is_world_process_zero():
            self.folder.forget_after(step_of(checkpoint) if checkpoint else -1)
        self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        return bool(self.state.global_step >= self.run.max_steps)


def losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return for each sequence the sum of its labels' losses, and their number [B, 2].

    ``logits`` [B, T, V] are of the token after, ``labels`` [B, T] of the token itself; -100: none.
    """
    wanted = nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
    # In float32, as in training.
    lost = nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), wanted.flatten(), reduction="none"
    )
    return summed(lost.view_as(wanted), labels)


def summed(lost: Tensor, labels: Tensor) -> Tensor:
    """Return for each sequence the sum of its tokens' losses [B, T], and its labels [B, 2]."""
    return torch.stack([lost.sum(1), (labels[:, 1:] != -100).sum(1)], dim=1)


def loss_chunk(wanted: int | None, tokens: int, words: int) -> int:
    """Return how many tokens' logits over ``words`` are held at once; 0: all of them."""
    if wanted is not None:
        return wanted
    in_a_part = _LOGITS // 4 // (4 * words)
    return 0 if 4 * tokens * words <= _LOGITS else max(1, in_a_part)


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
