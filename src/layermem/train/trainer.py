"""transformers' Trainer, with our groups, schedule, order of data, checkpoints and metrics.

What differs from it: parameter groups and rates come from the variant (``groups``), the order of
the data from the seed (``order``), checkpoints are whole or absent and hold no pickled arguments
(``RunFolder``) and are resumed under any number of processes (``checkpoints``), metrics go to
metrics.jsonl, a loss or weight that is not finite stops the run, SIGTERM and Ctrl-C save and stop.

It does not know: any particular variant, presets, where data came from.
"""

import itertools
import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Sampler
from transformers import PrinterCallback, ProgressCallback, default_data_collator
from transformers.integrations import TensorBoardCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_pt_utils import nested_gather
from transformers.trainer_utils import EvalLoopOutput

from layermem.config import Run
from layermem.models.causal_lm import DecoderForCausalLM
from layermem.models.counting import count_forward_flops
from layermem.runs import RunFolder, step_of
from layermem.train import checkpoints
from layermem.train.arguments import arguments
from layermem.train.clock import Clock
from layermem.train.groups import adamw, schedule
from layermem.train.losses import loss_chunk, losses, summed
from layermem.train.order import Order
from layermem.train.origin import check_alike, check_origin, origin_of, save_origin
from layermem.train.peaks import peak_flops
from layermem.train.progress import Progress
from layermem.train.stopping import Stop, anywhere
from layermem.train.tracking import continued
from layermem.train.watching import AtBegin, UsedRates

logger = logging.getLogger(__name__)
# Seconds between torchrun's SIGTERM and its SIGKILL, unless --shutdown-timeout says otherwise.
_GRACE = 30.0
# What must be finite, as transformers' logs name it.
_WATCHED = {
    "loss": "the loss",
    "grad_norm": "the gradient",
    "eval_loss": "the validation loss",
}


