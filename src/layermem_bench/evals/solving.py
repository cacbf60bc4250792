"""How many problems of a task models solve, and which faults their other attempts have."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from layermem_bench.analysis.checkpoints import Checkpoint, load_final
from layermem_bench.config import run as config
from layermem_bench.config.hashing import file_digest
from layermem_bench.evals import Tell
from layermem_bench.evals.generation import GreedySettings, greedy, read_answers, shared_greedy
from layermem_bench.evals.perplexity import longest_context
from layermem_bench.results.eval import EvalOptions, Part, Row, Score, Table
from layermem_bench.results.intervals import proportion
from layermem_bench.results.solved import Shares, Solved
from layermem_bench.tasks.problems import Grade, Problem, Queried
from layermem_bench.tasks.registry import TaskDefinition, encode, get_task, select_queried

# Problems where no number is asked for.
_COUNT = 10_000
# What the two tables of a task show.
_RIGHT, _STEPS = "right answers", "every step right"


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
        generate = shared_greedy if shared else partial(greedy, progress=progress)
        # What is cut at the end token has no other special token in a right solution.
        texts = tokenizer.batch_decode(
            generate(model, prompts, settings), skip_special_tokens=False
        )
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


def _problems(task: config.Task, split: str) -> Sequence[Problem]:
    values = map(str, task.fields().values())
    # Another text may lie in a file of problems since the last call.
    files = tuple(file_digest(Path(value)) for value in values if Path(value).is_file())
    return _kept_problems(task, split, files)


@lru_cache(maxsize=4)
def _kept_problems(task: config.Task, split: str, files: tuple[str, ...]) -> Sequence[Problem]:
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


def prepare_problems(
    opened: Sequence[Checkpoint], names: Sequence[str], options: EvalOptions, out: Path, tell: Tell
) -> Callable[[], Part]:
    """Return what has the final models of runs solve problems; refuse those it was trained on."""
    tasks = {(name, each.name): _task_of(each, name, options) for each in opened for name in names}

    def measure() -> Part:
        tables, rows, differing = dict[str, Table](), list[Row](), list[str]()
        for name in names:
            asked = {each.name: tasks[name, each.name] for each in opened}
            solved = {each.name: solve(each, asked[each.name], options, tell) for each in opened}
            # They differ between models of different problems.
            guesses = ", ".join(dict.fromkeys(f"{each.chance:.1%}" for each in solved.values()))
            tables[f"{name}, {_RIGHT}"] = Table(better="higher", caption=f"A guess: {guesses}.")
            tables[f"{name}, {_STEPS}"] = Table(better="higher")
            is_same = len({_problems_of(task, options) for task in asked.values()}) == 1
            differing += [] if is_same else [name]
            rows += (replace(row, is_comparable=is_same) for row in _rows(name, solved))
        different = (
            f" Of {', '.join(differing)} the models have different problems, those of their runs, "
            "so that their shares say nothing of each other: give --seed and --task-options."
        )
        return Part(
            title="Problems of their tasks",
            how=f"Problems of the split {options.split}. 95% intervals by Wilson's method, over "
            "problems and not over seeds of training. Beside a model's answers: the first faults "
            f"of its wrong solutions.{different if differing else ''}",
            tables=tables,
            rows=tuple(rows),
        )

    return measure


def _problems_of(task: config.Task, options: EvalOptions) -> tuple[Any, ...]:
    """Return what decides which problems a model is asked."""
    every = {**get_task(str(task.name)).options(), **task.fields()}
    return task.seed, _count(task, options), tuple(sorted(every.items(), key=lambda item: item[0]))


def solve(checkpoint: Checkpoint, task: config.Task, options: EvalOptions, tell: Tell) -> Solved:
    name, count = str(task.name), _count(task, options)
    definition = get_task(name)
    problems = definition.problems(options.split, count, task.seed, **task.fields())
    model = load_final(Path(checkpoint.location))
    _check_length(model, checkpoint, problems)
    attempts = attempt(
        model.to("cuda" if torch.cuda.is_available() else "cpu"),
        checkpoint.tokenizer,
        definition,
        problems,
        batch_size=options.batch_size or 256,
        progress=lambda done: tell(f"{checkpoint.name}: {name}", done, count),
    )
    return score_attempts(attempts, definition, name=name, split=options.split)


def _check_length(model: Any, checkpoint: Checkpoint, problems: Sequence[Problem]) -> None:
    """Refuse problems that a model has no positions for."""
    prompts, solutions = encode(checkpoint.tokenizer, problems)
    # Answers to queries stand beside their sequence.
    pairs = zip(
        prompts, [[]] * len(prompts) if select_queried(problems) else solutions, strict=True
    )
    needed, longest = max(len(a) + len(b) for a, b in pairs), longest_context(model.config)
    if longest is not None and needed > longest:
        raise ValueError(
            f"a problem has {needed} tokens with its solution, and {checkpoint.name} reads "
            f"{longest} (max_position_embeddings): choose --task-options with shorter problems"
        )


def _count(task: config.Task, options: EvalOptions) -> int:
    """Return how many problems are asked for: of the training set no more than it has."""
    count = options.limit or _COUNT
    return min(count, task.examples) if options.split == "train" else count


def _rows(task: str, solved: Mapping[str, Solved]) -> Iterator[Row]:
    """Yield right answers, then every step right: of all problems, and by level."""
    shares: dict[str, dict[str, Shares]] = {"all": dict(solved)}
    for model, of_model in solved.items():
        for kind, by in of_model.by.items():
            for level, of_level in by.items():
                shares.setdefault(f"{kind}: {level}", {})[model] = of_level
    chances = {of_model.chance for of_model in solved.values()}
    for name, of_models in shares.items():
        scores = {
            m: Score(
                value=s.accuracy,
                interval=s.interval,
                count=s.count,
                counts=s.faults if isinstance(s, Solved) else {},
            )
            for m, s in of_models.items()
        }
        chance = min(chances) if name == "all" and len(chances) == 1 else None
        yield Row(
            table=f"{task}, {_RIGHT}", name=name, unit="problems", scores=scores, chance=chance
        )
    for name, of_models in shares.items():
        scores = {
            m: Score(value=s.steps, interval=s.steps_interval, count=s.count)
            for m, s in of_models.items()
        }
        yield Row(table=f"{task}, {_STEPS}", name=name, unit="problems", scores=scores)


def _task_of(checkpoint: Checkpoint, name: str, options: EvalOptions) -> config.Task:
    """Return the task of which a run's model solves problems; refuse one it was trained on."""
    if checkpoint.run is None:
        raise ValueError(
            f"{checkpoint.location} is no run folder; only models of runs on {name} solve its "
            "problems"
        )
    trained_on = checkpoint.run.task
    if trained_on.name != name:
        raise ValueError(
            f"{checkpoint.name} was trained on {trained_on.name or 'no task'}, and is asked "
            f"{name}: a model solves problems of the task that it was trained on"
        )
    _check_split_options(trained_on, options.task_options)
    if options.split == "train":
        _check_is_training_set(trained_on, options)
    task = replace(
        trained_on,
        seed=trained_on.seed if options.seed is None else options.seed,
        options=config.merged(trained_on.options, options.task_options),
    )
    if options.split != "train":
        _check_not_trained_on(trained_on, task, options.split, options.limit or _COUNT)
        _check_file(task, options)
    return task


