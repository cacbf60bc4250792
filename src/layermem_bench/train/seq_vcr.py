"""Seq-VCR: a penalty that keeps the last hidden states of different sequences apart.

Arefin et al., 2024 (arXiv 2411.02344). The last hidden states, as the head reads them, are
projected by a matrix of their own; ``ops/seq_vcr.py`` has the terms. Choices: the covariance is
over the sequences of a process's micro-batch; the matrix has no bias, which a covariance would not
notice. It hangs on the model while it is trained, so that optimizer, clipping, DDP and FSDP2 treat
it as every other parameter, and is saved in a file of its own in checkpoints alone.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from layermem.models.seams import forked_generator
from layermem.ops.loss import IGNORE_INDEX
from layermem.ops.seq_vcr import variance_and_covariance
from layermem_bench.config.run import Regularizer
from layermem_bench.train.metrics import LoggedMeans

# The attribute of the model that holds the penalty while it is trained.
_ATTRIBUTE = "regularizer"
_PREFIX = f"{_ATTRIBUTE}."
_WEIGHT = "regularizer.safetensors"


class SeqVCR(nn.Module):
    """The projection [K, D], the last hidden states of a forward, and the terms not yet logged."""

    def __init__(self, width: int, config: Regularizer) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.width, width))
        # As torch's Linear; from its own generator, so that the run draws its usual numbers.
        bound = width**-0.5
        nn.init.uniform_(self.weight, -bound, bound, forked_generator("seq_vcr"))
        self._states: Tensor | None = None
        # Over micro-batches.
        self.means = LoggedMeans(_ATTRIBUTE, "seq_vcr_variance", "seq_vcr_covariance")

    @contextmanager
    def attached(self, model: Any, device: torch.device) -> Iterator[None]:
        """Hang on a causal LM, and see the last hidden states of its forwards in training."""

        def keep(module: nn.Module, args: Any, output: Any) -> None:
            if module.training:
                self._states = output.last_hidden_state

        self.to(device)
        setattr(model, _ATTRIBUTE, self)
        handle = model.model.register_forward_hook(keep)
        try:
            yield
        finally:
            handle.remove()
            delattr(model, _ATTRIBUTE)

    def penalty(self, labels: Tensor, micro_batches: int) -> Tensor:
        """Return the penalty on the states of the last forward, as its share of a step's.

        ``labels`` [B, T] are those of the forward: what follows a sequence's last label is padding.
        ``micro_batches``: their number in a step of this process.
        """
        states, self._states = self._states, None
        assert states is not None
        variance, covariance = variance_and_covariance(states, self.weight, reached(labels))
        self.means.add(variance, covariance)
        weights = self.config.variance_weight, self.config.covariance_weight
        return (weights[0] * variance + weights[1] * covariance) / micro_batches

    def load(self, checkpoint: Path) -> None:
        """Load the projection."""
        self.load_state_dict(load_file(checkpoint / _WEIGHT))

    def flops_per_token(self, sequences: int) -> int:
        """Return those of a forward: the projection, and products of ``sequences`` with each other.
        What is computed again in the backward, means and variances are left out."""
        features, width = self.weight.shape
        return 2 * features * (width + sequences)


def model_names(names: Iterable[str]) -> set[str]:
    """Return those names of parameters that are not of a penalty that hangs on the model."""
    return {name for name in names if not name.startswith(_PREFIX)}


def split_state(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the weights of the model, and those of a penalty that hangs on it."""
    own = {name: value for name, value in state.items() if name.startswith(_PREFIX)}
    of_model = {name: value for name, value in state.items() if name not in own}
    return of_model, {name.removeprefix(_PREFIX): value for name, value in own.items()}


def save_weight(state: Mapping[str, Tensor], folder: Path) -> None:
    """Save the weights of a penalty beside those of the model; nothing where there is none."""
    if state:
        save_file({name: value.contiguous() for name, value in state.items()}, folder / _WEIGHT)


def reached(labels: Tensor) -> Tensor:
    """Return which positions [B, T] are not after their sequence's last label."""
    return (labels != IGNORE_INDEX).flip(1).cummax(1).values.flip(1)
