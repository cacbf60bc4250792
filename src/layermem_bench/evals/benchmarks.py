"""Benchmarks: answers of checkpoints to evaluation tasks by lm-eval, and their scores.

Few-shot examples, prompts and log-probabilities are lm-eval's. Beside its scores of the items this
counts what would pass unnoticed: prompts that are cut because they are longer than the model reads,
and choices that are equally probable.
"""

import importlib.util
import logging
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from layermem_bench.evals.benchmark_records import FOLDERS, EvalTask, find_tasks, read_docs
from layermem_bench.evals.perplexity import rows_at_once
from layermem_bench.evals.result import (
    EvalOptions,
    Part,
    Row,
    Score,
    Table,
    Tell,
    adjust,
    compare_right,
    share_right,
)
from layermem_bench.run.trained_models import Checkpoint, load_model

Sample = Mapping[str, Any]
"""What lm-eval says of an item: its choices, the model's answer, whether it is right."""
Loaded = dict[str, tuple[Any, Mapping[str, str]]]
"""Name of each task to lm-eval's task, and to where its items and few-shot examples are from."""
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
        "and models by Holm's method; a difference is told from 0 if its interval over items too, "
        "which is of all seeds, excludes 0. An item is never its own example.",
    ),
    RIGHT_NORM: Table(
        better="higher", caption=f"{_INTERVALS} By log-probability per character of a choice."
    ),
}
_HOW = (
    "An answer is the choice of the highest log-probability; of two equally probable ones (ties) "
    "the first counts. Cut prompts lack their start."
)


def load_tasks(names: Sequence[str], records: Sequence[str]) -> Loaded:
    """Return the tasks of these names; those without records are fetched from the hub."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ValueError(
            "lm-eval is not installed; it is in the extra eval: pip install layermem[eval]"
        )
    from lm_eval import tasks as definitions

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    # Without lm-eval's thousands of other definitions, which take seconds to list.
    folders = [Path(definitions.__file__).parent / folder for folder in FOLDERS]
    manager = definitions.TaskManager(include_defaults=False, include_path=folders)
    loaded = Loaded()
    for task in find_tasks(names):
        files = task.find_records(records)
        sources = {split: ", ".join(path.name for path in of) for split, of in files.items()}
        about = {"items from": sources.get(task.split, "the hub")}
        if files:
            about["examples from"] = sources.get("train", "the other evaluated items")
        try:
            if not files and not task.is_on_hub:
                raise ValueError("it has no data set of this task")
            fields = _fields(task, {split: read_docs(paths) for split, paths in files.items()})
            # As a member of a group a definition may be given other fields.
            group = {"group": "asked", "task": [{"task": task.definition, **fields}]}
            (loaded_task,) = manager.load([group])["tasks"].values()
        # What cannot be fetched, or is not of the task, ends in errors of several packages.
        except Exception as error:
            raise ValueError(
                f"{task.name} cannot be read from {about['items from']} "
                f"({type(error).__name__}: {error}); give --records FOLDER with "
                f"{task.expected_file}"
            ) from error
        loaded_task.set_config("task", task.name)
        loaded[task.name] = loaded_task, about
    return loaded


def _fields(task: EvalTask, docs: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return fields of a definition that reads records, if there are some, by split.

    Examples are of the records "train", if there are some, as in lm-eval, else of the evaluated
    items. lm-eval then leaves out the item that is asked about, as both fields name its split.
    """
    own = {"fewshot_split": task.split, "test_split": task.split}
    if not docs:
        # lm-eval's definitions of BIG-bench tasks can show an item as its own example.
        return own if task.split == "default" else {}
    import datasets

    rows = datasets.DatasetDict({s: datasets.Dataset.from_list(d) for s, d in docs.items()})
    if "train" in docs:
        # The draw of examples depends on which of the two fields names the split.
        own = {"training_split": "train", f"{task.split}_split": task.split}
    fields = ("training_split", "validation_split", "test_split", "fewshot_split")
    return {**dict.fromkeys(fields), **own, "custom_dataset": lambda **_: rows}


def measure_benchmarks(
    opened: Sequence[Checkpoint], names: Sequence[str], options: EvalOptions, tell: Tell
) -> Part:
    """Have checkpoints answer tasks."""
    import lm_eval

    tasks = load_tasks(names, options.records)
    # Without examples there is nothing to draw.
    seeds = range(options.seeds if options.shots else 1)
    answers = {each.name: _answer(each, tasks, seeds, options, tell) for each in opened}
    limit = "" if options.limit is None else f", the first {options.limit} items of each task"
    rows = tuple(_rows(tasks, answers))
    return Part(
        title="Evaluation tasks",
        how=f"{options.shots} examples before each item, drawn with {len(seeds)} seeds{limit}; by "
        f"lm-eval {lm_eval.__version__}. {_HOW}",
        tables={row.table: _TABLES[row.table] for row in rows},
        rows=rows,
    )


