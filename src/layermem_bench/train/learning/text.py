"""Learning tokens: blocks of text, or problems of a task with the loss on their solutions.

Of problems with queries the sequence is the prompt, and the label after a query is its answer,
whatever token stands there. A validation and the end of a run on a task solve other problems.

Letters: B sequences, T tokens, V words of the vocabulary.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from layermem.models.card import imports_of
from layermem.models.configuration import DecoderConfig
from layermem.models.registry import lookup
from layermem_base.files import write_atomically
from layermem_bench.config.run import Run, Task
from layermem_bench.data.blocks import Blocks
from layermem_bench.data.document_hashes import Sketch
from layermem_bench.data.preparing import prepare
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.results.solved import Solved
from layermem_bench.tasks import registry
from layermem_bench.tasks.problems import Problem
from layermem_bench.train.metrics import validation_row
from layermem_bench.train.model_card import Learnt, literal
from layermem_bench.train.sequences import (
    IGNORED,
    SequenceDataset,
    prompts_digest,
)
from layermem_bench.train.setup import build_model, load_run_tokenizer

# From a model, its tokenizer, a task and the name of a split to the result and every attempt.
Evaluate: TypeAlias = Callable[[Any, Any, Task, str], tuple[Solved, Sequence[Any]]]


def judge_tokens(model: Any, batch: dict[str, Tensor], loss_chunk: int) -> Tensor:
    """Return the sum of the losses and the number of labels of each sequence [B, 2]."""
    labels = batch.pop("labels")
    next_tokens = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    if loss_chunk:
        output = model(**batch, labels=labels, loss_chunk=loss_chunk, use_cache=False)
        token_losses = output.token_losses
    else:
        # In float32, as in training.
        logits = model(**batch, use_cache=False).logits.flatten(0, 1).float()
        losses = nn.functional.cross_entropy(logits, next_tokens.flatten(), reduction="none")
        token_losses = losses.view_as(next_tokens)
    # A loss is zero where a token has no label.
    return torch.stack([token_losses.sum(1), (next_tokens != IGNORED).sum(1)], dim=1)


@final
class TextLearning:
    """What a run on text learns: every next token of blocks."""

    save = None
    judge = staticmethod(judge_tokens)
    collate = staticmethod(Blocks.collate)

    def __init__(self, run: Run) -> None:
        self.run, self.tokenizer = run, load_run_tokenizer(run)
        self.train_data, self.validation_data = build_text_datasets(run, self.tokenizer)

    def load_model(self) -> Any:
        return build_model(self.run, self.tokenizer)

    def metrics(self, model: Any, loss: float, judged: Tensor) -> dict[str, float]:
        return validation_row(loss)

    def describe(self, folder: RunFolder) -> Learnt:
        data = self.run.data
        names = ", ".join(filter(None, (data.source, data.subset, data.revision)))
        return Learnt(
            task="text-generation",
            data=f"{names}; blocks of {data.block_size} tokens",
            unit="token",
            usage=_usage(self.run, "The"),
        )


def build_text_datasets(run: Run, tokenizer: Any) -> tuple[SequenceDataset, SequenceDataset]:
    """Return the training and validation blocks of a run."""
    size, isolate = run.data.block_size, run.data.isolate_documents
    train, validation = prepare(run.data, tokenizer)
    held_out = Blocks(validation, size, isolate=isolate, at_most=run.eval_blocks)
    return Blocks(train, size, isolate=isolate), held_out


@final
class ProblemLearning:
    """What a run on a task learns: the solutions of its problems."""

    judge = staticmethod(judge_tokens)

    def __init__(self, run: Run, evaluate: Evaluate | None) -> None:
        self.run, self.tokenizer = run, load_run_tokenizer(run)
        self.train_data, self.validation_data = build_problem_datasets(run.task, self.tokenizer)
        self.collate, self.evaluate = self.train_data.collate, evaluate
        self.save = self._save if evaluate else None

    def load_model(self) -> Any:
        model = build_model(self.run, self.tokenizer)
        items = (*self.train_data.items, *self.validation_data.items)
        longest = max(len(item["input_ids"]) for item in items)
        positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if isinstance(positions, int) and longest > positions:
            raise ValueError(
                f"a problem of the task {self.run.task.name} has {longest} tokens, and the model "
                f"reads {positions} (max_position_embeddings): choose --task.options with shorter "
                "problems, or another model"
            )
        return model

    def metrics(self, model: Any, loss: float, judged: Tensor) -> dict[str, float]:
        row = validation_row(loss)
        if self.evaluate is not None:
            solved, _ = self.evaluate(model, self.tokenizer, self.run.task, "validation")
            row |= {"val_accuracy": solved.accuracy, "val_steps": solved.steps}
        return row

    def describe(self, folder: RunFolder) -> Learnt:
        task, prompt, results = self.run.task, "The", {}
        if folder.attempts.exists():
            with folder.attempts.open(encoding="utf-8") as file:
                prompt = json.loads(file.readline())["prompt"]
        if folder.result.exists():
            result = Solved.from_json(folder.result.read_text(encoding="utf-8"))
            low, high = result.interval
            results = {
                "test problems": f"{result.count:,}",
                "right final answer": f"{result.accuracy:.1%} (95% interval over problems: "
                f"{low:.1%} to {high:.1%})",
                "every step right": f"{result.steps:.1%}",
                "right by chance": f"{result.chance:.1%}",
            }
        options = f" ({' '.join(task.options)})" if task.options else ""
        # A file of records may have fewer than were asked for.
        examples = len(self.train_data) - task.repeated * (task.repeats - 1)
        return Learnt(
            task="text-generation",
            data=f"{examples:,} problems of the task {task.name}, seed {task.seed}{options}",
            unit="token",
            results=results,
            usage=_usage(self.run, prompt),
        )

    def _save(self, trainer: Any, folder: RunFolder) -> tuple[Solved, list[str]] | None:
        """Have the trained model solve the test problems, and write the attempts."""
        assert self.evaluate is not None
        solved, attempts = self.evaluate(trainer.model, self.tokenizer, self.run.task, "test")
        if not trainer.is_first:
            return None
        rows = [attempt.row() for attempt in attempts]
        write_atomically(folder.attempts, "".join(f"{json.dumps(row)}\n" for row in rows))
        solutions = prompts_digest([row["solution"] for row in rows])
        return replace(solved, solutions=solutions), [row["prompt"] for row in rows]


@final
class ProblemDataset(Dataset[dict[str, Tensor]]):
    """Encoded problems: ``input_ids`` and ``labels`` [T], where T differs between problems."""

    documents = Sketch.of(())

    def __init__(self, problems: Sequence[Problem], tokenizer: Any) -> None:
        if not problems:
            raise ValueError("a training or validation set needs at least one problem, got none")
        self.problems, end = problems, tokenizer.eos_token_id
        prompts, solutions = registry.encode(tokenizer, problems)
        self._queried = registry.select_queried(problems)
        items = []
        for number, (prompt, solution) in enumerate(zip(prompts, solutions, strict=True)):
            if self._queried:
                ids, labels = [*prompt, end], [IGNORED] * (len(prompt) + 1)
                # The token after a query is predicted at the query.
                for query, answer in zip(self._queried[number].queries, solution, strict=True):
                    labels[query + 1] = answer
            else:
                ids = [*prompt, *solution, end]
                labels = [*[IGNORED] * len(prompt), *solution, end]
            items.append({"input_ids": ids, "labels": labels})
        self.items, padding = items, tokenizer.pad_token_id
        self.padding = end if padding is None else padding
        self.length = sum(len(item["input_ids"]) for item in items) / len(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: torch.tensor(ids) for name, ids in self.items[index].items()}

    def collate(self, items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Pad to the longest sequence, on the right, where a causal model needs no mask."""
        return {
            name: pad_sequence([item[name] for item in items], True, padding)
            for name, padding in (("input_ids", self.padding), ("labels", IGNORED))
        }

    def identity(self) -> object:
        """Return ids and labels of problems with queries, prompts and solutions of others."""
        if self._queried:
            return [[list(item[name]) for name in ("input_ids", "labels")] for item in self.items]
        lengths = [item["labels"].count(IGNORED) for item in self.items]
        ids = [item["input_ids"] for item in self.items]
        return [[each[:n], each[n:]] for each, n in zip(ids, lengths, strict=True)]


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
    datasets[0].documents = _problems_of_files(task, train=task.examples)
    datasets[1].documents = _problems_of_files(task, validation=task.validation, test=task.test)
    return datasets


