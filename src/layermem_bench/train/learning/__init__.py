"""``Learning``: what a run learns, as the trainer and the run loop see it.

    text        blocks of text; the loss is on every next token
    problems    generated problems of a task; the loss is on the tokens of their solutions

To learn another kind of data, add a file here and a line to ``prepare_learning``.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from layermem_bench.config.run import Run
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.results.solved import Solved
from layermem_bench.train.learning.text import Evaluate, ProblemLearning, TextLearning
from layermem_bench.train.model_card import Learnt
from layermem_bench.train.sequences import SequenceDataset

Save: TypeAlias = Callable[[Any, RunFolder], tuple[Solved, Sequence[str]] | None]


class Learning(Protocol):
    """The prepared data of a run, and how a model learns them, is judged and is described."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, which is saved beside the model."""

    @property
    def train_data(self) -> SequenceDataset:
        """The sequences to train on."""

    @property
    def validation_data(self) -> SequenceDataset:
        """The sequences that a validation judges."""

    @property
    def save(self) -> Save | None:
        """A function that measures the final model of an ended trainer, writes each attempt into
        the run's folder, and returns the result and each problem as a text.

        All processes call it, and the first returns the result. A signal may interrupt it; the
        resumed run calls it again. None: nothing is measured at the end.
        """

    def collate(self, items: Sequence[dict[str, Tensor]], /) -> dict[str, Tensor]:
        """Make a batch of sequences."""

    def load_model(self) -> Any:
        """Return the model that is trained, with the parameters to train."""

    def judge(self, model: Any, batch: dict[str, Tensor], loss_chunk: int) -> Tensor:
        """Return, for each sequence of a validation batch, the sum of its losses, their number, and
        N numbers for ``metrics`` [B, 2 + N], with at most ``loss_chunk`` tokens' logits in memory
        (0: all)."""

    def metrics(self, model: Any, loss: float, judged: Tensor) -> dict[str, float]:
        """Return the row of metrics of a validation, from its mean loss and the N numbers of all
        sequences, in their order."""

    def describe(self, folder: RunFolder) -> Learnt:
        """Return what the model card says of the data and the results, from the run's folder."""


def prepare_learning(run: Run, evaluate: Evaluate | None = None) -> Learning:
    """Return what a run learns, with its tokenizer and data; None as ``evaluate``: the problems of
    a task are not solved."""
    return ProblemLearning(run, evaluate) if run.task.name else TextLearning(run)


__all__ = ["Evaluate", "Learning", "Save", "prepare_learning"]
