"""The trainer of a run on records: the loss of a step is the mean over its sequences.

It is so whatever the micro-batch is. transformers' would be too large where gradients are
accumulated: it leaves the division to models, and those with a head for classes or answers take the
mean of each micro-batch. A kind of records says what the loss of a sequence is, and what a
validation judges.

Letters: B records, C classes.
It does not know: how records are read, the run folder.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers.trainer_utils import EvalLoopOutput

from layermem.train.record_dataset import RecordDataset
from layermem.train.trainer import Trainer


class RecordTrainer(Trainer):
    """The training loop of a run on records, of whatever kind."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._judged: list[Tensor] = []
        super().__init__(*args, **kwargs)
        self.compute_loss_func: Callable[..., Tensor] = self._loss_of_step

    @abstractmethod
    def losses(self, outputs: Any, labels: Tensor) -> Tensor:
        """Return the loss of each sequence [B], in float32."""

    @abstractmethod
    def judge(self, outputs: Any, labels: Tensor) -> Tensor:
        """Return the numbers [B, N] of each validation sequence that ``metrics`` is given."""

    @abstractmethod
    def metrics(self, judged: Tensor) -> dict[str, float]:
        """Return the metrics of a validation, of the numbers of all sequences in their order."""

    def _loss_of_step(self, outputs: Any, labels: Tensor, **_: Any) -> Tensor:
        """Return the part of the step's mean loss that is of this micro-batch."""
        return self.losses(outputs, labels).sum() / self.run.optim.batch_size

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        self._judged = []
        return super().evaluation_loop(*args, **kwargs)

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any
    ) -> tuple[None, None, None]:
        """Add the loss of each sequence, and what is judged of it."""
        inputs = self._prepare_inputs(inputs)
        labels = inputs.pop("labels")
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = model(**inputs)
        losses = self.losses(outputs, labels)
        rows = torch.stack([losses, torch.ones_like(losses)], dim=1)
        rows = torch.cat([rows, self.judge(outputs, labels).to(rows)], dim=1)
        gathered = self.accelerator.gather_for_metrics(rows)
        self._sequence_losses.append(gathered[:, :2])
        self._judged.append(gathered[:, 2:])
        return None, None, None

    def validation_metrics(self, loss: float) -> dict[str, float]:
        return {"val_loss": loss, **self.metrics(torch.cat(self._judged).double().cpu())}


@final
class ClassTrainer(RecordTrainer):
    """The training loop of a classifier."""

    def losses(self, outputs: Any, labels: Tensor) -> Tensor:
        return class_losses(outputs.logits, labels)

    def judge(self, outputs: Any, labels: Tensor) -> Tensor:
        return (outputs.logits.argmax(-1) == labels)[:, None]

    def metrics(self, judged: Tensor) -> dict[str, float]:
        return {"val_accuracy": float(judged.mean())}


def class_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each record [B] of logits [B, C], in float32."""
    return nn.functional.cross_entropy(logits.float(), labels, reduction="none")


def predict_classes(model: Any, data: RecordDataset, batch_size: int) -> Sequence[int]:
    """Return the number of the class that a model gives each record, in their order."""
    return [
        number
        for outputs, _ in forward_all(model, data, batch_size)
        for number in outputs.logits.argmax(-1).tolist()
    ]


@torch.no_grad()
def forward_all(model: Any, data: Any, batch_size: int) -> Iterator[tuple[Any, Tensor]]:
    """Yield a model's outputs of each batch of a dataset, in eval mode, and the batch's labels."""
    was_training = model.training
    model.eval()
    loader: Any = DataLoader(data, batch_size=batch_size, collate_fn=data.collate)
    for batch in loader:
        inputs = {name: tensor.to(model.device) for name, tensor in batch.items()}
        labels = inputs.pop("labels")
        yield model(**inputs), labels
    model.train(was_training)
