"""Have checkpoints answer evaluation tasks, compare them item by item, and write eval.json.

It does not know: prompts, log-probabilities, tables, pages.
"""

import importlib.util
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from layermem.experiments.analyze_checkpoints import Checkpoint, load_model, open_checkpoints
from layermem.experiments.answers import checkpoint_digest, read_answers, write_answers
from layermem.experiments.eval_scores import differences, score_answers
from layermem.experiments.eval_tasks import PreparedTask, prepare_tasks
from layermem.results.eval import AnswersKey, EvalOptions, EvalResult, TaskAnswers, TaskFacts
from layermem.results.files import to_json
from layermem.runs import create_folder, write_atomically

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]


def evaluate_checkpoints(
    checkpoints: Sequence[str],
    options: EvalOptions,
    out: Path,
    *,
    command: str = "",
    progress: Progress | None = None,
) -> EvalResult:
    """Have checkpoints answer tasks; return the result, written to eval.json in ``out``.

    A checkpoint is a run folder, the folder of a saved model or a hub name. Answers are kept in
    ``out``, so that a second start goes on where the first one ended. ``progress`` is called with
    what is being answered, requests done, and their number.
    """
    check_lm_eval()
    _check(options)
    opened = open_checkpoints(checkpoints, one_vocabulary=False)
    tasks = prepare_tasks(options, out / "records")
    answers = {
        checkpoint.name: _answer(checkpoint, tasks, options, out / "answers", progress)
        for checkpoint in opened
    }
    first = next(iter(answers.values()))
    import lm_eval

    result = EvalResult(
        command=command,
        options=options,
        lm_eval=lm_eval.__version__,
        tasks={each.task.name: _facts(each, first[each.task.name][0]) for each in tasks},
        models={
            name: {task: score_answers(seeds) for task, seeds in of_model.items()}
            for name, of_model in answers.items()
        },
        differences={
            name: differences(of_model, first) for name, of_model in list(answers.items())[1:]
        },
    )
    create_folder(out)
    write_atomically(out / "eval.json", to_json(result))
    return result


def check_lm_eval() -> None:
    """Raise if lm-eval is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ValueError(
            "lm-eval is not installed; it is in the extra eval: pip install layermem[eval]"
        )


def _check(options: EvalOptions) -> None:
    smallest = {"shots": 0, "seeds": 1, "limit": 1, "batch_size": 1, "max_length": 1}
    for name, least in smallest.items():
        value = getattr(options, name)
        if value is not None and value < least:
            raise ValueError(f"--{name.replace('_', '-')} must be at least {least}, got {value}")


def _answer(
    checkpoint: Checkpoint,
    tasks: Sequence[PreparedTask],
    options: EvalOptions,
    folder: Path,
    progress: Progress | None,
) -> dict[str, list[TaskAnswers]]:
    """Return the answers of a model by task, a seed after the other; it is loaded when needed."""
    import lm_eval

    from layermem.evals.harness import CountingModel, answer_task

    model: Any = None
    identity = checkpoint_digest(checkpoint, checkpoint.load_config())
    answers: dict[str, list[TaskAnswers]] = {}
    for prepared in tasks:
        for seed in _seeds(options):
            key = AnswersKey(
                checkpoint=identity,
                task=prepared.task.name,
                version=prepared.version,
                definition=prepared.definition_digest,
                records=prepared.records_digest,
                shots=options.shots,
                seed=seed,
                limit=options.limit,
                truncate=options.truncate,
                max_length=options.max_length,
                lm_eval=lm_eval.__version__,
            )
            known = read_answers(folder, key)
            if known is None:
                if model is None:
                    logger.info("loading %s", checkpoint.name)
                    model = CountingModel(
                        load_model(checkpoint, with_head=True),
                        checkpoint.tokenizer,
                        batch_size=options.batch_size,
                        truncate=options.truncate,
                        max_length=options.max_length,
                    )
                what = f"{checkpoint.name}: {key.task}, seed {seed}"
                known = answer_task(model, prepared.loaded, key, _reporter(what, progress))
                write_answers(folder, known)
            answers.setdefault(key.task, []).append(known)
    return answers


def _seeds(options: EvalOptions) -> range:
    """Return the seeds; without examples there is nothing to draw."""
    return range(options.seeds if options.shots else 1)


def _reporter(what: str, progress: Progress | None) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(what, done, total)


def _facts(prepared: PreparedTask, answers: TaskAnswers) -> TaskFacts:
    return TaskFacts(
        version=prepared.version,
        source=prepared.source,
        few_shot_source=prepared.few_shot_source,
        items=len(answers.right),
        chance=answers.chance,
        majority=answers.majority,
        tables=prepared.task.tables,
        paper=dict(prepared.task.paper),
    )
