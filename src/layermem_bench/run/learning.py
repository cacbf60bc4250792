"""``Learning``: what a run learns, as the loop sees it: text, or solutions of problems.

To learn another kind of data, add a class here and a line to ``prepare_learning``.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

from layermem_bench.config.run import Run, Task
from layermem_bench.run.sequences import SequenceDataset, build_problem_datasets
from layermem_bench.run.setup import build_model, load_run_tokenizer
from layermem_bench.run.solved import Solved
from layermem_bench.text.blocks import Blocks
from layermem_bench.text.preparing import prepare

# From a model, its tokenizer, a task and the name of a split to the result and every attempt.
Evaluate: TypeAlias = Callable[[Any, Any, Task, str], tuple[Solved, Sequence[Any]]]


class Learning:
    """The prepared data of a run, and how its model is loaded and measured."""

    description: str
    """What the data are, for the model card."""
    train_data: SequenceDataset
    validation_data: SequenceDataset
    text_digest: str | None = None
    """What identifies text, which needs no tokens to be compared; None: there is none."""
    evaluate: Evaluate | None = None
    """Has a model solve problems of a split; None: nothing is measured beside the loss."""

    def __init__(self, run: Run) -> None:
        self.run, self.tokenizer = run, load_run_tokenizer(run)

    def load_model(self) -> Any:
        """Return the model that is trained, with the parameters to train."""
        return build_model(self.run, self.tokenizer)

    def metrics(self, model: Any) -> dict[str, float]:
        """Return what a validation records beside the loss."""
        return {}


@final
class TextLearning(Learning):
    """Every next token of blocks of text."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        size, isolate = run.data.block_size, run.data.isolate_documents
        train, validation = prepare(run.data, self.tokenizer)
        held_out = Blocks(validation, size, isolate=isolate, at_most=run.eval_blocks)
        self.train_data, self.validation_data = Blocks(train, size, isolate=isolate), held_out
        self.text_digest = self.train_data.text_digest
        names = ", ".join(filter(None, (run.data.source, run.data.subset, run.data.revision)))
        self.description = f"{names}; blocks of {size} tokens"


@final
class ProblemLearning(Learning):
    """The solutions of problems of a task; a validation and the end of a run solve other ones."""

    def __init__(self, run: Run, evaluate: Evaluate | None) -> None:
        super().__init__(run)
        train, validation = build_problem_datasets(run.task, self.tokenizer)
        self.train_data, self.validation_data, self.evaluate = train, validation, evaluate
        task, options = run.task, f" ({' '.join(run.task.options)})" if run.task.options else ""
        # A file of records may have fewer than were asked for.
        count = len(train) - task.repeated * (task.repeats - 1)
        self.description = f"{count:,} problems of the task {task.name}, seed {task.seed}{options}"
        self.longest = max(len(item["input_ids"]) for item in (*train.items, *validation.items))

    def load_model(self) -> Any:
        model = super().load_model()
        positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if isinstance(positions, int) and self.longest > positions:
            raise ValueError(
                f"a problem of the task {self.run.task.name} has {self.longest} tokens, and the "
                f"model reads {positions} (max_position_embeddings): choose "
                "--task.options with shorter problems, or another model"
            )
        return model

    def metrics(self, model: Any) -> dict[str, float]:
        if self.evaluate is None:
            return {}
        solved, _ = self.evaluate(model, self.tokenizer, self.run.task, "validation")
        return {"val_accuracy": solved.accuracy, "val_steps": solved.steps}


def prepare_learning(run: Run, evaluate: Evaluate | None = None) -> Learning:
    """Return what a run learns, with its tokenizer and data; None as ``evaluate``: the problems of
    a task are not solved."""
    return ProblemLearning(run, evaluate) if run.task.name else TextLearning(run)
