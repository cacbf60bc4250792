"""Have models of runs solve problems of their tasks that they were not trained on.

It does not know: how problems are solved or graded, tables, pages.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from layermem.config import Task, merged
from layermem.evals.solving import solve_with
from layermem.experiments.analyze_checkpoints import load_final
from layermem.results.files import to_json
from layermem.results.solved import SolvedOptions, SolvedTasks
from layermem.runs import RunFolder, unique_names, write_atomically
from layermem.tasks.registry import get_task
from layermem.train.run_config import recorded_run

COUNT = 10_000
"""Problems where no number is asked for."""


def solve_tasks(
    runs: Sequence[str],
    options: SolvedOptions,
    out: Path,
    *,
    command: str = "",
    progress: Callable[[str, int, int], None] | None = None,
) -> SolvedTasks:
    """Have the final models of runs solve tasks; return the result, written to ``out``.

    Everything that may be refused is checked before a model is loaded.
    """
    names = unique_names([Path(run).resolve().parts for run in runs])
    asked = {
        name: {task: _task_of(Path(run), task, options) for task in options.tasks}
        for name, run in zip(names, runs, strict=True)
    }
    models = {}
    for name, run in zip(names, runs, strict=True):
        models[name] = {
            task: solve_with(
                RunFolder(run).final,
                asked[name][task],
                split=options.split,
                count=options.count or COUNT,
                batch_size=options.batch_size or 256,
                progress=_reporter(f"{name}: {task}", options.count or COUNT, progress),
                load=load_final,
            )
            for task in options.tasks
        }
    result = SolvedTasks(command=command, options=options, models=models)
    write_atomically(out / "solved.json", to_json(result))
    return result


def _reporter(
    what: str, total: int, progress: Callable[[str, int, int], None] | None
) -> Callable[[int], None] | None:
    return None if progress is None else lambda done: progress(what, done, total)


def _task_of(path: Path, name: str, options: SolvedOptions) -> Task:
    """Return the task of which a run's model solves problems; refuse one it was trained on."""
    folder = RunFolder(path)
    if not folder.final.exists():
        raise ValueError(
            f"{path} has no final model: it is no run folder, or has not ended; only models of "
            f"runs on {name} solve its problems"
        )
    trained_on = recorded_run(folder).task
    if trained_on.name != name:
        raise ValueError(
            f"{path} was trained on {trained_on.name or 'no task'}, and is asked {name}: a model "
            "solves problems of the task that it was trained on"
        )
    _check_split_options(trained_on, options.task_options)
    task = replace(
        trained_on,
        seed=trained_on.seed if options.seed is None else options.seed,
        options=merged(trained_on.options, options.task_options),
    )
    if options.split != "train":
        _check_not_trained_on(trained_on, task, options.split, options.count or COUNT)
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
