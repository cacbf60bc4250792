"""Benchmarks: answers of checkpoints to evaluation tasks, kept in files, and their scores.

    OUT/answers/arc_easy-0-0c6f52a1b9de4a5c.json      task, seed, digest of all they depend on

A file of answers is used only if its whole key is the one asked for: other weights, records, shots,
limits or versions are other files.
"""

import hashlib
import json
import logging
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from layermem_base import __version__
from layermem_base.files import write_atomically
from layermem_bench.analysis.checkpoints import Checkpoint, load_model
from layermem_bench.config.hashing import plugin_digest, sources_digest
from layermem_bench.evals import Tell, adjust_together, compare_right, share_right
from layermem_bench.evals.prepared_tasks import PreparedTask, digest, prepare_tasks
from layermem_bench.results.eval import (
    Difference,
    EvalOptions,
    Part,
    Row,
    Score,
    Table,
    TaskAnswers,
)
from layermem_bench.results.files import from_json, to_json

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
        "and models by Holm's method; a difference is beyond noise if its interval over items too, "
        "which is of all seeds, excludes 0. The paper's figures are of 1B models after 50B tokens, "
        "3-shot; it does not say whether by acc or acc_norm. An item is never its own example.",
    ),
    RIGHT_NORM: Table(
        better="higher", caption=f"{_INTERVALS} By log-probability per character of a choice."
    ),
}
_HOW = (
    "An answer is the choice of the highest log-probability; of two equally probable ones (ties) "
    "the first counts. Cut prompts lack their start; unknown tokens stand for text which the "
    "tokenizer has no tokens for."
)
# Beside the weights, what decides about the answers: config, tokenizer, generation settings.
_KINDS = {".safetensors", ".bin", ".pt", ".json", ".model", ".txt", ".jinja", ".tiktoken"}


def checkpoint_digest(checkpoint: Checkpoint) -> str:
    """Return a digest of a saved model's files, or name and commit of a model on the hub.

    That of an adapter covers the files of its base too.
    """
    own = _digest_of(checkpoint.location, checkpoint.revision)
    base = checkpoint.base
    return own if base is None else digest(f"{own} {_digest_of(base, checkpoint.revision)}")


def _digest_of(location: Path | str, commit: str | None) -> str:
    folder = Path(location)
    if not folder.is_dir():
        return f"{location}@{commit}"
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in _KINDS:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            total.update(f"{path.name} {content}\n".encode())
    return total.hexdigest()


def prepare_benchmarks(
    opened: Sequence[Checkpoint], names: Sequence[str], options: EvalOptions, out: Path, tell: Tell
) -> Callable[[], Part]:
    """Return what has checkpoints answer tasks; ``out`` keeps their records and answers."""
    tasks = prepare_tasks(names, options, out / "records")

    def measure() -> Part:
        import lm_eval

        answers = {
            each.name: _answer(each, tasks, options, out / "answers", tell) for each in opened
        }
        limit = "" if options.limit is None else f", the first {options.limit} items of each task"
        rows = tuple(_rows(tasks, answers))
        return Part(
            title="Evaluation tasks",
            how=f"{options.shots} examples before each item, drawn with {len(_seeds(options))} "
            f"seeds{limit}; by lm-eval {lm_eval.__version__}. {_HOW}",
            tables={row.table: _TABLES[row.table] for row in rows},
            rows=rows,
        )

    return measure


def _seeds(options: EvalOptions) -> range:
    # Without examples there is nothing to draw.
    return range(options.seeds if options.shots else 1)


