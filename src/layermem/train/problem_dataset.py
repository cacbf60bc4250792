"""A task's problems as training sequences: prompt and solution, with the loss on the solution.

Of problems with queries the sequence is the prompt, with the loss on the answers alone. The label
after a query is its answer, whatever token stands there.

It does not know: any particular task, models.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from layermem.config import Task
from layermem.tasks import registry

# The label of tokens that have no loss.
_IGNORED = -100


class ProblemDataset(Dataset[dict[str, Tensor]]):
    """Encoded problems: ``input_ids`` and ``labels`` [T], where T differs between problems."""

    def __init__(self, problems: Sequence[registry.Problem], tokenizer: Any) -> None:
        if not problems:
            raise ValueError("a training or validation set needs at least one problem, got none")
        self.problems, self.padding = problems, tokenizer.pad_token_id
        if self.padding is None:
            self.padding = tokenizer.eos_token_id
        prompts, solutions = registry.encode(tokenizer, problems)
        end = tokenizer.eos_token_id
        self._queried = registry.select_queried(problems)
        if self._queried:
            queries = [problem.queries for problem in self._queried]
            self.sequences = [
                ([*prompt, end], _label(len(prompt) + 1, *answered))
                for prompt, *answered in zip(prompts, queries, solutions, strict=True)
            ]
            self.length = sum(len(ids) for ids, _ in self.sequences) / len(problems)
            return
        self.sequences = [
            (prompt, [*solution, end]) for prompt, solution in zip(prompts, solutions, strict=True)
        ]
        self.length = sum(len(p) + len(s) for p, s in self.sequences) / len(problems)

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        prompt, solution = self.sequences[index]
        if self._queried:
            return {"input_ids": torch.tensor(prompt), "labels": torch.tensor(solution)}
        return {
            "input_ids": torch.tensor([*prompt, *solution]),
            "labels": torch.tensor([*[_IGNORED] * len(prompt), *solution]),
        }

    def collate(self, items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Pad to the longest sequence, on the right, where a causal model needs no mask."""
        padding = {"input_ids": self.padding, "labels": _IGNORED}
        return {
            name: pad_sequence([item[name] for item in items], True, value)
            for name, value in padding.items()
        }


def _label(length: int, queries: Sequence[int], answers: Sequence[int]) -> list[int]:
    """Return labels, each where the token after its query is: that token is predicted there."""
    labels = [_IGNORED] * length
    for query, answer in zip(queries, answers, strict=True):
        labels[query + 1] = answer
    return labels


def build_problem_datasets(task: Task, tokenizer: Any) -> tuple[ProblemDataset, ProblemDataset]:
    """Return the training set, with what is repeated in it, and the validation set of a task."""
    definition = registry.get_task(str(task.name))
    train, validation = (
        list(definition.problems(split, count, task.seed, **task.fields()))
        for split, count in (("train", task.examples), ("validation", task.validation))
    )
    # A file of records may have fewer than were asked for.
    if task.repeated and task.repeated >= len(train):
        raise ValueError(
            f"task.repeated ({task.repeated}) must be fewer than the problems of the training set, "
            f"which are {len(train)}"
        )
    train += train[: task.repeated] * (task.repeats - 1)
    datasets = ProblemDataset(train, tokenizer), ProblemDataset(validation, tokenizer)
    registry.check_tokenizer(definition, tokenizer, validation)
    return datasets
