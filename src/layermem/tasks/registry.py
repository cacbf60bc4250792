"""Tasks by name: how their problems are made, written as tokens, graded.

It does not know: models, training.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from transformers import PreTrainedTokenizerFast

from layermem.config import checked
from layermem.tasks import arithmetic, prosqa
from layermem.tasks.grading import Grade

# Solutions that are read back to see whether a tokenizer keeps what is graded.
_READ_BACK = 50


class Problem(Protocol):
    """What every task's problems have."""

    @property
    def prompt(self) -> str:
        """What the model is given."""

    @property
    def solution(self) -> str:
        """What it should write."""


@dataclass(frozen=True, kw_only=True)
class TaskDefinition:
    """One kind of problem."""

    make: Callable[..., Sequence[Problem]]
    """Problems of ``split``, ``count``, ``seed`` and the task's own options."""
    tokenizer: Callable[..., PreTrainedTokenizerFast]
    """Its own tokenizer, from the task's options."""
    grade: Callable[[Any, str], Grade]
    """What a generated solution is worth."""
    level: Callable[[Any], int]
    """How hard a problem is."""
    levels: str
    """What that counts."""
    spare: int
    """Tokens that a solution may take beyond the longest right one."""
    describe: Callable[[Sequence[Any]], dict[str, Any]]
    """What problems are like."""
    chance: Callable[[Sequence[Any]], float]
    """Share of right answers of somebody who has not read the question."""
    words: Callable[..., tuple[str, ...]]
    """Words that its problems are full of, from the task's options: what a probe tells apart."""
    overlap: Callable[[Sequence[Any], Sequence[Any]], dict[str, float]] | None = None
    """What test problems share with those learnt from; None: nothing that could be counted."""
    splits_by: Callable[[Mapping[str, Any]], tuple[str, ...]] = lambda options: ()
    """Options that, beside the given ones, decide which problems are in which split: a model that
    learnt under one value is tested under the same."""

    def problems(self, split: str, count: int, seed: int, **options: Any) -> Sequence[Problem]:
        """Return problems; an option that is unknown or of another type is an error."""
        known = self._options()
        if unknown := sorted(set(options) - set(known)):
            raise ValueError(f"no option {', '.join(unknown)}; there are {', '.join(known)}")
        fit = {name: checked(known[name].annotation, v, name) for name, v in options.items()}
        return self.make(split=split, count=count, seed=seed, **fit)

    def options(self) -> dict[str, Any]:
        """Return the task's options with their defaults."""
        return {name: option.default for name, option in self._options().items()}

    def _options(self) -> dict[str, inspect.Parameter]:
        parameters = inspect.signature(self.make).parameters.values()
        return {p.name: p for p in parameters if p.name not in ("split", "count", "seed")}


def encode(tokenizer: Any, problems: Sequence[Problem]) -> tuple[list[list[int]], list[list[int]]]:
    """Return prompts and solutions as ids; a word that has no token is an error that names it."""

    def ids(texts: list[str]) -> list[list[int]]:
        found: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
        unknown = tokenizer.unk_token_id
        for text, one in zip(texts, found, strict=True):
            if unknown is not None and unknown in one:
                places = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
                start, end = places["offset_mapping"][one.index(unknown)]
                raise ValueError(
                    f"the tokenizer has no token for {text[start:end]!r} in {text!r:.60}; choose "
                    "problems within what it knows, or another --task.tokenizer"
                )
        return found

    return ids([p.prompt for p in problems]), ids([p.solution for p in problems])


def check_tokenizer(task: TaskDefinition, tokenizer: Any, problems: Sequence[Problem]) -> None:
    """Raise where right solutions, as a tokenizer gives them back, would be graded wrong."""
    some = problems[:_READ_BACK]
    _, solutions = encode(tokenizer, some)
    texts = tokenizer.batch_decode(solutions, skip_special_tokens=True)
    for problem, text in zip(some, texts, strict=True):
        if not task.grade(problem, text).steps:
            raise ValueError(
                f"the tokenizer gives {problem.solution!r:.60} back as {text!r:.60}, which is "
                "graded wrong: no model could solve the task; choose a --task.tokenizer that keeps "
                "letters, digits and signs as they are"
            )


def get_task(name: str) -> TaskDefinition:
    """Return a task."""
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; there are {', '.join(TASKS)}")
    return TASKS[name]


def _commonest(examples: Sequence[arithmetic.Example]) -> float:
    """The share of the commonest answer."""
    counts = Counter(example.answer for example in examples)
    return max(counts.values()) / len(examples)


def _numbers(value_max: int = 200, **_: Any) -> tuple[str, ...]:
    """The smallest numbers, which operands are."""
    return tuple(map(str, range(1, 5) if value_max >= 4 else range(value_max + 1)))


def _deciding(options: Mapping[str, Any]) -> tuple[str, ...]:
    """How the split is decided; by the text, then parentheses that change nothing do too."""
    strict = options.get("held_out", "strict") == "strict"
    return ("held_out",) if strict else ("held_out", "parentheses")


TASKS: dict[str, TaskDefinition] = {
    "arithmetic": TaskDefinition(
        make=partial(arithmetic.generate, operands=4),
        tokenizer=arithmetic.tokenizer,
        grade=lambda example, text: arithmetic.grade(example.prompt, text),
        level=lambda example: example.operands,
        levels="operands",
        spare=8,
        describe=arithmetic.describe,
        chance=_commonest,
        overlap=arithmetic.overlap,
        splits_by=_deciding,
        words=_numbers,
    ),
    "prosqa": TaskDefinition(
        make=prosqa.problems,
        tokenizer=prosqa.tokenizer,
        grade=prosqa.grade,
        level=lambda record: len(record.steps),
        levels="steps",
        spare=64,
        describe=prosqa.describe,
        chance=lambda records: 0.5,
        words=lambda **_: tuple(prosqa.NAMES[:4]),
    ),
}
