"""``Learning``: what a run learns, as the loop sees it: text, or solutions of problems.

Of problems with queries the sequence is the prompt, and the label after a query is its answer,
whatever token stands there. Blocks of text are in ``text.blocks``. To learn another kind of data,
add a class here and a line to ``prepare_learning``.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, final

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from layermem_bench.config.run import Run, Task
from layermem_bench.run.folder import Solved
from layermem_bench.run.setup import build_model, load_run_tokenizer
from layermem_bench.tasks import registry
from layermem_bench.tasks.problems import Problem
from layermem_bench.text.blocks import Blocks, Sketch, hash_text
from layermem_bench.text.preparing import prepare

IGNORED = -100
"""Label of a token that has no loss."""


@final
class ProblemDataset(Dataset[dict[str, Tensor]]):
    """Encoded problems: ``input_ids`` and ``labels`` [T], where T differs between problems."""

    documents = Sketch()

    def __init__(self, problems: Sequence[Problem], tokenizer: Any) -> None:
        if not problems:
            raise ValueError("a training or validation set needs at least one problem, got none")
        self.problems, end = problems, tokenizer.eos_token_id
        prompts, solutions = registry.encode(tokenizer, problems)
        self._queried = registry.select_queried(problems)
        items = []
        for number, (prompt, solution) in enumerate(zip(prompts, solutions, strict=True)):
            if self._queried:
                ids, labels = [*prompt, end], [IGNORED] * (len(prompt) + 1)
                # The token after a query is predicted at the query.
                for query, answer in zip(self._queried[number].queries, solution, strict=True):
                    labels[query + 1] = answer
            else:
                ids = [*prompt, *solution, end]
                labels = [*[IGNORED] * len(prompt), *solution, end]
            items.append({"input_ids": ids, "labels": labels})
        self.items, padding = items, tokenizer.pad_token_id
        self.padding = end if padding is None else padding
        self.length = sum(len(item["input_ids"]) for item in items) / len(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: torch.tensor(ids) for name, ids in self.items[index].items()}

    def collate(self, items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Pad to the longest sequence, on the right, where a causal model needs no mask."""
        return {
            name: pad_sequence([item[name] for item in items], True, padding)
            for name, padding in (("input_ids", self.padding), ("labels", IGNORED))
        }

    def identity(self) -> object:
        """Return ids and labels of problems with queries, prompts and solutions of others."""
        if self._queried:
            return [[list(item[name]) for name in ("input_ids", "labels")] for item in self.items]
        lengths = [item["labels"].count(IGNORED) for item in self.items]
        ids = [item["input_ids"] for item in self.items]
        return [[each[:n], each[n:]] for each, n in zip(ids, lengths, strict=True)]


def build_problem_datasets(task: Task, tokenizer: Any) -> tuple[ProblemDataset, ProblemDataset]:
    """Return the training set, with what is repeated in it, and the validation set of a task."""
    definition, fields = registry.get_task(str(task.name)), task.fields()
    counts = {"train": task.examples, "validation": task.validation, "test": task.test}
    # Problems that options name files for are known to later stages; others are drawn.
    files = {split for split in counts if isinstance(fields.get(split), str)}
    problems = {
        split: list(definition.problems(split, count, task.seed, **fields))
        for split, count in counts.items()
        if split != "test" or split in files
    }
    train, validation = problems["train"], problems["validation"]
    repeated = train[: task.repeated] * (task.repeats - 1)
    datasets = ProblemDataset([*train, *repeated], tokenizer), ProblemDataset(validation, tokenizer)
    registry.check_tokenizer(definition, tokenizer, validation)
    for dataset, splits in zip(datasets, (("train",), ("validation", "test")), strict=True):
        read = (each for split in splits if split in files for each in problems[split])
        dataset.documents = Sketch(hash_text(problem.prompt) for problem in read)
    return datasets


def order_of(size: int, length: int, seed: int) -> Iterator[int]:
    """Yield ``length`` indices of a dataset of ``size`` sequences, drawn from a seed.

    They are a chain of permutations, so that every step has a full batch, in an order that depends
    on neither processes, micro-batch nor variant.
    """
    generator = torch.Generator().manual_seed(seed)
    while length > 0:
        epoch = torch.randperm(size, generator=generator)[:length].tolist()
        yield from epoch
        length -= len(epoch)


SequenceDataset: TypeAlias = Blocks | ProblemDataset
"""A dataset of token sequences: ``input_ids`` and ``labels`` of each; ``length``: of the mean one;
``documents``: a sketch of those read from files; ``identity()``: what its digest is of."""
# From a model, its tokenizer, a task and the name of a split to the result and every attempt.
Evaluate: TypeAlias = Callable[[Any, Any, Task, str], tuple[Solved, Sequence[Any]]]


class Learning:
    """The prepared data of a run, and how its model is loaded and measured."""

    description: str
    """What the data are, for the model card."""
    train_data: SequenceDataset
    validation_data: SequenceDataset
    longest: int
    """Tokens of the longest sequence."""
    text_digest: str | None = None
    """What identifies text, which needs no tokens to be compared; None: there is none."""
    evaluate: Evaluate | None = None
    """Has a model solve problems of a split; None: nothing is measured beside the loss."""

    def __init__(self, run: Run) -> None:
        self.run, self.tokenizer = run, load_run_tokenizer(run)

    def load_model(self) -> Any:
        """Return the model that is trained, with the parameters to train."""
        model = build_model(self.run, self.tokenizer)
        positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if isinstance(positions, int) and self.longest > positions:
            raise ValueError(
                f"sequences of {self.description} have up to {self.longest} tokens, and the model "
                f"reads {positions} (max_position_embeddings): choose a smaller data.block_size, "
                "--task.options with shorter problems, or another model"
            )
        return model

    def metrics(self, model: Any) -> dict[str, float]:
        """Return what a validation records beside the loss."""
        return {}


@final
class TextLearning(Learning):
    """Every next token of blocks of text."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.longest, isolate = run.data.block_size, run.data.isolate_documents
        train, validation = prepare(run.data, self.tokenizer)
        self.validation_data = Blocks(
            validation, self.longest, isolate=isolate, at_most=run.eval_blocks
        )
        self.train_data = Blocks(train, self.longest, isolate=isolate)
        self.text_digest = self.train_data.text_digest
        names = ", ".join(filter(None, (run.data.source, run.data.subset, run.data.revision)))
        self.description = f"{names}; blocks of {self.longest} tokens"


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

    def metrics(self, model: Any) -> dict[str, float]:
        if self.evaluate is None:
            return {}
        solved, _ = self.evaluate(model, self.tokenizer, self.run.task, "validation")
        return {"val_accuracy": solved.accuracy, "val_steps": solved.steps}


def prepare_learning(run: Run, evaluate: Evaluate | None = None) -> Learning:
    """Return what a run learns, with its tokenizer and data; None as ``evaluate``: the problems of
    a task are not solved."""
    return ProblemLearning(run, evaluate) if run.task.name else TextLearning(run)
