"""How many problems of a task models solve, and which faults their other attempts have.

Solutions are generated greedily. Prompts are sorted by length and padded on the left, so that the
prompts of a batch end at about the same time and little is padded; the cache is transformers'.
Answers to queries inside a sequence are read in one forward.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedModel

from layermem_bench.config import run as config
from layermem_bench.config.named import merged
from layermem_bench.evals.perplexity import pad_right, rows_at_once
from layermem_bench.evals.result import EvalOptions, Part, Row, Score, Table, Tell
from layermem_bench.run.folder import Shares, Solved
from layermem_bench.run.trained_models import Checkpoint, load_model
from layermem_bench.statistics import proportion
from layermem_bench.tasks.problems import Grade, Problem, Queried
from layermem_bench.tasks.registry import (
    TaskDefinition,
    encode,
    get_task,
    problems_of,
    select_queried,
)

Rows = Sequence[Sequence[int]]
# Problems where no number is asked for.
_COUNT = 10_000
# Prompts of a batch.
_BATCH = 256


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
        texts = {"prompt": self.problem.prompt, "solution": self.problem.solution}
        row = {**texts, "text": self.text, "level": self.level, **asdict(self.grade)}
        if not row["right"]:
            del row["right"]
        return row


def evaluate(
    model: PreTrainedModel,
    tokenizer: Any,
    task: config.Task,
    split: str = "validation",
    batch_size: int = _BATCH,
) -> tuple[Solved, list[Attempt]]:
    """Let a model, in eval mode, solve a split of a run's task; return the shares of right attempts
    with 95% intervals, also by level, and the faults.

    Each process of a run solves all problems: of a sharded model every forward needs all of them.
    """
    definition, problems = get_task(str(task.name)), problems_of(task, split)
    attempts = attempt(model, tokenizer, definition, problems, batch_size)
    levels = sorted({level for each in attempts for level, _ in each.answers})
    solved = Solved(
        **vars(_shares(attempts)),
        task=task.name,
        split=split,
        chance=definition.chance(problems),
        by={definition.level_name: {str(level): _shares(attempts, level) for level in levels}},
        faults=dict(Counter(each.grade.fault for each in attempts if each.grade.fault)),
    )
    return solved, attempts


def attempt(
    model: PreTrainedModel,
    tokenizer: Any,
    task: TaskDefinition,
    problems: Sequence[Problem],
    batch_size: int = _BATCH,
) -> list[Attempt]:
    """Let a model solve problems; a solution much longer than the longest right one is cut."""
    if not problems:
        raise ValueError("there are no problems to solve")
    prompts, solutions = encode(tokenizer, problems)
    if queried := select_queried(problems):
        answers = read_answers(model, prompts, [each.queries for each in queried])
        texts = _join_words(tokenizer, answers)
    else:
        end, padding = tokenizer.eos_token_id, tokenizer.pad_token_id
        generated = greedy(
            model,
            prompts,
            end=end,
            padding=end if padding is None else padding,
            max_new_tokens=max(map(len, solutions)) + task.extra_tokens,
            batch_size=batch_size,
        )
        # What is cut at the end token has no other special token in a right solution.
        texts = tokenizer.batch_decode(generated, skip_special_tokens=False)
    return [
        Attempt(problem=p, text=text, grade=task.grade(p, text), level=task.level(p))
        for p, text in zip(problems, texts, strict=True)
    ]


@torch.inference_mode()
def greedy(
    model: PreTrainedModel,
    prompts: Rows,
    *,
    end: int,
    padding: int,
    max_new_tokens: int,
    batch_size: int = _BATCH,
) -> list[list[int]]:
    """Return the tokens generated after each prompt, without the end token, in the given order."""
    generation = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        use_cache=model.generation_config.use_cache,
        eos_token_id=end,
        pad_token_id=padding,
        bos_token_id=None,
    )
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    generated: list[list[int]] = [[] for _ in prompts]
    # transformers fills fields that are None from the model's own config, which may have others of
    # a pretrained model: penalties, suppressed tokens.
    own, model.generation_config = model.generation_config, generation
    try:
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            rows = [torch.tensor([*prompts[i]]) for i in places]
            ids = pad_sequence(rows, True, padding, "left").to(model.device)
            mask = pad_sequence(list(map(torch.ones_like, rows)), True, 0, "left").to(model.device)
            out = model.generate(ids, attention_mask=mask, generation_config=generation)
            for i, row in zip(places, out[:, ids.shape[1] :].tolist(), strict=True):
                generated[i] = row[: row.index(end)] if end in row else row
    finally:
        model.generation_config = own
    return generated


@torch.inference_mode()
def read_answers(model: PreTrainedModel, sequences: Rows, queries: Rows) -> list[list[int]]:
    """Return the likeliest token after each query, sequence by sequence.

    ``queries``: indices of tokens of each sequence.
    """
    answers: list[list[int]] = []
    size = rows_at_once(model, max(map(len, sequences)))
    for start in range(0, len(sequences), size):
        ids = pad_right(sequences[start : start + size]).to(model.device)
        likeliest = model(input_ids=ids, use_cache=False).logits.argmax(-1).tolist()
        asked = queries[start : start + size]
        answers += [[row[q] for q in of] for row, of in zip(likeliest, asked, strict=True)]
    return answers


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


def measure_problems(
    opened: Sequence[Checkpoint], names: Sequence[str], options: EvalOptions, tell: Tell
) -> Part:
    """Have the final models of runs solve problems of the tasks that they were trained on."""
    rows = list[Row]()
    for name in names:
        tasks = {each.name: _task_of(each, name, options) for each in opened}
        solved = {each.name: solve(each, tasks[each.name], options, tell) for each in opened}
        first, *others = map(_prompts, tasks.values())
        is_same = all(other == first for other in others)
        rows += [replace(row, is_comparable=is_same) for row in _rows(name, solved)]
    return Part(
        title="Problems of their tasks",
        how="Problems of the test split, of each run its own: with another seed or other options "
        "of the task they differ. 95% intervals by Wilson's method, over problems and not over "
        "seeds of training. Noted: the first faults of wrong solutions.",
        tables={row.table: Table(better="higher") for row in rows},
        rows=tuple(rows),
    )


def _task_of(checkpoint: Checkpoint, name: str, options: EvalOptions) -> config.Task:
    """Return the task of which a run's model solves problems, as many as are asked for; refuse
    another task than it was trained on, and problems that it was trained on."""
    trained_on = checkpoint.run.task if checkpoint.run is not None else config.Task()
    if trained_on.name != name:
        raise ValueError(
            f"{checkpoint.name} was trained by no run on {name}: a model solves problems of the "
            "task that its run trained it on"
        )
    task = replace(
        trained_on,
        options=merged(trained_on.options, options.task_options),
        test=options.limit or _COUNT,
    )
    if options.task_options:
        learnt, asked = {*_prompts(trained_on, "train")}, _prompts(task)
        if shared := sum(prompt in learnt for prompt in asked):
            raise ValueError(
                f"the model was trained on {shared:,} of the {len(asked):,} problems that "
                "--task-options asks for: give others"
            )
    return task


def _prompts(task: config.Task, split: str = "test") -> list[str]:
    return [problem.prompt for problem in problems_of(task, split)]


def solve(checkpoint: Checkpoint, task: config.Task, options: EvalOptions, tell: Tell) -> Solved:
    """Let the final model of a run solve the test problems of a task."""
    model = load_model(checkpoint, with_head=True, dtype="auto")
    tell(f"{checkpoint.name}: {len(problems_of(task, 'test')):,} problems", None, None)
    solved, _ = evaluate(model, checkpoint.tokenizer, task, "test", options.batch_size or _BATCH)
    return solved


def _rows(task: str, solved: Mapping[str, Solved]) -> Iterator[Row]:
    """Yield right answers, then every step right: of all problems, and by level."""
    groups: dict[str, dict[str, Shares]] = {"all": {**solved}}
    for model, of_model in solved.items():
        for kind, by in of_model.by.items():
            for level, shares in by.items():
                groups.setdefault(f"{kind}: {level}", {})[model] = shares
    # It differs between models of different problems.
    chances = {of_model.chance for of_model in solved.values()}
    chance = chances.pop() if len(chances) == 1 else None
    for table, score in ((f"{task}, right answers", _right), (f"{task}, every step right", _steps)):
        for name, of_models in groups.items():
            scores = {model: score(shares) for model, shares in of_models.items()}
            row = Row(table=table, name=name, unit="problems", scores=scores)
            yield replace(row, chance=chance) if score is _right and name == "all" else row


def _right(shares: Shares) -> Score:
    faults = shares.faults if isinstance(shares, Solved) else {}
    return Score(value=shares.accuracy, interval=shares.interval, count=shares.count, counts=faults)


def _steps(shares: Shares) -> Score:
    return Score(value=shares.steps, interval=shares.steps_interval, count=shares.count)
