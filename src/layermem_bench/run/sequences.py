"""Sequences of tokens as the loop gets them: problems, their order, and digests of what is read.

Of problems with queries the sequence is the prompt, and the label after a query is its answer,
whatever token stands there. Blocks of text are in ``text.blocks``.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, final

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from layermem.models.hub import find_commit
from layermem_bench.config.hashing import file_digest
from layermem_bench.config.run import Task
from layermem_bench.tasks import registry
from layermem_bench.tasks.problems import Problem
from layermem_bench.text.document_hashes import Sketch

IGNORED = -100
"""Label of a token that has no loss."""


class SequenceDataset(Protocol):
    """A dataset of token sequences: ``input_ids`` and ``labels`` of each."""

    length: float
    """Mean number of tokens in a sequence."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> dict[str, Tensor]: ...

    def collate(self, items: Sequence[dict[str, Tensor]], /) -> dict[str, Tensor]:
        """Make a batch of sequences."""

    @property
    def documents(self) -> Sketch:
        """Texts or problems of files that the split has; none: its problems are drawn."""

    def identity(self) -> object:
        """Return what ``digest`` recognises the split by, as JSON would hold it."""


@final
class ProblemDataset(Dataset[dict[str, Tensor]]):
    """Encoded problems: ``input_ids`` and ``labels`` [T], where T differs between problems."""

    documents = Sketch.of(())

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
    # Problems that options name files for are known to later stages; others are drawn.
    problems = {
        split: list(registry.problems_of(task, split))
        for split in ("train", "validation", "test")
        if split != "test" or isinstance(fields.get(split), str)
    }
    train, validation = problems["train"], problems["validation"]
    from_files = {
        split: each for split, each in problems.items() if isinstance(fields.get(split), str)
    }
    repeated = train[: task.repeated] * (task.repeats - 1)
    datasets = ProblemDataset([*train, *repeated], tokenizer), ProblemDataset(validation, tokenizer)
    registry.check_tokenizer(definition, tokenizer, validation)
    for dataset, splits in zip(datasets, (("train",), ("validation", "test")), strict=True):
        files = (each for split in splits for each in from_files.get(split, ()))
        dataset.documents = Sketch.of(problem.prompt for problem in files)
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


def weights_digest(source: str | None, revision: str | None = None) -> str | None:
    """Return twelve hexadecimal digits that identify the weights in a folder, or the commit of a
    model on the hub; None: there is no model, or its commit cannot be found."""
    if source is None:
        return None
    if not Path(source).is_dir():
        return find_commit(source, revision=revision)
    files = [path for path in Path(source).iterdir() if path.suffix in (".safetensors", ".bin")]
    return digest([[path.name, file_digest(path)] for path in sorted(files)])


def digest(value: object) -> str:
    """Return twelve hexadecimal digits that identify data, as JSON would hold them."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]