def _problems_of_files(task: Task, **counts: int) -> Sketch:
    """Return the prompts of the splits that options name files for; others are drawn."""
    definition, fields = registry.get_task(str(task.name)), task.fields()
    return Sketch.of(
        problem.prompt
        for split, count in counts.items()
        if isinstance(fields.get(split), str)
        for problem in definition.problems(split, count, task.seed, **fields)
    )


def _usage(run: Run, prompt: str) -> str:
    """Return code that loads the model and has it continue a prompt."""
    load, imports = "AutoModelForCausalLM.from_pretrained", "AutoModelForCausalLM, AutoTokenizer"
    first = imports_of(lookup(run.variant).config if run.host.model is None else DecoderConfig)
    if run.host.model is not None and run.host.memory != "none":
        load, imports = "load_attached", "AutoTokenizer"
        first = "from layermem.retrofit import load_attached"
    return f"""{first}
from transformers import {imports}

path = "path/to/this/folder"
tokenizer = AutoTokenizer.from_pretrained(path)
model = {load}(path)
prompt = {literal(prompt)}
# As in training: without special tokens, which some tokenizers add at both ends.
inputs = tokenizer(
    prompt, return_tensors="pt", add_special_tokens=False, return_token_type_ids=False
)
tokens = model.generate(**inputs, max_new_tokens=64, do_sample=False)
print(tokenizer.decode(tokens[0]))"""
