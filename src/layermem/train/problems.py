"""Problems as training examples: prompt and solution as one sequence, the loss on the solution.

It does not know: any particular task, models.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from layermem import config
from layermem.tasks import registry

# What the loss leaves out.
_IGNORED = -100


class Problems(Dataset[dict[str, Tensor]]):
    """Encoded problems: ``input_ids``, ``labels`` [T], of different lengths."""

    def __init__(self, problems: Sequence[registry.Problem], tokenizer: Any) -> None:
        if not problems:
            raise ValueError("there are no problems to learn from")
        self.problems, self.padding = problems, tokenizer.pad_token_id
        if self.padding is None:
            self.padding = tokenizer.eos_token_id
        prompts, solutions = registry.encode(tokenizer, problems)
        end = tokenizer.eos_token_id
        self.sequences = [
            (prompt, [*solution, end]) for prompt, solution in zip(prompts, solutions, strict=True)
        ]
        self.length = sum(len(a) + len(b) for a, b in self.sequences) / len(problems)

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        prompt, solution = self.sequences[index]
        return {
            "input_ids": torch.tensor([*prompt, *solution]),
            "labels": torch.tensor([*[_IGNORED] * len(prompt), *solution]),
        }

    def collate(self, items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Pad to the longest, on the right, where a causal model needs no mask."""
        fillers = {"input_ids": self.padding, "labels": _IGNORED}
        return {
            name: pad_sequence([item[name] for item in items], True, filler)
            for name, filler in fillers.items()
        }


def problems(task: config.Task, tokenizer: Any) -> tuple[Problems, Problems]:
    """Return what is learnt from and what validates."""
    kind = registry.get_task(str(task.name))
    train, validation = (
        Problems(kind.problems(split, count, task.seed, **task.fields()), tokenizer)
        for split, count in (("train", task.examples), ("validation", task.validation))
    )
    registry.check_tokenizer(kind, tokenizer, validation.problems)
    return train, validation


def measure(task: config.Task, tokenizer: Any = None) -> tuple[int, float]:
    """Return the size of the vocabulary, and about how many tokens a problem has.

    ``tokenizer``: None: the task's own.
    """
    kind = registry.get_task(str(task.name))
    tokenizer = tokenizer or kind.tokenizer(**task.fields())
    some = Problems(
        kind.problems("train", min(200, task.examples), task.seed, **task.fields()), tokenizer
    )
    return len(tokenizer), some.length
