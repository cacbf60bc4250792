"""Problems of their tasks that models of runs solve, of those that they were not trained on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from layermem.analysis.checkpoints import Checkpoint, load_final
from layermem.config import Task, merged
from layermem.evals.solving import solve_with
from layermem.results.eval import EvalOptions, Part, Row, Score, Table
from layermem.results.solved import Shares, Solved
from layermem.tasks.registry import get_task

# Problems where no number is asked for.
_COUNT = 10_000
_BATCH = 256


def check_problems(
    names: Sequence[str], options: EvalOptions, checkpoints: Sequence[Checkpoint]
) -> dict[str, dict[str, Task]]:
    """Return the tasks of which each model solves problems; refuse those it was trained on."""
    return {each.name: {n: _task_of(each, n, options) for n in names} for each in checkpoints}


def measure_problems(
    checkpoints: Sequence[Checkpoint],
    names: Sequence[str],
    tasks: Mapping[str, Mapping[str, Task]],
    options: EvalOptions,
    tell: Callable[[str, int | None, int | None], None],
) -> Part:
    """Have the final models of runs solve the tasks that ``check_problems`` returned."""
    count = options.limit or _COUNT

    def solve(checkpoint: Checkpoint, name: str) -> Solved:
        return solve_with(
            Path(checkpoint.location),
            tasks[checkpoint.name][name],
            split=options.split,
            count=count,
            batch_size=options.batch_size or _BATCH,
            progress=lambda done: tell(f"{checkpoint.name}: {name}", done, count),
            load=load_final,
        )

    solved = {name: {each.name: solve(each, name) for each in checkpoints} for name in names}
    return Part(
        title="Problems of their tasks",
        how=f"Problems of the split {options.split}. 95% intervals by Wilson's method, over "
        "problems and not over seeds of training. Beside a model's answers: the first faults of "
        "its wrong solutions.",
        tables={
            table: Table(better="higher", caption=guess)
            for name, of_models in solved.items()
            for table, guess in zip(_tables(name), (_guesses(of_models), ""), strict=True)
        },
        rows=tuple(row for name, of_models in solved.items() for row in _rows(name, of_models)),
    )


def _tables(task: str) -> tuple[str, str]:
    return f"{task}, right answers", f"{task}, every step right"


def _guesses(solved: Mapping[str, Solved]) -> str:
    """Say what a guess has right, which differs between models of different problems."""
    return f"A guess: {', '.join(dict.fromkeys(f'{s.chance:.1%}' for s in solved.values()))}."


def _rows(task: str, solved: Mapping[str, Solved]) -> Iterator[Row]:
    """Yield right answers, then every step right: of all problems, and by level."""
    chances = {each.chance for each in solved.values()}
    levels = dict.fromkeys(
        (kind, level) for each in solved.values() for kind, by in each.by.items() for level in by
    )
    for table, score in zip(_tables(task), (_score, _score_of_steps), strict=True):
        of_answers = score is _score
        yield Row(
            table=table,
            name="all",
            unit="problems",
            scores={
                model: replace(score(each), counts=each.faults if of_answers else {})
                for model, each in solved.items()
            },
            chance=min(chances) if len(chances) == 1 and of_answers else None,
        )
        for kind, level in levels:
            scores = {
                model: score(each.by[kind][level])
                for model, each in solved.items()
                if level in each.by.get(kind, {})
            }
            yield Row(table=table, name=f"{kind}: {level}", unit="problems", scores=scores)


def _score(shares: Shares) -> Score:
    return Score(value=shares.accuracy, interval=shares.interval, count=shares.count)


def _score_of_steps(shares: Shares) -> Score:
    return Score(value=shares.steps, interval=shares.steps_interval, count=shares.count)


def _task_of(checkpoint: Checkpoint, name: str, options: EvalOptions) -> Task:
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
    task = replace(
        trained_on,
        seed=trained_on.seed if options.seed is None else options.seed,
        options=merged(trained_on.options, options.task_options),
    )
    if options.split != "train":
        _check_not_trained_on(trained_on, task, options.split, options.limit or _COUNT)
    return task


def _check_split_options(trained_on: Task, options: tuple[str, ...]) -> None:
    """Refuse options under which test problems may be among those of the training set."""
    own, wanted = trained_on.fields(), Task(options=options).fields()
    definition = get_task(str(trained_on.name))
    for name in definition.splits_by(own):
        own_value = own.get(name, definition.options()[name])
        if wanted.get(name, own_value) != own_value:
            raise ValueError(
                f"the model was trained on problems of {name}={own_value}; of "
                f"{name}={wanted[name]} some of its training set would be in the test split: leave "
                f"the option out, or train with --task.options {name}={wanted[name]}"
            )


def _check_not_trained_on(trained_on: Task, wanted: Task, split: str, count: int) -> None:
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
