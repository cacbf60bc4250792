"""The trainer of one run: transformers' Trainer with our optimizer, data order and checkpoints.

Parameter groups and learning rates come from the variant (``optimizer``), the order of the data
from the seed (``DataOrder``), batches, loss and what is judged from ``Learning``. A checkpoint is
complete or absent, holds no pickled arguments, and is resumed under any number of processes.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Sampler
from transformers import PrinterCallback, TrainerCallback
from transformers.integrations import TensorBoardCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_pt_utils import nested_gather
from transformers.trainer_utils import EvalLoopOutput

from layermem.models.memories import recompute_layers
from layermem_bench.config.compiling import room_to_compile
from layermem_bench.config.micro_batches import choose_loss_chunk
from layermem_bench.config.run import Run
from layermem_bench.results.run_folder import RunFolder, step_of
from layermem_bench.train import checkpoints, metrics
from layermem_bench.train.background import BackgroundCheckpoints, begin_replicated
from layermem_bench.train.learning import Learning
from layermem_bench.train.optimizer import build_optimizer, build_schedule, is_ours, overrides_of
from layermem_bench.train.processes import check_processes_agree
from layermem_bench.train.progress import RunProgress, open_wandb_run
from layermem_bench.train.sequences import order_of
from layermem_bench.train.setup import training_arguments
from layermem_bench.train.stopping import FiniteCheck, StopOnSignal, warn_if_saving_is_slow


class _TrainerEvents(TrainerCallback):
    """Hand to the trainer what only callbacks are told."""

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.restore_counts()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Called after the optimizer's step and before the schedule sets the next learning rates.
        groups = kwargs["optimizer"].param_groups
        self._trainer.learning_rates = {group["name"]: float(group["lr"]) for group in groups}

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._trainer.background:
            self._trainer.background.raise_if_failed()


class Trainer(transformers.Trainer):
    """The training loop of one run."""

    optimizer: Any
    lr_scheduler: Any

    def __init__(self, run: Run, folder: RunFolder, model: Any, learning: Learning) -> None:
        self.run, self.folder, self.learning = run, folder, learning
        train_data, validation_data = learning.train_data, learning.validation_data
        args = training_arguments(run, folder)
        # Where the run could be extended from; None: nowhere.
        self.stable = run.optim.steps_before_decay(run.max_steps)
        self.stop = StopOnSignal(processes=args.world_size, save_at=self.stable)
        self.finite = FiniteCheck(self)
        self.background = BackgroundCheckpoints(self) if run.compute.async_checkpoints else None
        self._judged: list[Tensor] = []
        self._timer = metrics.StepTimer()
        self.learning_rates: dict[str, float] = {}
        self._resumed_from: Path | None = None
        splits = {"training": train_data, "validation": validation_data}
        precision = "bfloat16" if args.bf16 else "float32"
        self._origin = checkpoints.describe_origin(run, splits, precision)
        peak = metrics.peak_flops(args.device)
        self._step_cost = metrics.StepCost(
            tokens=run.optim.batch_size * train_data.length,
            flops_per_token=metrics.training_flops(model, round(train_data.length)),
            peak_flops=peak and peak * args.world_size,
        )
        if run.compute.checkpoint_activations:
            recompute_layers(model, run.compute.checkpoint_every)
        super().__init__(
            model=model,
            args=args,
            train_dataset=train_data,
            eval_dataset=validation_data,
            processing_class=learning.tokenizer,
            # Not transformers' default for a tokenizer: that adds an attention mask of ones, with
            # which the documents of a block would attend to each other, and which rules out sdpa's
            # flash kernels under torch.compile.
            data_collator=learning.collate,
            callbacks=[RunProgress(run.max_steps), self.stop, _TrainerEvents(self)],
        )
        self._check_label_counts()
        self.remove_callback(PrinterCallback)
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
                callback.logging_dir = str(folder.path / "tensorboard")

    def _check_label_counts(self) -> None:
        """Raise where micro-batches of unequal numbers of labels would weigh the same.

        Classes that do not take the number of a step's labels return the mean over a micro-batch's.
        """
        micro_batches = self.args.gradient_accumulation_steps * self.args.world_size
        uneven = self.run.task.name is not None or self.run.data.isolate_documents
        if self.model_accepts_loss_kwargs or micro_batches == 1 or not uneven:
            return
        raise ValueError(
            f"{type(self.model).__name__} returns the mean loss of a micro-batch's labels, and "
            f"a step has {micro_batches} micro-batches, whose numbers of labels differ: set "
            f"compute.micro_batch to optim.batch_size ({self.run.optim.batch_size}) in one "
            "process, or name another model"
        )

    def train_from(self, checkpoint: Path | None) -> bool:
        """Train from a checkpoint, whose later rows of metrics are dropped, or from the beginning;
        return whether the last step was reached."""
        name = checkpoint and checkpoint.name
        check_processes_agree({"checkpoint to go on from": name, **self._origin})
        if checkpoint:
            checkpoints.check_origin(checkpoint, self._origin, self.model.config)
            checkpoints.check_micro_batches(checkpoint, self.model.config, self.args)
        if self.is_world_process_zero():
            self.folder.drop_rows_after(step_of(checkpoint) if checkpoint else -1)
            if checkpoint:
                checkpoints.restore_rows(checkpoint, self.folder)
        self._resumed_from = checkpoint
        # Of a pretrained model, what it computes before training is a result.
        self.args.eval_on_start = self.run.host.model is not None and checkpoint is None
        self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        return bool(self.state.global_step >= self.run.max_steps)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        tracked = "wandb" in self.run.track and self.is_world_process_zero()
        room: AbstractContextManager[None] = nullcontext()
        if self.run.compute.compile:
            # Sharded, each layer is compiled by itself: all are of one code.
            room = room_to_compile(self.model.config.get_text_config().num_hidden_layers)
        track = open_wandb_run(self.folder) if tracked else nullcontext()
        with track, room:
            try:
                return super().train(*args, **kwargs)
            finally:
                if self.background:
                    self.background.close()

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        if self.optimizer is None:
            overrides, trained = overrides_of(self.model), model or self.model
            self.optimizer = build_optimizer(trained, overrides, self.run.optim, self.args.device)
        return self.optimizer

    def unwrapped_optimizer(self) -> Any:
        """Return the optimizer itself, without accelerate's wrapper."""
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> Any:
        if self.lr_scheduler is None:
            scheduled, steps = optimizer or self.optimizer, self.run.max_steps
            self.lr_scheduler = build_schedule(scheduled, self.run.optim, steps)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        data = train_dataset if train_dataset is not None else self.train_dataset
        return order_of(data, self.run.max_steps * self.run.optim.batch_size, self.run.seed)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        """Return how many tokens a step predicts.

        transformers counts the first token of a sequence too, which nothing predicts, for classes
        that it does not know to shift labels, as GPT-2's.
        """
        self._loss_shifts_labels = False
        labels = [batch["labels"] for batch in batch_samples if "labels" in batch]
        batch_samples = [{"labels": of_batch[..., 1:]} for of_batch in labels]
        return super()._get_num_items_in_batch(batch_samples, device)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = super().training_step(*args, **kwargs)
        self.finite.add_loss(loss)
        return loss

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return transformers' loss, in chunks where there are many logits."""
        if chunk := self._loss_chunk(inputs):
            inputs = {**inputs, "loss_chunk": chunk}
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def _loss_chunk(self, inputs: Mapping[str, Tensor]) -> int:
        if not is_ours(self.model):
            return 0
        tokens, vocabulary = inputs["input_ids"].numel(), self.model.config.vocab_size
        return choose_loss_chunk(self.run.compute.loss_chunk, tokens, vocabulary)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Validate; the random numbers that training draws next are what they were."""
        self.finite.check_losses({})
        # A loader of data draws a seed from torch's generator, that of dropout on a CPU.
        with self._timer.paused(), torch.random.fork_rng(devices=[]):
            return super().evaluate(*args, **kwargs)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Return the mean loss over all labels, whatever batch or process they are in."""
        self._judged = []
        output = super().evaluation_loop(*args, **kwargs)
        loss, labels = self._all_judged()[:, :2].sum(0)
        output.metrics["eval_loss"] = float(loss / labels)
        return output

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any
    ) -> tuple[None, None, None]:
        """Add what is judged of each sequence, in whichever process it is."""
        batch = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            judged = self.learning.judge(model, batch, self._loss_chunk(batch))
        # As gather_for_metrics, which would have the rows of every process that shares heads.
        by_process = self.accelerator.gather(judged).unflatten(0, (self.args.world_size, -1))
        rows = by_process[:: self.run.compute.tensor].flatten(0, 1)
        # The last batch is filled up with sequences of the first one.
        loader = self.accelerator.gradient_state
        filled = loader.end_of_dataloader and loader.remainder > 0
        self._judged.append(rows[: loader.remainder] if filled else rows)
        return None, None, None

    def _all_judged(self) -> Tensor:
        return torch.cat(self._judged).cpu().double()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Check the loss, write the row of metrics, and pass it to the callbacks."""
        self.finite.check_losses(logs)
        step = self.state.global_step
        row: dict[str, float] = {"step": step, "tokens": round(step * self._step_cost.tokens)}
        if "loss" in logs:
            speed = self._timer.steps_per_second(step)
            row |= metrics.training_row(logs, self.learning_rates, speed, step, self._step_cost)
            row |= self.variant_metrics()
        elif "eval_loss" in logs:
            numbers = self._all_judged()[:, 2:]
            row |= self.learning.metrics(self.model, logs["eval_loss"], numbers)
        else:
            return
        if self.is_world_process_zero():
            self.folder.append_row(row)
        super().log(row, start_time)
        if "loss" in logs:
            self._timer.restart(step)

    def variant_metrics(self) -> dict[str, float]:
        """Return the metrics that the variant computes from its own parameters."""
        return metrics.variant_metrics(self.model)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write the checkpoint in a staging folder, which is then moved to its place."""
        self.finite.check_losses({})
        self.finite.check_weights()
        with self._timer.paused():
            if self.background:
                self.background.save()
            else:
                self._save_and_wait(model, trial)

    def _save_and_wait(self, model: nn.Module, trial: Any) -> None:
        started = time.perf_counter()
        # One process creates the folder and moves it; in between all write their parts.
        with self.folder.stage_checkpoint() if self.args.should_save else nullcontext():
            self.accelerator.wait_for_everyone()
            super()._save_checkpoint(model, trial)
            checkpoint = self.folder.staging / f"checkpoint-{self.state.global_step}"
            self.save_origin_and_unlogged_loss(checkpoint)()
            self.accelerator.wait_for_everyone()
        if self.args.should_save:
            self.folder.delete_old_checkpoints(self.run.keep, self.steps_kept())
        warn_if_saving_is_slow(time.perf_counter() - started)

    def steps_kept(self) -> set[int | None]:
        """Return the steps whose checkpoints are kept however old they are."""
        return {self.state.best_global_step, self.stable}

    def begin_writing(self, checkpoint: Path) -> Callable[[], None]:
        """Copy weights and moments; return what writes them, while training goes on."""
        if not self.args.should_save:
            return lambda: None
        return begin_replicated(checkpoint, self.model, self.unwrapped_optimizer(), self._save)

    def save_origin_and_unlogged_loss(self, checkpoint: Path) -> Callable[[], None]:
        """Save what a checkpoint came from; return what writes the trainer's state as it is."""
        loss = float(nested_gather(self._tr_loss, self.args.parallel_mode).mean())
        if not self.args.should_save:
            return lambda: None
        checkpoints.save_record(checkpoint, self._origin, loss, self._globalstep_last_logged)
        # transformers has put the path in the staging folder here; the best one is found by step.
        self.state.best_model_checkpoint = None
        state = replace(self.state, log_history=list(self.state.log_history))
        return lambda: state.save_to_json(str(checkpoint / TRAINER_STATE_NAME))

    def restore_counts(self) -> None:
        """Restore the losses since the last row, so that the next row averages all of its steps."""
        self._timer.restart(self.state.global_step)
        # The checkpoint's state holds how often the run logged, validated and saved until then.
        self.state.compute_steps(self.args, self.run.max_steps)
        if self._resumed_from:
            loss, self._globalstep_last_logged = checkpoints.load_unlogged_loss(self._resumed_from)
            self._tr_loss.fill_(loss)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        path = Path(checkpoint)
        checkpoints.load_optimizer(path, self.model, self.unwrapped_optimizer())
        checkpoints.load_schedule(path, self.lr_scheduler)
        self.finite.check_weights()

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Raise where transformers warns: the checkpoint must hold exactly the model's weights."""
        tied = self.model._tied_weights_keys if self.model.config.tie_word_embeddings else ()
        missing = sorted(set(load_result.missing_keys) - set(tied or ()))
        if missing or load_result.unexpected_keys:
            raise ValueError(
                f"{self._resumed_from} does not hold the model's weights: missing are "
                f"{missing or 'none'}, unexpected are {load_result.unexpected_keys or 'none'}; "
                "delete it to go on from the checkpoint before it"
            )

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.folder.staging)

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        super()._save(output_dir, state_dict)
        # A pickled file; config.yaml holds everything that is in it.
        (Path(output_dir or self.args.output_dir) / "training_args.bin").unlink(missing_ok=True)