class Sequences(Protocol):
    """A dataset of token sequences: ``input_ids`` and ``labels`` of each."""

    length: float
    """Tokens in a sequence, on average."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> dict[str, Tensor]: ...


class NotFiniteError(RuntimeError):
    """The loss, the gradients or the weights are NaN or infinite."""


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
        self._clock, self._rates = Clock(), UsedRates()
        self._resumed: Path | None = None
        self._origin = origin_of(run, {"training": train_data, "validation": validation_data})
        self._flops_per_token = 3 * count_forward_flops(model.config, model.variant, round(length))
        if run.compute.checkpoint_activations:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        super().__init__(
            model=model,
            args=args,
            train_dataset=train_data,
            eval_dataset=validation_data,
            processing_class=tokenizer,
            # Not transformers' own for a tokenizer: it adds an attention mask of ones, with which
            # documents of one block are not kept apart.
            data_collator=collate or default_data_collator,
            callbacks=[
                Progress(run.max_steps),
                self.stop,
                self._clock,
                self._rates,
                AtBegin(self._go_on_counting),
            ],
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
        self._check_losses({})
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
        self._check_losses({})
        self.check_weights()
        began = time.perf_counter()
        with self._clock.stopped():
            # One process makes the folder and moves it; all write their parts between.
            with self.folder.staged() if self.args.should_save else nullcontext():
                self.accelerator.wait_for_everyone()
                super()._save_checkpoint(model, trial)
                self._save_unlogged()
                self.accelerator.wait_for_everyone()
            if self.args.should_save:
                self.folder.rotate(self.run.keep, self.state.best_global_step)
        self._warn_of_grace(time.perf_counter() - began)

    def _save_unlogged(self) -> None:
        """Note the losses since the last row, and where the best checkpoint is not."""
        loss = float(nested_gather(self._tr_loss, self.args.parallel_mode).mean())
        if not self.args.should_save:
            return
        place = self.folder.staging / f"checkpoint-{self.state.global_step}"
        checkpoints.save_unlogged(place, loss, self._globalstep_last_logged)
        save_origin(place, self._origin)
        # It would be the path in the staging folder; the best one is found by its step.
        self.state.best_model_checkpoint = None
        self.state.save_to_json(str(place / TRAINER_STATE_NAME))

    def _go_on_counting(self) -> None:
        """Take over the losses since the last row, so that the next one has all of its steps."""
        # From the checkpoint it has how often the run logged, validated and saved until then.
        self.state.compute_steps(self.args, self.run.max_steps)
        noted = checkpoints.load_unlogged(self._resumed) if self._resumed else None
        if noted is not None:
            loss, self._globalstep_last_logged = noted
            self._tr_loss.fill_(loss)

    def _warn_of_grace(self, seconds: float) -> None:
        """Say that torchrun would kill a save as long as this one."""
        if "TORCHELASTIC_RUN_ID" in os.environ and seconds > _GRACE / 2:
            logger.warning(
                "saving took %.0f seconds; torchrun kills its processes %.0f seconds after SIGTERM "
                "unless --shutdown-timeout gives them more",
                seconds,
                _GRACE,
            )

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        place = Path(checkpoint)
        checkpoints.load_optimizer(place, self.model, self.bare_optimizer())
        checkpoints.load_schedule(place, self.lr_scheduler)
        self.check_weights()

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Raise where transformers warns: a checkpoint's weights are the model's, each and all."""
        tied = self.model._tied_weights_keys if self.model.config.tie_word_embeddings else ()
        missing = sorted(set(load_result.missing_keys) - set(tied or ()))
        if missing or load_result.unexpected_keys:
            raise ValueError(
                f"{self._resumed} lacks the weights {missing or 'of nothing'} and has "
                f"{load_result.unexpected_keys or 'none'} that the model has no place for; delete "
                "it to go on from the checkpoint before it"
            )

    def bare_optimizer(self) -> Any:
        """Return the optimiser itself, out of accelerate's wrapper."""
        return getattr(self.optimizer, "optimizer", self.optimizer)

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
        self._check_losses(logs)
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
            "lr": self._rates.used[groups.index("decayed")],
            "grad_norm": logs.get("grad_norm", math.nan),
            "flops": round(step * self._tokens_per_step * self._flops_per_token),
            "tokens_per_second": speed,
        }
        own = [i for i, name in enumerate(groups) if name not in ("decayed", "plain")]
        row["router_lr"] = self._rates.used[own[0]] if own else row["lr"]
        if peak := peak_flops(self.args.device):
            row["model_flops_use"] = speed * self._flops_per_token / (peak * self.args.world_size)
        return row | self.own_metrics()

    def own_metrics(self) -> dict[str, float]:
        """Return what the variant watches of its own parameters."""
        found: dict[str, float] = self.model.variant.metrics(self.model)
        return found

    def _check_losses(self, logs: Mapping[str, float]) -> None:
        """Raise, in all processes, if a loss or gradient since the last look is not finite."""
        bad = [name for name in _WATCHED if not math.isfinite(logs.get(name, 0.0))]
        unhealthy = self._healthy is not None and not bool(self._healthy)
        if anywhere(bool(bad) or unhealthy, self.args):
            what = _WATCHED[bad[0]] if bad else "the loss"
            raise self._not_finite(f"{what} is not finite at step {self.state.global_step}")

    def check_weights(self) -> None:
        """Raise, in all processes, if a weight or a moment of the optimiser is not finite."""
        moments = (
            value
            for state in self.bare_optimizer().state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        )
        whole = checkpoints.all_finite(itertools.chain(self.model.parameters(), moments))
        if anywhere(not bool(whole), self.args):
            raise self._not_finite(
                f"weights or moments of the optimiser are not finite after step "
                f"{self.state.global_step}"
            )

    def _not_finite(self, what: str) -> NotFiniteError:
        saved = self.folder.completed()
        good = f"the last good checkpoint is {saved[-1]}" if saved else "there is no checkpoint"
        return NotFiniteError(f"{what}; {good}. Lower optim.lr (or optim.router_lr), or clip more")

    def go(self, checkpoint: Path | None) -> bool:
        """Train from a checkpoint or the beginning; return whether the last step was reached.

        Rows of metrics after the checkpoint are dropped, to be written again.
        """
        place = checkpoint and checkpoint.name
        check_alike({"checkpoint to go on from": place, **self._origin})
        if checkpoint:
            check_origin(checkpoint, self._origin, self.model.config)
            self._check_randomness(checkpoint)
        if self.is_world_process_zero():
            self.folder.forget_after(step_of(checkpoint) if checkpoint else -1)
            if checkpoint:
                self._check_rows(checkpoint)
        self._resumed = checkpoint
        self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        return bool(self.state.global_step >= self.run.max_steps)

    def _check_rows(self, checkpoint: Path) -> None:
        """Have the metrics hold the rows that the checkpoint was written after, as they were."""
        written = checkpoints.rows_of(checkpoint)
        if list(map(_text, written)) != list(map(_text, self.folder.rows())):
            logger.warning(
                "%s does not hold the rows that %s was written after; they are taken from there",
                self.folder.metrics,
                checkpoint,
            )
            self.folder.rewrite(written)

    def _check_randomness(self, checkpoint: Path) -> None:
        """Raise if dropout would draw other numbers than it would have without the interruption."""
        ours = self.args.world_size, self.args.train_batch_size
        theirs = checkpoints.processes_of(checkpoint)
        if self.model.config.attention_dropout and ours != theirs:
            raise ValueError(
                f"{checkpoint} was written by {theirs[0]} processes of {theirs[1]} sequences at "
                f"once, now there are {ours[0]} of {ours[1]}: attention_dropout "
                f"({self.model.config.attention_dropout}) draws its random numbers by process and "
                "micro-batch, so the run would not be the same; resume it as it was begun"
            )


def _text(row: Mapping[str, Any]) -> str:
    # NaN is NaN here.
    return json.dumps(row, sort_keys=True)
