"""Learning a task's problems: prompt and solution, with the loss on the solution.

Of problems with queries the sequence is the prompt, with the loss on the answers alone. The label
after a query is its answer, whatever token stands there. A validation and the end of the run have
the model solve problems of their own.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

from torch import Tensor

from layermem.config import Run, Task
from layermem.results.solved import Solved
from layermem.runs import RunFolder, write_atomically
from layermem.tasks import registry
from layermem.tasks.problems import Problem
from layermem.train.learning.text import judge_tokens, load_token_model, usage_of_decoder
from layermem.train.metrics import validation_row
from layermem.train.model_card import Learnt
from layermem.train.sequences import IGNORED, PaddedSequences, padding_of
from layermem.train.setup import load_run_tokenizer

# From a model, its tokenizer, a task and the name of a split to the result and every attempt.
Evaluate: TypeAlias = Callable[[Any, Any, Task, str], tuple[Solved, Sequence[Any]]]


@final
class ProblemLearning:
    """What a run on a task learns."""

    step_loss = None

    def __init__(self, run: Run, evaluate: Evaluate | None) -> None:
        self.run, self.tokenizer = run, load_run_tokenizer(run)
        self.train_data, self.validation_data = build_problem_datasets(run.task, self.tokenizer)
        self.collate, self.evaluate = self.train_data.collate, evaluate
        self.save = self._save if evaluate else None

    def load_model(self) -> Any:
        return load_token_model(self.run, self.tokenizer)

    def judge(self, model: Any, batch: dict[str, Tensor], loss_chunk: int) -> Tensor:
        return judge_tokens(model, batch, loss_chunk)

    def metrics(self, model: Any, loss: float, judged: Tensor) -> dict[str, float]:
        row = validation_row(loss)
        if self.evaluate is not None:
            solved, _ = self.evaluate(model, self.tokenizer, self.run.task, "validation")
            row |= {"val_accuracy": solved.accuracy, "val_steps": solved.steps}
        return row

    def describe(self, model: Any, folder: RunFolder) -> Learnt:
        task, prompt, results = self.run.task, "The", {}
        if folder.attempts.exists():
            with folder.attempts.open(encoding="utf-8") as file:
                prompt = json.loads(file.readline())["prompt"]
        if folder.result.exists():
            result = json.loads(folder.result.read_text(encoding="utf-8"))
            low, high = result["interval"]
            results = {
                "test problems": f"{result['count']:,}",
                "right final answer": f"{result['accuracy']:.1%} (95% interval over problems: "
                f"{low:.1%} to {high:.1%})",
                "every step right": f"{result['steps']:.1%}",
                "right by chance": f"{result['chance']:.1%}",
            }
        options = f" ({' '.join(task.options)})" if task.options else ""
        return Learnt(
            task="text-generation",
            data=f"{task.examples:,} problems of the task {task.name}, seed {task.seed}{options}",
            unit="token",
            results=results,
            usage=usage_of_decoder(self.run, prompt),
        )

    def _save(self, trainer: Any, folder: RunFolder) -> tuple[Solved, list[str]] | None:
        """Have the trained model solve the test problems, and write the attempts."""
        assert self.evaluate is not None
        solved, attempts = self.evaluate(trainer.model, self.tokenizer, self.run.task, "test")
        if not trainer.is_world_process_zero():
            return None
        rows = [attempt.row() for attempt in attempts]
        write_atomically(folder.attempts, "".join(f"{json.dumps(row)}\n" for row in rows))
        return solved, [row["prompt"] for row in rows]


@final
class ProblemDataset(PaddedSequences):
    """Encoded problems: ``input_ids`` and ``labels`` [T], where T differs between problems."""

    def __init__(self, problems: Sequence[Problem], tokenizer: Any) -> None:
        if not problems:
            raise ValueError("a training or validation set needs at least one problem, got none")
        self.problems, end = problems, tokenizer.eos_token_id
        prompts, solutions = registry.encode(tokenizer, problems)
        self._queried = registry.select_queried(problems)
        if self._queried:
            items = [
                {
                    "input_ids": [*prompt, end],
                    "labels": _labels(len(prompt) + 1, p.queries, answers),
                }
                for p, prompt, answers in zip(self._queried, prompts, solutions, strict=True)
            ]
        else:
            items = [
                {
                    "input_ids": [*prompt, *solution, end],
                    "labels": [*[IGNORED] * len(prompt), *solution, end],
                }
                for prompt, solution in zip(prompts, solutions, strict=True)
            ]
        super().__init__(items, padding_of(tokenizer), has_mask=False)

    def identity(self) -> object:
        """Return ids and labels of problems with queries, prompts and solutions of others."""
        if self._queried:
            return super().identity()
        lengths = [item["labels"].count(IGNORED) for item in self.items]
        ids = [item["input_ids"] for item in self.items]
        return [[each[:n], each[n:]] for each, n in zip(ids, lengths, strict=True)]


def _labels(length: int, queries: Sequence[int], answers: Sequence[int]) -> list[int]:
    """Return labels, each where the token after its query is: that token is predicted there."""
    labels = [IGNORED] * length
    for query, answer in zip(queries, answers, strict=True):
        labels[query + 1] = answer
    return labels


def build_problem_datasets(task: Task, tokenizer: Any) -> tuple[ProblemDataset, ProblemDataset]:
    """Return the training set, with what is repeated in it, and the validation set of a task."""
    definition = registry.get_task(str(task.name))
    train, validation = (
        list(definition.problems(split, count, task.seed, **task.fields()))
        for split, count in (("train", task.examples), ("validation", task.validation))
    )
    # A file of records may have fewer than were asked for.
    if task.repeated and task.repeated >= len(train):
        raise ValueError(
            f"task.repeated ({task.repeated}) must be fewer than the problems of the training set, "
            f"which are {len(train)}"
        )
    train += train[: task.repeated] * (task.repeats - 1)
    datasets = ProblemDataset(train, tokenizer), ProblemDataset(validation, tokenizer)
    registry.check_tokenizer(definition, tokenizer, validation)
    return datasets
