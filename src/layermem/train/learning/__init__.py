"""``Learning``: what a run learns, as the trainer and the run loop see it.

    text        blocks of text; every next token
    problems    generated problems of a task; the tokens of their solutions
    labels      records of one or two texts; their label
    questions   questions about a text; the piece of the text that answers

``prepare_learning`` returns the one of a run. Another kind of data is another file here, and a line
there.

It does not know: how any of the four prepares, judges or saves.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from layermem.config import Run
from layermem.results.solved import Solved
from layermem.runs import RunFolder
from layermem.train.learning.labels import LabelLearning
from layermem.train.learning.problems import Evaluate, ProblemLearning
from layermem.train.learning.questions import QuestionLearning
from layermem.train.learning.text import TextLearning
from layermem.train.model_card import Learnt
from layermem.train.sequences import SequenceDataset

Save: TypeAlias = Callable[[Any, RunFolder], tuple[Solved, Sequence[str]] | None]


class Learning(Protocol):
    """The data of a run, ready for training, and what is made of them."""

    @property
    def tokenizer(self) -> Any:
        """Saved beside the model."""

    @property
    def train_data(self) -> SequenceDataset:
        """Sequences to train on."""

    @property
    def validation_data(self) -> SequenceDataset:
        """Sequences that a validation judges."""

    @property
    def step_loss(self) -> Callable[..., Tensor] | None:
        """From outputs and labels to a micro-batch's part of its step's loss; None: the model's."""

    @property
    def save(self) -> Save | None:
        """Measure the final model of an ended trainer, write the rows of what is measured into the
        run's folder, and return the result with each of the problems as a text. None: nothing is
        measured.

        All processes call it, and the first one returns a result. A signal may interrupt it, and
        the resumed run calls it again.
        """

    def collate(self, items: Sequence[dict[str, Tensor]], /) -> dict[str, Tensor]:
        """Make a batch of sequences."""

    def load_model(self) -> Any:
        """Return the model that is trained, with the parameters to train."""

    def judge(self, model: Any, batch: dict[str, Tensor], loss_chunk: int) -> Tensor:
        """Return [B, 2 + N] of a validation batch: sum of losses, number of losses, and N numbers
        of each sequence; ``loss_chunk``: tokens whose logits are in memory at once, 0 for all."""

    def metrics(self, model: Any, loss: float, judged: Tensor) -> dict[str, float]:
        """Return the row of a validation, from the mean loss and the N numbers of all sequences, in
        their order."""

    def describe(self, model: Any, folder: RunFolder) -> Learnt:
        """Return what the model's card says of this, from what the ended run has in its folder."""


def prepare_learning(run: Run, evaluate: Evaluate | None = None) -> Learning:
    """Return what a run learns, with its tokenizer and data; text is tokenized, unless it has been.

    ``evaluate`` solves the problems of a task; None: they are not solved.
    """
    if run.records.source is not None:
        if run.records.kind == "question-answering":
            return QuestionLearning(run)
        return LabelLearning(run)
    return ProblemLearning(run, evaluate) if run.task.name else TextLearning(run)


__all__ = ["Evaluate", "Learning", "Save", "prepare_learning"]
