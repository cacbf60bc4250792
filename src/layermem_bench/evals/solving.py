"""How many problems of a task models solve, and which faults their other attempts have."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from typing import Any

from transformers import PreTrainedModel

from layermem_bench.config import run as config
from layermem_bench.config.named import merged
from layermem_bench.evals.generation import greedy, read_answers
from layermem_bench.evals.result import EvalOptions, Part, Row, Score, Table
from layermem_bench.evals.scoring import Tell
from layermem_bench.run.folder import Shares, Solved
from layermem_bench.run.trained_models import Checkpoint, load_model
from layermem_bench.statistics import proportion
from layermem_bench.tasks.problems import Grade, Problem, Queried
from layermem_bench.tasks.registry import TaskDefinition, encode, get_task, select_queried

# Problems where no number is asked for.
_COUNT = 10_000


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


def attempt(
    model: PreTrainedModel,
    tokenizer: Any,
    task: TaskDefinition,
    problems: Sequence[Problem],
    *,
    batch_size: int = 256,
    progress: Callable[[int], None] = lambda done: None,
    shared: bool = False,
) -> list[Attempt]:
    """Let a model solve problems; a solution much longer than the longest right one is cut.

    Answers to queries inside a sequence are read in one forward; each process reads all of them.
    ``shared``: the processes of a run share the problems, and all must call this.
    """
    if not problems:
        raise ValueError("there are no problems to solve")
    prompts, solutions = encode(tokenizer, problems)
    end, padding = tokenizer.eos_token_id, tokenizer.pad_token_id
    if queried := select_queried(problems):
        queries = [problem.queries for problem in queried]
        answers = read_answers(model, prompts, queries, batch_size=batch_size, progress=progress)
        texts = _join_words(tokenizer, answers)
    else:
        generated = greedy(
            model,
            prompts,
            end=end,
            padding=end if padding is None else padding,
            max_new_tokens=max(map(len, solutions)) + task.extra_tokens,
            batch_size=batch_size,
            shared=shared,
            progress=progress,
        )
        # What is cut at the end token has no other special token in a right solution.
        texts = tokenizer.batch_decode(generated, skip_special_tokens=False)
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
    attempts: Sequence[Attempt], task: TaskDefinition, *, name: str, split: str
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
        chance=task.chance([a.problem for a in attempts]),
        by={task.level_name: by_level},
        faults=dict(Counter(a.grade.fault for a in attempts if a.grade.fault)),
    )


def evaluate(
    model: PreTrainedModel,
    tokenizer: Any,
    task: config.Task,
    split: str = "validation",
    *,
    batch_size: int = 256,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[Solved, list[Attempt]]:
    """Let a model solve a split of a run's task.

    The processes of a run share the validation problems. Each solves all of the test problems,
    since a run may be stopped there, and then no process may wait for the share of another.
    """
    definition, problems = get_task(str(task.name)), _problems(task, split)
    attempts = attempt(
        model,
        tokenizer,
        definition,
        problems,
        batch_size=batch_size,
        progress=progress,
        shared=split == "validation",
    )
    return score_attempts(attempts, definition, name=str(task.name), split=split), attempts


@lru_cache(maxsize=4)
def _problems(task: config.Task, split: str) -> Sequence[Problem]:
    count = {"train": task.examples, "validation": task.validation, "test": task.test}[split]
    return get_task(str(task.name)).problems(split, count, task.seed, **task.fields())


def _prompts(task: config.Task, split: str) -> list[str]:
    return [problem.prompt for problem in _problems(task, split)]


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
        first, *others = (_prompts(task, options.split) for task in tasks.values())
        is_same = all(other == first for other in others)
        rows += [replace(row, is_comparable=is_same) for row in _rows(name, solved)]
    return Part(
        title="Problems of their tasks",
        how=f"Problems of the split {options.split}, of each run its own: with other seeds or "
        "options of the task they differ, unless --seed and --task-options are given. 95% "
        "intervals by Wilson's method, over problems and not over seeds of training. Noted: the "
        "first faults of wrong solutions.",
        tables={row.table: Table(better="higher") for row in rows},
        rows=tuple(rows),
    )


def _task_of(checkpoint: Checkpoint, name: str, options: EvalOptions) -> config.Task:
    """Return the task of which a run's model solves problems, with as many in the split as are
    asked for; refuse another task than it was trained on, and problems that it was trained on."""
    trained_on = checkpoint.run.task if checkpoint.run is not None else config.Task()
    if trained_on.name != name:
        raise ValueError(
            f"{checkpoint.name} was trained by no run on {name}: a model solves problems of the "
            "task that its run trained it on"
        )
    count = options.limit or _COUNT
    if options.split == "train":
        if options.task_options or options.seed is not None:
            raise ValueError(
                "--split train asks for the problems that the model was trained on, which --seed "
                "and --task-options would draw anew: leave them out, or take another split"
            )
        return replace(trained_on, examples=min(count, trained_on.examples), repeated=0, repeats=1)
    task = replace(
        trained_on,
        seed=trained_on.seed if options.seed is None else options.seed,
        options=merged(trained_on.options, options.task_options),
        validation=count,
        test=count,
    )
    if options.task_options:
        learnt, asked = {*_prompts(trained_on, "train")}, _prompts(task, options.split)
        if shared := sum(prompt in learnt for prompt in asked):
            raise ValueError(
                f"the model was trained on {shared:,} of the {len(asked):,} problems that "
                "--task-options asks for: give others"
            )
    return task


def solve(checkpoint: Checkpoint, task: config.Task, options: EvalOptions, tell: Tell) -> Solved:
    """Let the final model of a run solve the problems of a split."""
    what, total = f"{checkpoint.name}: {task.name}", len(_problems(task, options.split))
    solved, _ = evaluate(
        load_model(checkpoint, with_head=True, dtype="auto"),
        checkpoint.tokenizer,
        task,
        options.split,
        batch_size=options.batch_size or 256,
        progress=lambda done: tell(what, done, total),
    )
    return solved


def _rows(task: str, solved: Mapping[str, Solved]) -> Iterator[Row]:
    """Yield right answers, then every step right: of all problems, and by level."""
    by_level = dict[str, dict[str, Shares]]()
    for model, of_model in solved.items():
        for kind, by in of_model.by.items():
            for level, shares in by.items():
                by_level.setdefault(f"{kind}: {level}", {})[model] = shares
    chances = {of_model.chance for of_model in solved.values()}
    right, steps = f"{task}, right answers", f"{task}, every step right"
    yield Row(
        table=right,
        name="all",
        unit="problems",
        scores={m: replace(_right(each), counts=each.faults) for m, each in solved.items()},
        # It differs between models of different problems.
        chance=chances.pop() if len(chances) == 1 else None,
    )
    row = partial(Row, unit="problems")
    for name, of_models in by_level.items():
        yield row(table=right, name=name, scores={m: _right(s) for m, s in of_models.items()})
    yield row(table=steps, name="all", scores={m: _steps(s) for m, s in solved.items()})
    for name, of_models in by_level.items():
        yield row(table=steps, name=name, scores={m: _steps(s) for m, s in of_models.items()})


def _right(shares: Shares) -> Score:
    return Score(value=shares.accuracy, interval=shares.interval, count=shares.count)


def _steps(shares: Shares) -> Score:
    return Score(value=shares.steps, interval=shares.steps_interval, count=shares.count)
