"""Answers of a model to an evaluation task, by lm-eval's own ``HFLM`` and ``evaluate``.

Beside lm-eval's scores of the items it counts what would pass unnoticed: prompts that are cut
because they are longer than the model reads, or longer than any text that it was trained on,
unknown tokens, and choices that are equally probable. Of the tokens that a tokenizer adds to a text
a prompt has those before it alone, and these where the model has learnt them: an end token would
stand before the answer.
"""

import contextlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import datasets
import numpy as np
import torch
from lm_eval import evaluate
from lm_eval.api.task import Task
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from layermem_bench.analysis.checkpoints import Checkpoint
from layermem_bench.evals.perplexity import check_ids, rows_at_once
from layermem_bench.evals.prepared_tasks import digest
from layermem_bench.evals.task_catalog import Definition
from layermem_bench.results.eval import EvalOptions, TaskAnswers

Request = tuple[tuple[str, str], list[int], list[int]]


class CountingModel(HFLM):
    """lm-eval's model, which counts what it is asked, and refuses what it would cut in silence."""

    def __init__(self, model: Any, checkpoint: Checkpoint, options: EvalOptions) -> None:
        tokenizer, text = checkpoint.tokenizer, checkpoint.text
        # Nothing of the batch is known yet; it is chosen by the longest request.
        automatic = options.batch_size is None and model.device.type == "cuda"
        with _quietly():
            super().__init__(
                pretrained=model,
                tokenizer=tokenizer,
                batch_size="auto" if automatic else 1,
                # What stands before the answer to an empty prompt.
                prefix_token_id=checkpoint.predecessor,
            )
        # What the tokenizer puts before a text.
        first = tokenizer.encode("a", add_special_tokens=False)[:1]
        added = list(tokenizer("a")["input_ids"])
        is_found = checkpoint.has_added_tokens and first and first[0] in added
        self.begins_with = added[: added.index(*first)] if is_found else []
        self.trained_length = text.block_size if text else None
        if options.max_length is not None:
            if options.max_length > self.max_length:
                raise ValueError(
                    f"--max-length {options.max_length} is more than the {self.max_length} tokens "
                    "that the model reads"
                )
            self._max_length = options.max_length
        self.options, self.automatic = options, automatic
        self.requests = self.truncated = self.beyond = self.unknown_tokens = self.done = 0
        self.progress: Callable[[int, int], None] = lambda done, total: None

    def tok_encode(
        self,
        string: str,
        add_special_tokens: bool | None = None,
        left_truncate_len: int | None = None,
        **kwargs: Any,
    ) -> list[int]:
        ids: list[int] = self.tokenizer.encode(string, add_special_tokens=False)
        if add_special_tokens is not False and ids[: len(self.begins_with)] != self.begins_with:
            ids = [*self.begins_with, *ids]
        return ids[-left_truncate_len:] if left_truncate_len else ids

    def loglikelihood(
        self, requests: list[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        # Its bar for tokenizing would be drawn through that of ``progress``.
        answers: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        return answers

    def _loglikelihood_tokens(
        self, requests: list[Request], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        self._count(requests)
        if not self.automatic:
            longest = max(len(context) + len(answer) for _, context, answer in requests)
            longest = min(longest, self.max_length)
            self.batch_size_per_gpu = rows_at_once(self.model, longest, self.options.batch_size)
        self.done = 0
        answers: list[tuple[float, bool]] = super()._loglikelihood_tokens(
            requests, disable_tqdm=True, override_bs=override_bs
        )
        for (texts, _, _), (value, _) in zip(requests, answers, strict=True):
            if not math.isfinite(value):
                raise ValueError(
                    f"the log-probability of {texts[1]!r:.60} is {value}: the model's weights are "
                    "not finite, or its precision is too low"
                )
        return answers

    def _model_call(self, inps: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        logits = super()._model_call(inps, *args, **kwargs)
        self.done += len(inps)
        self.progress(min(self.done, self.requests), self.requests)
        return logits

    def _count(self, requests: Sequence[Request]) -> None:
        # The last token of an answer is predicted, not read.
        lengths = [len(context) + len(answer) - 1 for _, context, answer in requests]
        self.requests = len(requests)
        self.truncated = sum(length > self.max_length for length in lengths)
        if self.truncated and not self.options.truncate:
            raise ValueError(
                f"{self.truncated} of {self.requests} prompts are longer than the "
                f"{self.max_length} tokens that the model is given (the longest has "
                f"{max(lengths)}); give fewer --shots, or --truncate to cut their start"
            )
        self.beyond = 0
        if self.trained_length is not None:
            self.beyond = sum(min(n, self.max_length) > self.trained_length for n in lengths)
        unknown = getattr(self.tokenizer, "unk_token_id", None)
        self.unknown_tokens = 0
        largest = max(max(context + answer, default=0) for _, context, answer in requests)
        check_ids(np.array([largest]), self.model)
        for texts, context, answer in requests:
            if not answer or len(answer) > self.max_length:
                raise ValueError(
                    f"the answer {texts[1]!r:.60} has {len(answer)} tokens; it must have from 1 to "
                    f"the {self.max_length} that the model is given"
                )
            if unknown is not None:
                self.unknown_tokens += (context + answer).count(unknown)


def load_task(definition: Definition) -> Task:
    """Return the task of a definition; its data is read, or fetched from the hub."""
    with _quietly():
        # Without lm-eval's own thousands of definitions, which take seconds to list.
        manager = TaskManager(include_defaults=False)
        task = manager.load([definition])["tasks"][definition["task"]]
    # For it each choice is asked for a second time, without its question.
    if "acc_mutual_info" in task._metric_fn_list:
        raise ValueError(
            f"{definition['task']} asks for acc_mutual_info, which is not supported: leave it out "
            "of the definition's metric_list"
        )
    return task


def answer_task(
    model: CountingModel,
    task: Task,
    key: Mapping[str, Any],
    progress: Callable[[int, int], None],
) -> TaskAnswers:
    """Have a model answer a task; ``progress`` is called with requests done, and their number."""
    model.progress = progress
    # As simple_evaluate does, but for its report on the machine, which takes seconds each time.
    task.set_config("num_fewshot", key["shots"])
    task.set_fewshot_seed(key["seed"])
    with _quietly():
        result = evaluate(
            model, {"tasks": {key["task"]: task}}, limit=key["limit"], bootstrap_iters=0
        )
    samples = sorted(result["samples"][key["task"]], key=lambda sample: int(sample["doc_id"]))
    if getattr(task, "multiple_input", None):
        # One answer after several contexts: which of them is right, lm-eval takes for the "text".
        samples = [{**sample, "target": task.doc_to_text(sample["doc"])} for sample in samples]
    chance, majority = baselines(samples)
    norms = tuple(int(sample["acc_norm"]) for sample in samples if "acc_norm" in sample)
    return TaskAnswers(
        key=key,
        right=tuple(int(sample["acc"]) for sample in samples),
        right_norm=norms or None,
        prompts=digest("".join(each["prompt_hash"] + each["target_hash"] for each in samples)),
        chance=chance,
        majority=majority,
        requests=model.requests,
        truncated=model.truncated,
        beyond=model.beyond,
        unknown_tokens=model.unknown_tokens,
        ties=sum(map(_is_tie, samples)),
    )


def baselines(samples: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return the share of a guess, and that of always the most frequent right answer.

    The latter is by the answer's text or by its place among the choices, whichever is larger.
    """
    places, texts, chance = Counter[int](), Counter[str](), 0.0
    for sample in samples:
        choices = [str(arguments[1]).strip() for arguments in sample["arguments"]]
        place = _right_place(sample, choices)
        places[place] += 1
        # Where the same answer follows several contexts, its text says nothing.
        if len(set(choices)) == len(choices):
            texts[choices[place]] += 1
        chance += 1 / len(choices)
    most = max([*places.values(), *texts.values()])
    return chance / len(samples), most / len(samples)


def _right_place(sample: Mapping[str, Any], choices: Sequence[str]) -> int:
    """Return the place of the right choice; lm-eval counts an answer that is none as wrong."""
    target = sample["target"]
    if isinstance(target, int) and 0 <= target < len(choices):
        return target
    if isinstance(target, str) and target.strip() in choices:
        return choices.index(target.strip())
    raise ValueError(
        f"item {sample['doc_id']} has the answer {target!r:.60}, which is none of its "
        f"{len(choices)} choices; does this split have answers?"
    )


def _is_tie(sample: Mapping[str, Any]) -> bool:
    values = sorted((float(response[0]) for response in sample["filtered_resps"]), reverse=True)
    return len(values) > 1 and values[0] == values[1]


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep lm-eval, and a hub that is not reached, from telling of each step; errors are raised."""
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    levels = {name: logging.getLogger(name).level for name in ("lm_eval", "huggingface_hub")}
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        if shown:
            datasets.enable_progress_bars()
