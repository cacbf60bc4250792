"""Scores of models on evaluation tasks: shares of right answers, and paired differences.

    EvalResult        eval.json: options, and
      TaskFacts         of each task: items, chance, majority, the paper's figures
      TaskScore         of each model and task: accuracy by few-shot seed, with intervals
      TaskDifference    of each model but the first and task: against the first
    TaskAnswers       answers/*.json: which items one model has right on a task with one seed

It does not know: prompts, models, how anything is computed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from layermem.number_ranges import at_least, number


@dataclass(frozen=True, kw_only=True)
class AnswersKey:
    """What the answers to a task depend on; those of another key are never used instead."""

    checkpoint: str
    """Digest of the model's files; of a model on the hub, its name and revision."""
    task: str
    """Name of the task."""
    version: str
    """Version of the task's definition."""
    definition: str
    """Digest of the task's definition."""
    records: str
    """Digest of the items and of what few-shot examples are drawn from."""
    shots: int
    """Few-shot examples before each item."""
    seed: int
    """Seed by which they are drawn."""
    limit: int | None
    """Items that are asked, the first ones; None: all."""
    truncate: bool
    """Whether prompts may be cut at their start."""
    max_length: int | None
    """Tokens that the model is given at most; None: as many as it reads."""
    lm_eval: str
    """Version of lm-eval."""


@dataclass(frozen=True, kw_only=True)
class TaskAnswers:
    """What one model answers on one task with one seed of few-shot examples."""

    KIND: ClassVar[str] = "task_answers"
    VERSION: ClassVar[int] = 1
    COMMAND: ClassVar[str] = "layermem eval"

    key: AnswersKey
    """What they depend on."""
    right: tuple[int, ...]
    """Of each item 1 if the most probable choice is the right one, else 0."""
    right_norm: tuple[int, ...] | None
    """The same with log-probabilities divided by the characters of the choices; None: the task's
    definition does not ask for it."""
    prompts: str
    """Digest of the prompts: two models are compared where it is the same."""
    chance: float
    """Share that a guess has right: the mean over items of 1 / choices."""
    majority: float
    """Share that the most frequent right answer has right, by its text or by its place."""
    requests: int
    """Pairs of a prompt and a choice."""
    truncated: int
    """Of these, those that were cut because the model is given no more tokens."""
    unknown_tokens: int
    """Tokens in them that stand for text which the tokenizer has no tokens for."""
    ties: int
    """Items with two equally probable best choices, of which lm-eval takes the first."""


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """A share of right answers, the mean over seeds of few-shot examples."""

    mean: float
    """Share of right answers."""
    by_seed: tuple[float, ...]
    """Of each seed."""
    over_seeds: tuple[float, ...]
    """Its 95% interval over seeds (Student's t); empty: there is one seed."""
    over_items: tuple[float, ...]
    """Its 95% interval (Wilson) over items."""


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """How a model does on a task."""

    accuracy: Accuracy
    """By the most probable choice (acc)."""
    accuracy_norm: Accuracy | None
    """By the most probable choice per character (acc_norm); None: the task does not ask for it."""
    requests: int
    """Pairs of a prompt and a choice, of all seeds."""
    truncated: int
    """Of these, those that were cut because the model is given no more tokens."""
    unknown_tokens: int
    """Tokens in them that stand for text which the tokenizer has no tokens for."""
    ties: int
    """Items, of all seeds, with two equally probable best choices."""


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """A task as it was run."""

    version: str
    """Version of its definition."""
    source: str
    """Where the items are from: the names of files, or a data set on the hub."""
    few_shot_source: str
    """Where few-shot examples are from."""
    items: int
    """Items that were asked."""
    chance: float
    """Share that a guess has right."""
    majority: float
    """Share that the most frequent right answer has right."""
    tables: str
    """Tables of the paper that it is in; empty: none."""
    paper: Mapping[str, float]
    """The paper's accuracies in percent, by model."""


@dataclass(frozen=True, kw_only=True)
class TaskDifference:
    """A model against the first one on the same items and prompts."""

    accuracy: float
    """Difference of the shares of right answers, the mean over seeds."""
    over_items: tuple[float, ...]
    """Its 95% interval over items; empty: there is one item."""
    over_seeds: tuple[float, ...]
    """Its 95% interval over seeds, paired; empty: there is one seed."""
    only_ours: int
    """Items that this model alone has right, with the first seed."""
    only_theirs: int
    """Items that the first model alone has right, with the first seed."""
    p_value: float
    """McNemar's exact test with the first seed, adjusted for the number of tasks (Holm)."""


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """What is asked, and how."""

    tasks: tuple[str, ...] = ("paper",)
    """Tasks, also separated by commas; "paper": all of the paper's tables 1 and 4 to 6; a name that
    ends in .yaml: a file as lm-eval's definitions of tasks are."""
    shots: int = number(3, at_least(0))
    """Few-shot examples before each item."""
    seeds: int = number(5, at_least(1))
    """Seeds by which few-shot examples are drawn: 0, 1, ... Without shots one is enough."""
    limit: int | None = number(None, at_least(1))
    """Items of each task, the first ones; None: all."""
    records: tuple[str, ...] = ()
    """Folders of records, and files as TASK=FILE or TASK:train=FILE; a task without any is
    fetched from the hub."""
    truncate: bool = False
    """Cut the start of prompts that are longer than the model reads, and say how many; without it
    they are refused."""
    max_length: int | None = number(None, at_least(1))
    """Tokens that a model is given at most; None: as many as it can read. Of positions beyond those
    of its training a model has learned nothing."""
    batch_size: int | None = number(None, at_least(1))
    """Prompts of a batch; None: on a GPU as many as fit, else as many as 128 MB of logits allow."""


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """Models on the same tasks."""

    KIND: ClassVar[str] = "eval"
    VERSION: ClassVar[int] = 1
    COMMAND: ClassVar[str] = "layermem eval"

    command: str
    """What made it."""
    options: EvalOptions
    """What was asked, and how."""
    lm_eval: str
    """Version of lm-eval."""
    tasks: Mapping[str, TaskFacts]
    """Name of each task to what it is."""
    models: Mapping[str, Mapping[str, TaskScore]]
    """Name of each model to its score on each task."""
    differences: Mapping[str, Mapping[str, TaskDifference]]
    """Name of each model but the first to its difference from the first on each task."""
