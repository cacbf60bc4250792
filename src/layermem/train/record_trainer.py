"""The trainer of a run on labelled records: its loss and its validations are of classes.

The loss of a step is the mean over its records, whatever the micro-batch. transformers' would be
too large where gradients are accumulated: it leaves the division to models, and those with a head
for classes take the mean of each micro-batch.

Letters: B records, C classes.
It does not know: how records are read, the run folder.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers.trainer_utils import EvalLoopOutput

from layermem.train.record_dataset import RecordDataset
from layermem.train.trainer import Trainer


class RecordTrainer(Trainer):
    """The training loop of a run on labelled records."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._right: list[Tensor] = []
        super().__init__(*args, **kwargs)
        self.compute_loss_func: Callable[..., Tensor] = self._loss_of_step

    def _loss_of_step(self, outputs: Any, labels: Tensor, **_: Any) -> Tensor:
        """Return the part of the step's mean loss that is of this micro-batch."""
        return class_losses(outputs.logits, labels).sum() / self.run.optim.batch_size

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        self._right = []
        return super().evaluation_loop(*args, **kwargs)

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any
    ) -> tuple[None, None, None]:
        """Add the loss of each record, and whether its class is right."""
        inputs = self._prepare_inputs(inputs)
        labels = inputs.pop("labels")
        with torch.no_grad(), self.compute_loss_context_manager():
            logits = model(**inputs).logits
        losses, right = class_losses(logits, labels), logits.argmax(-1) == labels
        rows = torch.stack([losses, torch.ones_like(losses), right.to(losses)], dim=1)
        gathered = self.accelerator.gather_for_metrics(rows)
        self._sequence_losses.append(gathered[:, :2])
        self._right.append(gathered[:, 2])
        return None, None, None

    def validation_metrics(self, loss: float) -> dict[str, float]:
        right = torch.cat(self._right).double()
        return {"val_loss": loss, "val_accuracy": float(right.mean())}


def class_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each record [B] of logits [B, C], in float32."""
    return nn.functional.cross_entropy(logits.float(), labels, reduction="none")


@torch.no_grad()
def predict_classes(model: Any, data: RecordDataset, batch_size: int) -> Sequence[int]:
    """Return the number of the class that a model gives each record, in their order."""
    was_training, predicted = model.training, list[int]()
    model.eval()
    loader: Any = DataLoader(data, batch_size=batch_size, collate_fn=data.collate)
    for batch in loader:
        del batch["labels"]
        inputs = {name: tensor.to(model.device) for name, tensor in batch.items()}
        predicted += model(**inputs).logits.argmax(-1).tolist()
    model.train(was_training)
    return predicted
