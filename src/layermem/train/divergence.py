"""Detection of losses, gradients, weights and optimizer moments that are not finite."""

import itertools
import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from transformers import TrainingArguments

from layermem.runs import RunFolder
from layermem.train.processes import any_process

# The logged numbers that must be finite, under transformers' names, and how an error calls them.
_CHECKED_LOGS = {
    "loss": "the loss",
    "grad_norm": "the gradient",
    "eval_loss": "the validation loss",
}


class NotFiniteError(RuntimeError):
    """The loss, the gradients or the weights are NaN or infinite."""


class FiniteCheck:
    """Stop all processes of a run once one of them sees a number that is not finite."""

    def __init__(self, folder: RunFolder, args: TrainingArguments) -> None:
        self._folder, self._args = folder, args
        self._losses_finite: Tensor | None = None

    def add_loss(self, loss: Tensor) -> None:
        """Note whether a micro-batch's loss is finite, without waiting for the device."""
        finite = loss.detach().isfinite()
        earlier = self._losses_finite
        self._losses_finite = finite if earlier is None else earlier & finite

    def check_losses(self, logs: Mapping[str, float], step: int) -> None:
        """Raise, in all processes, if a noted loss or a logged number is not finite."""
        logged = [name for name in _CHECKED_LOGS if not math.isfinite(logs.get(name, 0.0))]
        loss_failed = self._losses_finite is not None and not bool(self._losses_finite)
        if any_process(bool(logged) or loss_failed, self._args):
            what = _CHECKED_LOGS[logged[0]] if logged else "the loss"
            raise self._error(f"{what} is not finite at step {step}")

    def check_weights(self, weights: Iterable[Tensor], optimizer: Optimizer, step: int) -> None:
        """Raise, in all processes, if a weight or a moment of the optimizer is not finite."""
        moments = (
            value
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        )
        finite = bool(_all_finite(itertools.chain(weights, moments)))
        if any_process(not finite, self._args):
            raise self._error(
                f"weights or moments of the optimizer are not finite after step {step}"
            )

    def _error(self, what: str) -> NotFiniteError:
        saved = self._folder.complete_checkpoints()
        good = f"the last good checkpoint is {saved[-1]}" if saved else "there is no checkpoint"
        return NotFiniteError(f"{what}; {good}. Lower optim.lr (or optim.router_lr), or clip more")


@torch.no_grad()
def _all_finite(tensors: Iterable[Tensor]) -> Tensor:
    """Return, as a tensor, whether all numbers in this process's parts of tensors are finite."""
    local = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
    flags = [t.isfinite().all() for t in local if t.is_floating_point()]
    if not flags:
        return torch.tensor(True)
    return torch.stack([flag.to(flags[0].device) for flag in flags]).all()