def _check_is_training_set(trained_on: config.Task, options: EvalOptions) -> None:
    """Refuse options under which problems of the split "train" are not those of the training."""
    if options.limit is not None and options.limit > trained_on.examples:
        raise ValueError(
            f"--limit {options.limit} is more than the {trained_on.examples} problems that the "
            "model was trained on; --split train has no others"
        )
    if options.task_options or options.seed not in (None, trained_on.seed):
        raise ValueError(
            "--split train asks for the problems that the model was trained on, which --seed and "
            "--task-options would draw anew: leave them out, or take another split"
        )


def _check_file(task: config.Task, options: EvalOptions) -> None:
    """Refuse options of drawing, or a seed, where the split's problems are read from a file."""
    file = task.fields().get(options.split)
    names = [option.partition("=")[0] for option in options.task_options]
    drawing = [name for name in names if name not in ("train", "validation", "test")]
    if file and (drawing or options.seed is not None):
        raise ValueError(
            f"the problems of the split {options.split} are read from {file}, and "
            f"{'--seed' if not drawing else ', '.join(drawing)} would draw others: leave it out, "
            f"or add --task-options {options.split}=null to have problems drawn"
        )


def _check_split_options(trained_on: config.Task, options: tuple[str, ...]) -> None:
    """Refuse options under which test problems may be among those of the training set."""
    own, wanted = trained_on.fields(), config.Task(options=options).fields()
    definition = get_task(str(trained_on.name))
    for name in definition.splits_by(own):
        own_value = own.get(name, definition.options()[name])
        if wanted.get(name, own_value) != own_value:
            raise ValueError(
                f"the model was trained on problems of {name}={own_value}; of "
                f"{name}={wanted[name]} some of its training set would be in the test split: leave "
                f"the option out, or train with --task.options {name}={wanted[name]}"
            )


def _check_not_trained_on(
    trained_on: config.Task, wanted: config.Task, split: str, count: int
) -> None:
    """Refuse a file of problems some of which are in the training set."""
    own, new = trained_on.fields(), wanted.fields()
    if not (own.get("train") and new.get(split)):
        return
    definition = get_task(str(trained_on.name))
    training_set = definition.problems("train", trained_on.examples, trained_on.seed, **own)
    prompts = {problem.prompt for problem in training_set}
    problems = definition.problems(split, count, wanted.seed, **new)
    if shared := sum(problem.prompt in prompts for problem in problems):
        raise ValueError(
            f"the model was trained on {shared:,} of the {len(problems):,} problems of "
            f"{new[split]}: they are in {own['train']} too; give a file without them"
        )
