"""How many problems of a task a model solves, and which faults its other attempts have."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from layermem import config
from layermem.evals.generation import GreedySettings, greedy, shared_greedy
from layermem.evals.queries import read_answers
from layermem.intervals import proportion
from layermem.results.solved import Shares, Solved
from layermem.tasks.problems import Grade, Problem, Queried
from layermem.tasks.registry import (
    TaskDefinition,
    encode,
    get_task,
    select_queried,
)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A problem, the text that the model generated for it, and its grade."""

    problem: Problem
    text: str
    grade: Grade
    level: int

    @property
    def answers(self) -> list[tuple[int, bool]]:
        """The level of each answer, and whether it is right."""
        if isinstance(self.problem, Queried):
            return list(zip(self.problem.levels, self.grade.right, strict=True))
        return [(self.level, self.grade.answer)]

    def row(self) -> dict[str, Any]:
        """Return the attempt as an object of attempts.jsonl."""
        grade = asdict(self.grade)
        if not self.grade.right:
            del grade["right"]
        return {
            "prompt": self.problem.prompt,
            "solution": self.problem.solution,
            "text": self.text,
            "level": self.level,
            **grade,
        }


def attempt(
    model: PreTrainedModel,
    tokenizer: Any,
    task: TaskDefinition,
    problems: Sequence[Problem],
    *,
    batch_size: int = 256,
    progress: Callable[[int], None] | None = None,
    shared: bool = False,
) -> list[Attempt]:
    """Let a model solve problems; a solution much longer than the longest right one is cut.

    Answers to queries inside a sequence are read in one forward; each process reads all of them.
    ``shared``: the processes of a run share the problems, and all must call this; ``progress`` is
    not called then.
    """
    if not problems:
        raise ValueError("there are no problems to solve")
    prompts, solutions = encode(tokenizer, problems)
    end, padding = tokenizer.eos_token_id, tokenizer.pad_token_id
    settings = GreedySettings(
        end=end,
        padding=end if padding is None else padding,
        max_new_tokens=max(map(len, solutions)) + task.extra_tokens,
        batch_size=batch_size,
    )
    if queried := select_queried(problems):
        queries = [problem.queries for problem in queried]
        answers = read_answers(model, prompts, queries, settings, progress=progress)
        texts = _join_words(tokenizer, answers)
    else:
        if shared:
            generated = shared_greedy(model, prompts, settings)
        else:
            generated = greedy(model, prompts, settings, progress=progress)
        texts = tokenizer.batch_decode(generated, skip_special_tokens=True)
    return [
        Attempt(problem=p, text=text, grade=task.grade(p, text), level=task.level(p))
        for p, text in zip(problems, texts, strict=True)
    ]


def _join_words(tokenizer: Any, answers: Sequence[Sequence[int]]) -> list[str]:
    """Return each problem's answers, one word for every id, separated by spaces.

    Answers are graded by position, so a special token stays a word of its own (``<end>``), and so
    does an id that the tokenizer has no token for (``<132>``); decoding would leave both out.
    """
    words = {
        token: "".join(tokenizer.decode([token]).split()) or f"<{token}>"
        for token in set(chain.from_iterable(answers))
    }
    return [" ".join(words[token] for token in ids) for ids in answers]


def score_attempts(
    attempts: Sequence[Attempt],
    task: TaskDefinition,
    *,
    name: str,
    split: str,
    model: str | None = None,
) -> Solved:
    """Return the shares of right attempts with 95% intervals, also by level, and the faults."""
    by_level = {
        str(level): _shares(attempts, level)
        for level in sorted({level for a in attempts for level, _ in a.answers})
    }
    return Solved(
        **vars(_shares(attempts)),
        task=name,
        split=split,
        model=model,
        chance=task.chance([a.problem for a in attempts]),
        by={task.level_name: by_level},
        faults=dict(Counter(a.grade.fault for a in attempts if a.grade.fault)),
    )


def evaluate(
    model: PreTrainedModel, tokenizer: Any, task: config.Task, split: str = "validation"
) -> tuple[Solved, list[Attempt]]:
    """Let a model solve a split of a run's task.

    The processes of a run share the validation problems. Each solves all of the test problems,
    since a run may be stopped there, and then no process may wait for the share of another.
    """
    definition = get_task(str(task.name))
    shared = split == "validation"
    attempts = attempt(model, tokenizer, definition, _problems(task, split), shared=shared)
    return score_attempts(attempts, definition, name=str(task.name), split=split), attempts


def solve_with(
    checkpoint: Path,
    task: config.Task,
    *,
    split: str = "test",
    count: int = 10_000,
    batch_size: int = 256,
    progress: Callable[[int], None] | None = None,
    load: Callable[[Path], Any] = AutoModelForCausalLM.from_pretrained,
) -> Solved:
    """Let a saved model, which ``load`` returns, solve problems of a task."""
    definition = get_task(str(task.name))
    problems = definition.problems(split, count, task.seed, **task.fields())
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = load(checkpoint)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    attempts = attempt(
        model, tokenizer, definition, problems, batch_size=batch_size, progress=progress
    )
    return score_attempts(
        attempts, definition, name=str(task.name), split=split, model=str(checkpoint)
    )


@lru_cache(maxsize=4)
def _problems(task: config.Task, split: str) -> Sequence[Problem]:
    count = task.test if split == "test" else task.validation
    return get_task(str(task.name)).problems(split, count, task.seed, **task.fields())


def _shares(attempts: Sequence[Attempt], level: int | None = None) -> Shares:
    """Return the shares of all answers, or of those of a level and of the problems that have any.

    A problem whose answers are all of one level is right in every step where its grade says so; of
    one with several levels, which are graded by their answers, where those of the level are right.

    The share of a problem with several answers is between 0 and 1, and so varies no more than one
    that is 0 or 1: the interval of a proportion is at least as wide as its own.
    """
    graded = [
        (statistics.fmean(right), a.grade.steps if len(right) == len(a.answers) else all(right))
        for a in attempts
        if (right := [right for own, right in a.answers if level in (None, own)])
    ]
    count = len(graded)
    successes = math.fsum(share for share, _ in graded)
    every_step_right = sum(steps for _, steps in graded)
    return Shares(
        count=count,
        accuracy=successes / count,
        interval=proportion(successes, count),
        steps=every_step_right / count,
        steps_interval=proportion(every_step_right, count),
    )
