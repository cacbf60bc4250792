"""Answers of checkpoints to evaluation tasks, kept in files for the next start, and their scores.

    OUT/answers/arc_easy-0-0c6f52a1b9de4a5c.json      task, seed, digest of all they depend on

A file is used only if its whole key is the one asked for: other weights, records, shots, limits or
versions are other files.
"""

import hashlib
import json
import logging
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from layermem.analysis.checkpoints import Checkpoint, load_model
from layermem.evals.lm_eval_definitions import digest
from layermem.evals.scores import compare_answers, score_answers
from layermem.experiments.eval_tasks import PreparedTask
from layermem.results.eval import (
    AnswersKey,
    Difference,
    EvalOptions,
    Part,
    Row,
    Score,
    Table,
    TaskAnswers,
)
from layermem.results.files import from_json, to_json
from layermem.runs import write_atomically

logger = logging.getLogger(__name__)

RIGHT, RIGHT_NORM = "right answers (acc)", "right answers by character (acc_norm)"
"""Names of the tables."""
MEAN = "mean of these"
"""Name of the row of all tasks together."""
_INTERVALS = "Means over seeds, with 95% intervals over items (Wilson) and over few-shot seeds."
_TABLES = {
    RIGHT: Table(
        better="higher",
        caption=f"{_INTERVALS} Differences: by the jackknife over items and paired over seeds; p "
        "by McNemar's exact test on the items of the first seed, adjusted for the number of tasks "
        "by Holm's method. The paper's figures are of 1B models after 50B tokens, 3-shot; it does "
        "not say whether by acc or acc_norm. An item is never its own example.",
    ),
    RIGHT_NORM: Table(
        better="higher", caption=f"{_INTERVALS} By log-probability per character of a choice."
    ),
}
_HOW = (
    "{shots} examples before each item, drawn with {seeds} seeds{limit}; by lm-eval {version}. An "
    "answer is the choice of the highest log-probability; of two equally probable ones (ties) the "
    "first counts. Cut prompts lack their start; unknown tokens stand for text which the tokenizer "
    "has no tokens for."
)
Answers = dict[str, dict[str, list[TaskAnswers]]]
# Beside the weights, what decides about the answers: config, tokenizer, generation settings.
_KINDS = {".safetensors", ".bin", ".pt", ".json", ".model", ".txt", ".jinja", ".tiktoken"}


def checkpoint_digest(checkpoint: Checkpoint, config: Any) -> str:
    """Return a digest of a saved model's files, or name and revision of a model on the hub.

    That of an adapter covers the files of its base too.
    """
    own = _digest_of(checkpoint.location, config)
    if checkpoint.base is None:
        return own
    return digest(f"{own} {_digest_of(checkpoint.base, config)}")


def _digest_of(location: Path | str, config: Any) -> str:
    folder = Path(location)
    if not folder.is_dir():
        return f"{location}@{getattr(config, '_commit_hash', None)}"
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in _KINDS:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            total.update(f"{path.name} {content}\n".encode())
    return total.hexdigest()


def read_answers(folder: Path, key: AnswersKey) -> TaskAnswers | None:
    """Return the answers of a key, or None if there are none yet."""
    path = _path(folder, key)
    if not path.exists():
        return None
    answers = from_json(TaskAnswers, path.read_text(encoding="utf-8"), str(path))
    return answers if answers.key == key else None


def write_answers(folder: Path, answers: TaskAnswers) -> None:
    """Write answers to the file of their key."""
    write_atomically(_path(folder, answers.key), to_json(answers))


def _path(folder: Path, key: AnswersKey) -> Path:
    name = digest(json.dumps(asdict(key), sort_keys=True))[:16]
    return folder / f"{key.task}-{key.seed}-{name}.json"


def measure_tasks(
    checkpoints: Sequence[Checkpoint],
    tasks: Sequence[PreparedTask],
    options: EvalOptions,
    folder: Path,
    tell: Callable[[str, int | None, int | None], None],
) -> Part:
    """Have checkpoints answer the tasks, of which ``folder`` keeps the answers."""
    import lm_eval

    # Without examples there is nothing to draw.
    seeds = range(options.seeds if options.shots else 1)
    answers = {
        each.name: _answer(each, tasks, options, seeds, folder, tell) for each in checkpoints
    }
    limit = "" if options.limit is None else f", the first {options.limit} items of each task"
    rows = tuple(_rows(tasks, answers))
    return Part(
        title="Evaluation tasks",
        how=_HOW.format(
            shots=options.shots, seeds=len(seeds), limit=limit, version=lm_eval.__version__
        ),
        tables={row.table: _TABLES[row.table] for row in rows},
        rows=rows,
    )


def _answer(
    checkpoint: Checkpoint,
    tasks: Sequence[PreparedTask],
    options: EvalOptions,
    seeds: Sequence[int],
    folder: Path,
    tell: Callable[[str, int | None, int | None], None],
) -> dict[str, list[TaskAnswers]]:
    """Return the answers of a model by task, a seed after the other; it is loaded when needed."""
    import lm_eval

    from layermem.evals.harness import CountingModel, answer_task

    model: Any = None
    identity = checkpoint_digest(checkpoint, checkpoint.load_config())
    answers: dict[str, list[TaskAnswers]] = {}
    for prepared in tasks:
        for seed in seeds:
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
                known = answer_task(model, prepared.loaded, key, partial(tell, what))
                write_answers(folder, known)
            answers.setdefault(key.task, []).append(known)
    return answers


def _rows(tasks: Sequence[PreparedTask], answers: Answers) -> Iterator[Row]:
    """Yield a row for each task, and one for their mean; then those by character."""
    (_, first), *others = answers.items()
    differences = {name: compare_answers(of_model, first) for name, of_model in others}
    scores = {
        name: {task: score_answers(seeds) for task, seeds in of_model.items()}
        for name, of_model in answers.items()
    }
    of_tasks = [_row(each, first, scores, differences) for each in tasks]
    yield from of_tasks
    if len(tasks) > 1:
        yield Row(
            table=RIGHT,
            name=MEAN,
            scores={
                name: Score(value=statistics.fmean(row.scores[name].value for row in of_tasks))
                for name in answers
            },
            chance=statistics.fmean(row.chance or 0.0 for row in of_tasks),
        )
    for row in of_tasks:
        normed = {name: norm for name in answers if (norm := scores[name][row.name][1])}
        if normed:
            yield Row(table=RIGHT_NORM, name=row.name, unit="items", scores=normed)


def _row(
    prepared: PreparedTask,
    first: dict[str, list[TaskAnswers]],
    scores: dict[str, dict[str, tuple[Score, Score | None]]],
    differences: dict[str, dict[str, Difference]],
) -> Row:
    name = prepared.task.name
    return Row(
        table=RIGHT,
        name=name,
        unit="items",
        scores={model: of_model[name][0] for model, of_model in scores.items()},
        differences={model: of_model[name] for model, of_model in differences.items()},
        chance=first[name][0].chance,
        most_frequent=first[name][0].majority,
        paper={model: percent / 100 for model, percent in prepared.task.paper.items()},
        about={
            "items from": prepared.source,
            "examples from": prepared.few_shot_source,
            "definition": f"version {prepared.version}",
        },
    )
