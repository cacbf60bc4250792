"""The loop of one run: steps, rows of metrics, validations and checkpoints.

A step is some micro-batches, whose losses are weighed by the labels of the whole step. Its batches
depend on the seed alone, and a validation draws no random number of training; so a run that went on
from a checkpoint ends with the same weights, bit for bit. Nothing here knows what is learnt, which
``Learning`` says.
"""

import inspect
import itertools
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, final

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader

from layermem.models.memories import recompute_layers
from layermem_bench.config.computing import (
    choose_loss_chunk,
    room_to_compile,
    sequences_at_once,
    uses_bfloat16,
)
from layermem_bench.config.run import Run
from layermem_bench.run import checkpoints, processes, progress
from layermem_bench.run.folder import RunFolder
from layermem_bench.run.learning import IGNORED, Learning, order_of
from layermem_bench.run.optimizer import (
    build_optimizer,
    is_ours,
    overrides_of,
    set_learning_rates,
)


@final
class Loop:
    """The training of one run, from its beginning or from a checkpoint."""

    def __init__(
        self,
        run: Run,
        folder: RunFolder,
        model: Any,
        learning: Learning,
        accelerator: Accelerator,
        checkpoint: Path | None = None,
    ) -> None:
        self.run, self.folder, self.model, self.learning = run, folder, model, learning
        self.accelerator, self.device = accelerator, accelerator.device
        self.is_first: bool = accelerator.is_main_process
        self.stop = processes.StopOnSignal(accelerator)
        self.world: int = accelerator.num_processes
        self.micro = sequences_at_once(run, self.world)
        # Of a step, in each process.
        self._micro_batches = run.optim.batch_size // (self.micro * self.world)
        self.in_bfloat16 = uses_bfloat16(run.compute.precision)
        self.step, self.last_logged = 0, 0
        # Step and loss.
        self.best: tuple[int, float] | None = None
        # Sum of the losses since the last row.
        self.loss = torch.zeros((), device=self.device)
        self._random: dict[str, Tensor] = {}
        length, batch = learning.train_data.length, run.optim.batch_size
        self._speed = progress.Speed(model, batch, length, accelerator)
        self._set_up(checkpoint)

    def _set_up(self, checkpoint: Path | None) -> None:
        """Place the model on the processes' devices, and make its optimizer."""
        compute, model = self.run.compute, self.model
        if checkpoint is not None:
            checkpoints.load_weights(checkpoint, model)
        if compute.checkpoint_activations:
            recompute_layers(model, compute.checkpoint_every)
        model.config.use_cache = False
        model.to(self.device)
        if compute.shard:
            processes.shard(model, compute.precision)
        self.optimizer = build_optimizer(model, overrides_of(model), self.run.optim, self.device)
        if checkpoint is not None:
            saved = checkpoints.load_training(checkpoint, self.run)
            checkpoints.load_moments(self.optimizer, saved["moments"])
            done, self._random = saved["progress"], saved["random"]
            self.step, self.last_logged, self.best = done["step"], done["last_logged"], done["best"]
            self.loss.fill_(done["loss"])
        self._takes_count = _takes_count(model)
        self._copies: DistributedDataParallel | None = None
        if self.world > 1 and not compute.shard:
            devices = None if self.device.type == "cpu" else [self.device]
            self._copies = DistributedDataParallel(model, device_ids=devices)
        # What a step calls; it computes as ``model`` does, which validations and saves call.
        self.trained: Any = self._copies or model
        if compute.compile:
            self.trained = torch.compile(self.trained)

    def train(self) -> bool:
        """Train to the last step, or to the one where a signal stops the run; return whether the
        last step was reached without one."""
        run = self.run
        with ExitStack() as shown:
            progress.open_trackers(self.accelerator, run, self.folder)
            for tracker in self.accelerator.trackers:
                shown.callback(tracker.finish)
            if self.is_first:
                self._progress = progress.RunsProgress()
                self._progress.begin(self.folder.path.name, run.max_steps, self.step)
                shown.callback(self._progress.close)
            if run.compute.compile:
                # Sharded, each layer is compiled by itself: all are of one code.
                layers = self.model.config.get_text_config().num_hidden_layers
                shown.enter_context(room_to_compile(layers))
            self._train_steps()
        return self.step == run.max_steps and not self.stop.is_asked_for()

    def _train_steps(self) -> None:
        run, is_stopped = self.run, False
        if run.host.model is not None and not self._random:
            # Of a pretrained model, what it computes before training is a result.
            self.validate()
        batches = iter(self._batches())
        if self._random:
            self.check_weights()
            # The loader has drawn a seed.
            checkpoints.set_random_state(self._random, self.accelerator)
        self._speed.restart(self.step)
        while self.step < run.max_steps and not is_stopped:
            self.train_step(list(itertools.islice(batches, self._micro_batches)))
            is_stopped = self.stop.is_asked_for()
            is_last = self.step == run.max_steps
            if self.step == 1 or self.step % run.log_every == 0:
                self._log_training()
            if is_last or self.step % run.eval_every == 0:
                self.validate()
            # The last step is always saved, since the work after it may fail.
            saves = run.save_every and self.step % run.save_every == 0
            if is_stopped or is_last or saves:
                self.save()

    def _batches(self) -> DataLoader[Any]:
        """Return this process's micro-batches of the steps that are left."""
        run, on_gpu = self.run, self.device.type == "cuda"
        data: Any = self.learning.train_data
        order = order_of(len(data), run.max_steps * run.optim.batch_size, run.seed)

        def own() -> Iterator[list[int]]:
            rest = itertools.islice(order, self.step * run.optim.batch_size, None)
            for number in itertools.count():
                batch = list(itertools.islice(rest, self.micro))
                if not batch:
                    return
                if number % self.world == self.accelerator.process_index:
                    yield batch

        return DataLoader(
            data,
            batch_sampler=own(),
            collate_fn=data.collate,
            num_workers=run.compute.workers,
            pin_memory=on_gpu,
        )

    def train_step(self, batches: list[dict[str, Tensor]]) -> None:
        """Change the weights by the gradients of one step."""
        self.model.train()
        counts = [batch["labels"][..., 1:].ne(IGNORED).sum().to(self.device) for batch in batches]
        labels = self.accelerator.reduce(torch.stack(counts).sum())
        for number, (batch, count) in enumerate(zip(batches, counts, strict=True), 1):
            is_last = number == len(batches)
            # Copies average their gradients once a step.
            waits = self._copies.no_sync() if self._copies and not is_last else nullcontext()
            with waits:
                loss = self.compute_loss(batch, count, labels)
                loss.backward()
            self.loss += loss.detach()
        norm: Any = clip_grad_norm_(self.model.parameters(), self.run.optim.clip or math.inf)
        self._norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        set_learning_rates(self.optimizer, self.run.optim, self.run.max_steps, self.step)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._rates = {group["name"]: float(group["lr"]) for group in self.optimizer.param_groups}
        self.step += 1

    def compute_loss(self, batch: dict[str, Tensor], count: Tensor, labels: Tensor) -> Tensor:
        """Return a micro-batch's part of the step's loss, times the processes, whose gradients are
        averaged; ``count`` and ``labels``: the labels of the micro-batch and of the step."""
        inputs: dict[str, Any] = self._on_device(batch)
        if chunk := self._loss_chunk(inputs):
            inputs["loss_chunk"] = chunk
        if self._takes_count:
            inputs["num_items_in_batch"] = labels
        with self._autocast():
            loss: Tensor = self.trained(**inputs, use_cache=False).loss
        if not self._takes_count:
            loss = loss * (count / labels)
        return loss * self.world

    def _on_device(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.to(self.device, non_blocking=True) for name, value in batch.items()}

    def _autocast(self) -> AbstractContextManager[Any]:
        on = self.in_bfloat16
        return torch.autocast(self.device.type, torch.bfloat16) if on else nullcontext()

    def _loss_chunk(self, inputs: dict[str, Any]) -> int:
        """Return how many tokens' logits are in memory at once; 0: all."""
        if not is_ours(self.model):
            return 0
        tokens, vocabulary = inputs["input_ids"].numel(), self.model.config.vocab_size
        return choose_loss_chunk(self.run.compute.loss_chunk, tokens, vocabulary)

    def _log_training(self) -> None:
        """Write the row of the steps since the last one."""
        self._check_finite("the loss", self.loss)
        self._check_finite("the gradient", self._norm)
        loss = float(self._mean_loss()) / (self.step - self.last_logged)
        row = progress.training_row(loss, float(self._norm), self._rates)
        # Where the model is sharded, no process holds its routers in full.
        of_variant = {} if self.run.compute.shard else progress.variant_metrics(self.model)
        self._write(row | self._speed.row(self.step) | of_variant)
        self.loss.zero_()
        self.last_logged = self.step
        self._speed.restart(self.step)

    def _mean_loss(self) -> Tensor:
        mean: Tensor = self.accelerator.reduce(self.loss, "mean")
        return mean

    def _write(self, row: dict[str, float]) -> None:
        row = {"step": self.step, "tokens": round(self.step * self._speed.tokens), **row}
        if self.is_first:
            self.folder.append_row(row)
            self._progress.update(self.folder.path.name, row)
            self.accelerator.log(row, step=self.step)

    @torch.no_grad()
    def validate(self) -> None:
        """Write the row of a validation; the random numbers of training stay what they were."""
        self._check_finite("the loss", self.loss)
        self.model.eval()
        with self._speed.paused(), torch.random.fork_rng(devices=[]), self._autocast():
            loss, labels = self._judge().sum(0)
            mean = float(loss / labels)
            self._check_finite("the validation loss", loss / labels)
            # An overflowing perplexity is cut.
            row = {"val_loss": mean, "val_perplexity": math.exp(min(mean, 700.0))}
            row |= self.learning.metrics(self.model)
        self._write(row)
        if self.step and (self.best is None or mean < self.best[1]):
            self.best = self.step, mean

    def _judge(self) -> Tensor:
        """Return the sum of the losses and the number of labels of each sequence of the validation
        data, in their order [B, 2]."""
        data, at_once = self.learning.validation_data, self.micro * self.world
        # Each process has as many batches, since those of a sharded model compute together.
        filled = len(data) if self.world == 1 else -(-len(data) // at_once) * at_once
        judged = []
        for first in range(self.micro * self.accelerator.process_index, filled, at_once):
            places = range(first, min(first + self.micro, filled))
            batch = self._on_device(data.collate([data[i % len(data)] for i in places]))
            rows = judge_tokens(self.model, batch, self._loss_chunk(batch))
            judged.append(self.accelerator.gather(rows))
        return torch.cat(judged)[: len(data)].cpu().double()

    def save(self) -> None:
        """Write a checkpoint, which is complete or absent, and delete old ones."""
        self._check_finite("the loss", self.loss)
        self.check_weights()
        with self._speed.paused():
            weights = checkpoints.whole_weights(self.model)
            moments = checkpoints.whole_moments(self.optimizer)
            random, loss = checkpoints.random_state(self.accelerator), float(self._mean_loss())
            if not self.is_first:
                return
            progress: dict[str, Any] = {"step": self.step, "loss": loss}
            progress |= {"last_logged": self.last_logged, "best": self.best}
            with self.folder.stage_checkpoint(self.step) as place:
                self.write_model(place, weights)
                checkpoints.save_training(place, self.run, moments, progress, random)
            best = self.best and self.best[0]
            self.folder.delete_old_checkpoints(self.run.keep, best)

    def write_model(self, place: Path, weights: Any) -> None:
        """Write the model and its tokenizer; ``weights``: in full, where the model is sharded."""
        self.model.save_pretrained(place, state_dict=weights)
        self.learning.tokenizer.save_pretrained(place)

    @torch.no_grad()
    def check_weights(self) -> None:
        """Raise, in all processes, if a weight or a moment of the optimizer is not finite."""
        moments = (value for state in self.optimizer.state.values() for value in state.values())
        tensors: Any = itertools.chain(self.model.parameters(), moments)
        # Of a sharded tensor each process looks at its part.
        local = (t.to_local() if isinstance(t, DTensor) else t for t in tensors)
        finite = [t.isfinite().all().to(self.device) for t in local if t.is_floating_point()]
        self._raise_unless(bool(torch.stack(finite).all()), "weights or moments are not finite")

    def _check_finite(self, name: str, value: Tensor) -> None:
        self._raise_unless(bool(value.isfinite()), f"{name} is not finite")

    def _raise_unless(self, fine: bool, what: str) -> None:
        if processes.any_process(not fine, self.accelerator):
            saved = self.folder.complete_checkpoints()
            good = f"the last good checkpoint is {saved[-1]}" if saved else "there is no checkpoint"
            raise processes.NotFiniteError(
                f"{what} at step {self.step}; {good}. Lower optim.lr (or optim.router_lr), or clip "
                "more"
            )


def judge_tokens(model: Any, batch: dict[str, Tensor], loss_chunk: int) -> Tensor:
    """Return the sum of the losses and the number of labels of each sequence [B, 2], with at most
    ``loss_chunk`` tokens' logits in memory (0: all)."""
    labels = batch.pop("labels")
    next_tokens = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    if loss_chunk:
        output = model(**batch, labels=labels, loss_chunk=loss_chunk, use_cache=False)
        token_losses = output.token_losses
    else:
        # In float32, as in training.
        logits = model(**batch, use_cache=False).logits.flatten(0, 1).float()
        losses = nn.functional.cross_entropy(logits, next_tokens.flatten(), reduction="none")
        token_losses = losses.view_as(next_tokens)
    # A loss is zero where a token has no label.
    return torch.stack([token_losses.sum(1), (next_tokens != IGNORED).sum(1)], dim=1)


def _takes_count(model: nn.Module) -> bool:
    """Return whether a model divides its loss by a number of labels that it is given, as
    transformers' Trainer decides it; others return the mean over a micro-batch's labels."""
    if hasattr(model, "accepts_loss_kwargs"):
        return bool(model.accepts_loss_kwargs)
    parameters = inspect.signature(model.forward).parameters.values()
    return any(each.kind == inspect.Parameter.VAR_KEYWORD for each in parameters)
