"""Go on training a model of transformers: with routers alone, all weights, or LoRA as a control.

    load_host   a run's config -> the model, attached and with the right parameters to train
    finetune    trains it as any run is trained, in a run folder
    outcome     of records: what it gets right before and after

It does not know: the training loop, the command line.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from layermem.config import Run
from layermem.evals.solving import evaluate
from layermem.experiments.analyze_checkpoints import check_causal
from layermem.experiments.host_memory import check_same_memory, choose_trained
from layermem.experiments.record_models import load_record_model
from layermem.results.answers import Answers
from layermem.results.files import read_result
from layermem.results.record_counts import RecordCounts
from layermem.results.solved import Solved
from layermem.retrofit import attach, load_attached
from layermem.retrofit.loading import is_attached
from layermem.runs import RunFolder
from layermem.train.host_inputs import load_host_config
from layermem.train.run import train
from layermem.train.setup import Prepared


def finetune(run: Run, out: str | os.PathLike[str], *, resume: bool = False) -> RunFolder:
    """Train the model that ``run.host`` names; return the folder of the run, as ``train`` does."""
    return train(run, out, resume=resume, evaluate=evaluate, load_host=load_host)


def outcome(folder: RunFolder) -> str:
    """Return what an ended run on records came to, in a few lines."""
    before, *_, after = [row for row in folder.rows() if "val_loss" in row]
    if folder.answers.exists():
        return _outcome_of_questions(before, after, read_result(Answers, folder.answers))
    counts = read_result(RecordCounts, folder.records)
    solved = Solved.from_json(folder.result.read_text(encoding="utf-8"))
    low, high = solved.interval
    return (
        f"before: loss {before['val_loss']:.4f}, {before['val_accuracy']:.1%} right\n"
        f"after {after['step']:,} steps: loss {after['val_loss']:.4f}, {solved.accuracy:.1%} right "
        f"(95% interval over {solved.count:,} records: {low:.1%} to {high:.1%}); always "
        f"{counts.majority!r}, the most frequent label: {counts.majority_share:.1%}"
    )


def _outcome_of_questions(
    before: Mapping[str, Any], after: Mapping[str, Any], answers: Answers
) -> str:
    parts = {
        f"after {after['step']:,} steps: loss {after['val_loss']:.4f}": answers.all,
        "of questions with an answer (HasAns)": answers.has_answer if answers.no_answer else None,
        "of questions without one (NoAns)": answers.no_answer,
        **{f"guess, {name}": score for name, score in answers.guesses.items()},
    }
    lines = [
        f"before: loss {before['val_loss']:.4f}, exact match {before['val_accuracy']:.1%}, F1 "
        f"{before['val_f1']:.1%}"
    ]
    for name, score in parts.items():
        if score is not None:
            lines.append(
                f"{name}: exact match {score.exact:.1%}{_ends(score.exact_interval)}, F1 "
                f"{score.f1:.1%}{_ends(score.f1_interval)}, {score.count:,} questions"
            )
    return "\n".join(lines)


def _ends(interval: Sequence[float]) -> str:
    return f" ({interval[0]:.1%} to {interval[1]:.1%})" if interval else ""


def load_host(run: Run, prepared: Prepared | None = None) -> Any:
    """Return the model of a run, in float32, with the parameters that it trains.

    ``prepared``: what the run starts with; a run on records has its model's head there.
    """
    if prepared is not None and prepared.records is not None:
        return load_record_model(run, prepared.records.config, prepared.records.auto_class)
    host = run.host
    _check_length(run)
    model = _load(run)
    check_causal(model)
    choose_trained(model, host)
    return model


def _load(run: Run) -> Any:
    """Return the model with its memory, which a checkpoint may have already."""
    host = run.host
    location = str(host.model)
    if not is_attached(location):
        model: Any = AutoModelForCausalLM.from_pretrained(
            location, dtype=torch.float32, revision=host.revision or "main"
        )
        return model if host.memory == "none" else attach(model, host.memory, host.window)
    check_same_memory(location, host)
    return load_attached(location, dtype=torch.float32)


def _check_length(run: Run) -> None:
    """Raise if blocks of text are longer than the positions that the model knows."""
    config = load_host_config(run)
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    if run.task.name is None and isinstance(longest, int) and run.data.block_size > longest:
        raise ValueError(
            f"data.block_size={run.data.block_size} is more than {run.host.model} reads, {longest} "
            "tokens (max_position_embeddings): lower it"
        )