def _answer(
    checkpoint: Checkpoint, tasks: Loaded, seeds: Sequence[int], options: EvalOptions, tell: Tell
) -> dict[str, list[list[Sample]]]:
    """Return the answers of a model by task, a seed after the other."""
    import lm_eval

    model = _counting_model(checkpoint, options)
    loaded = {name: task for name, (task, _) in tasks.items()}
    answers: dict[str, list[list[Sample]]] = {name: [] for name in tasks}
    for seed in seeds:
        tell(f"{checkpoint.name}: seed {seed} of examples", seed, len(seeds))
        for task in loaded.values():
            task.set_config("num_fewshot", options.shots)
            task.set_fewshot_seed(seed)
        # ``simple_evaluate`` but for its report on the machine, which takes seconds each time.
        result = lm_eval.evaluate(model, {"tasks": loaded}, limit=options.limit, bootstrap_iters=0)
        for name in tasks:
            samples = sorted(result["samples"][name], key=lambda sample: int(sample["doc_id"]))
            for sample in samples:
                sample["cut"] = model.cut.intersection(sample["arguments"])
            answers[name].append(samples)
    return answers


def _counting_model(checkpoint: Checkpoint, options: EvalOptions) -> Any:
    """Return lm-eval's model, which keeps the prompts that it cuts, and refuses to unless asked."""
    from lm_eval.models.huggingface import HFLM

    class CountingModel(HFLM):
        cut = frozenset[tuple[str, str]]()

        def _loglikelihood_tokens(self, requests: list[Any], *args: Any, **kwargs: Any) -> Any:
            # The last token of an answer is predicted, not read.
            lengths = [len(context) + len(answer) - 1 for _, context, answer in requests]
            long = [r[0] for r, n in zip(requests, lengths, strict=True) if n > self.max_length]
            if long and not options.truncate:
                raise ValueError(
                    f"{len(long)} of {len(requests)} prompts are longer than the {self.max_length} "
                    f"tokens that the model is given (the longest has {max(lengths)}); give fewer "
                    "--shots, or --truncate to cut their start"
                )
            self.cut = self.cut.union(map(tuple, long))
            longest = min(max(lengths), self.max_length)
            self.batch_size_per_gpu = rows_at_once(self.model, longest, options.batch_size)
            return super()._loglikelihood_tokens(requests, *args, **kwargs)

    model = load_model(checkpoint, with_head=True)
    return CountingModel(
        pretrained=model,
        tokenizer=checkpoint.tokenizer,
        batch_size=1,
        max_length=options.max_length,
        # A run's model on text has what its tokenizer adds to a text nowhere in its blocks.
        add_bos_token=None if checkpoint.has_added_tokens else False,
        # What stands before the answer to an empty prompt.
        prefix_token_id=checkpoint.predecessor,
    )


def _rows(tasks: Loaded, answers: Mapping[str, Mapping[str, list[list[Sample]]]]) -> Iterator[Row]:
    """Yield a row for each task, and one for their mean; then those by character."""
    (_, first), *others = answers.items()
    differences = adjust(
        {
            (model, name): compare_right(_right(ours[name], "acc"), _right(first[name], "acc"))
            for model, ours in others
            for name in tasks
        }
    )
    rows = list[Row]()
    for name, (_, about) in tasks.items():
        chance, most_frequent = baselines(first[name][0])
        row = Row(
            table=RIGHT,
            name=name,
            unit="items",
            scores={model: score_answers(of[name]) for model, of in answers.items()},
            differences={model: differences[model, name] for model, _ in others},
            chance=chance,
            most_frequent=most_frequent,
            about=about,
        )
        rows.append(row)
    yield from rows
    if len(rows) > 1:
        means = {m: statistics.fmean(row.scores[m].value for row in rows) for m in answers}
        scores = {model: Score(value=mean) for model, mean in means.items()}
        chance = statistics.fmean(row.chance or 0.0 for row in rows)
        yield Row(table=RIGHT, name=MEAN, scores=scores, chance=chance)
    for name in tasks:
        if "acc_norm" in first[name][0][0]:
            norms = {m: share_right(_right(of[name], "acc_norm")) for m, of in answers.items()}
            yield Row(table=RIGHT_NORM, name=name, unit="items", scores=norms)


def _right(seeds: Sequence[Sequence[Sample]], metric: str) -> list[list[int]]:
    return [[int(sample[metric]) for sample in samples] for samples in seeds]


def score_answers(seeds: Sequence[Sequence[Sample]]) -> Score:
    """Return the score of one model's answers to one task, given for each seed."""
    counts = Counter[str]()
    for sample in (sample for samples in seeds for sample in samples):
        values = sorted(float(response[0]) for response in sample["filtered_resps"])
        if not all(map(math.isfinite, values)):
            raise ValueError(f"a log-probability of item {sample['doc_id']} is not finite")
        counts["ties"] += len(values) > 1 and values[-1] == values[-2]
        counts["prompts cut"] += len(sample["cut"])
    return replace(share_right(_right(seeds, "acc")), counts=+counts)


def baselines(samples: Sequence[Sample]) -> tuple[float, float]:
    """Return the share of a guess, and that of always the most frequent right answer, by the
    answer's text or by its place among the choices, whichever is larger."""
    places, texts, chance = Counter[int](), Counter[str](), 0.0
    for sample in samples:
        choices, target = [str(text).strip() for _, text in sample["arguments"]], sample["target"]
        # Of some tasks the place of the right answer, of others its text.
        place = target if isinstance(target, int) else choices.index(target.strip())
        if not 0 <= place < len(choices):
            raise ValueError(f"item {sample['doc_id']} has no right answer, but {target}")
        places[place] += 1
        texts[choices[place]] += 1
        chance += 1 / len(choices)
    most = max([*places.values(), *texts.values()])
    return chance / len(samples), most / len(samples)