def _answer(
    checkpoint: Checkpoint,
    tasks: Sequence[PreparedTask],
    options: EvalOptions,
    folder: Path,
    tell: Tell,
) -> dict[str, list[TaskAnswers]]:
    """Return the answers of a model by task, a seed after the other; it is loaded when needed."""
    import lm_eval

    from layermem_bench.evals.harness import CountingModel, answer_task

    model: Any = None
    identity = checkpoint_digest(checkpoint)
    versions = {
        "lm_eval": lm_eval.__version__,
        "layermem": __version__,
        "sources": sources_digest(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        # Their code decides what a variant of theirs computes.
        "plugins": plugin_digest(),
    }
    answers: dict[str, list[TaskAnswers]] = {}
    for prepared in tasks:
        name = prepared.task.name
        for seed in _seeds(options):
            key = {
                "checkpoint": identity,
                "task": name,
                "version": prepared.version,
                "definition": prepared.definition,
                "records": prepared.records,
                "shots": options.shots,
                "seed": seed,
                "limit": options.limit,
                "truncate": options.truncate,
                "max_length": options.max_length,
                **versions,
            }
            path = folder / f"{name}-{seed}-{digest(json.dumps(key, sort_keys=True))[:16]}.json"
            known = None
            if path.exists():
                known = from_json(TaskAnswers, path.read_text(encoding="utf-8"), str(path))
            if known is None or known.key != key:
                if model is None:
                    logger.info("loading %s", checkpoint.name)
                    loaded = load_model(checkpoint, with_head=True)
                    model = CountingModel(loaded, checkpoint, options)
                what = f"{checkpoint.name}: {name}, seed {seed}"
                known = answer_task(model, prepared.loaded, key, partial(tell, what))
                write_atomically(path, to_json(known))
            answers.setdefault(name, []).append(known)
    return answers


def _rows(
    tasks: Sequence[PreparedTask], answers: Mapping[str, dict[str, list[TaskAnswers]]]
) -> Iterator[Row]:
    """Yield a row for each task, and one for their mean; then those by character."""
    (_, first), *others = answers.items()
    differences = adjust_together({name: compare_answers(of, first) for name, of in others})
    scores = {
        name: {task: score_answers(seeds) for task, seeds in of_model.items()}
        for name, of_model in answers.items()
    }
    rows = []
    for prepared in tasks:
        name = prepared.task.name
        row = Row(
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
        rows.append(row)
    yield from rows
    if len(rows) > 1:
        means = {m: statistics.fmean(row.scores[m].value for row in rows) for m in answers}
        yield Row(
            table=RIGHT,
            name=MEAN,
            scores={model: Score(value=mean) for model, mean in means.items()},
            chance=statistics.fmean(row.chance or 0.0 for row in rows),
        )
    for row in rows:
        if normed := {name: norm for name in answers if (norm := scores[name][row.name][1])}:
            yield Row(table=RIGHT_NORM, name=row.name, unit="items", scores=normed)


def score_answers(seeds: Sequence[TaskAnswers]) -> tuple[Score, Score | None]:
    """Return the scores of one model's answers to one task, given for each seed.

    The second is by log-probability per character; None: the task does not ask for it.
    """
    norms = [answers.right_norm for answers in seeds if answers.right_norm is not None]
    cut, beyond = (sum(getattr(a, name) for a in seeds) for name in ("truncated", "beyond"))
    counts = {
        "prompts": sum(answers.requests for answers in seeds) if cut or beyond else 0,
        "prompts cut": cut,
        "prompts longer than any text in training": beyond,
        "unknown tokens": sum(answers.unknown_tokens for answers in seeds),
        "ties": sum(answers.ties for answers in seeds),
    }
    score = share_right([answers.right for answers in seeds])
    return (
        replace(score, counts={name: count for name, count in counts.items() if count}),
        share_right(norms) if len(norms) == len(seeds) else None,
    )


def compare_answers(
    ours: Mapping[str, Sequence[TaskAnswers]], theirs: Mapping[str, Sequence[TaskAnswers]]
) -> dict[str, Difference]:
    """Return the difference on each task, with p-values of each by itself."""
    for task, answers in ours.items():
        for mine, other in zip(answers, theirs[task], strict=True):
            if mine.prompts != other.prompts:
                raise ValueError(
                    f"the prompts of {task} with seed {mine.key['seed']} differ between the "
                    "models, so their answers cannot be paired; delete the folder answers, and all "
                    "are asked again"
                )
    return {
        task: compare_right([a.right for a in answers], [a.right for a in theirs[task]])
        for task, answers in ours.items()
    }
