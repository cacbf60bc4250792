"""The model card that a run writes beside its final model: README.md with metadata for a model hub.

It says what the model is, how it was trained, what was measured, and how to load it. The user adds
the licence: this library cannot know under which one the training data may be used.

It does not know: how models are trained or evaluated, how the folder is published.
"""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCardData
from torch import nn

from layermem.config import Run
from layermem.results.answers import Answers
from layermem.results.files import read_result
from layermem.runs import RunFolder
from layermem.train.card_usage import usage
from layermem.train.optimizer import DECAYED, NO_DECAY, PLAIN
from layermem.train.provenance import describe_environment

logger = logging.getLogger(__name__)

_CITATION = """```bibtex
@article{gerasimov2025representation,
  title   = {You Do Not Fully Utilize Transformer's Representation Capacity},
  author  = {Gerasimov, Gleb and Aksenov, Yaroslav and Balagansky, Nikita and Sinii, Viacheslav
             and Gavrilov, Daniil},
  journal = {arXiv preprint arXiv:2502.09245},
  year    = {2025}
}
```"""
# What model hubs call the kinds of records.
_KIND_TAGS = {
    None: "text-generation",
    "classification": "text-classification",
    "question-answering": "question-answering",
}
_GROUPS = {DECAYED: "weight matrices", PLAIN: "norms, biases and embeddings"}
_PROVENANCE = ("layermem", "torch", "transformers", "python", "commit", "machine", "precision")


Groups = Sequence[Mapping[str, Any]]
"""The parameter groups of an optimiser, with ``name``, ``initial_lr`` and ``weight_decay``."""


def write_model_card(
    path: Path, run: Run, folder: RunFolder, model: nn.Module, groups: Groups, precision: str
) -> None:
    """Write README.md into ``path``, the folder of the final model of a run.

    ``groups``: those of the optimiser that trained it; ``precision``: the arithmetic that the run
    ends with. A card that cannot be written, since a
    record of the run is damaged, is a warning: it must not cost the trained model.
    """
    try:
        at_end = {**describe_environment(), "precision": precision}
        card = model_card(run, folder, model, groups, at_end)
        (path / "README.md").write_text(card, encoding="utf-8")
    except Exception as error:
        logger.warning(
            "the final model has no model card of its training (%s: %s)",
            type(error).__name__,
            error,
        )


def model_card(
    run: Run,
    folder: RunFolder,
    model: nn.Module,
    groups: Groups,
    at_end: Mapping[str, str] | None = None,
) -> str:
    """Return the card of a trained model, from its config and what the run recorded.

    ``at_end``: versions, commit and precision that the run ends with; a resumed run may have begun
    with others, which are what it recorded.
    """
    about = yaml.safe_load(folder.config.read_text(encoding="utf-8")).get("about", {})
    rows = folder.rows()
    parts = [
        f"---\n{_metadata(run)}\n---",
        f"# {run.preset}, {run.variant}, seed {run.seed}",
        _description(run, model),
        f"## Training\n\n{_training(run, rows, about, groups, at_end or {})}",
        f"## Evaluation\n\n{_evaluation(rows, folder)}",
        f"## Use\n\n{usage(run, folder, model)}",
        "## Licence\n\nNone is stated: whoever publishes this model chooses one that its training "
        "data allow, and adds it to the metadata above (`license:`).",
        f"## Citation\n\nThe method is that of\n\n{_CITATION}",
    ]
    return "\n\n".join(parts) + "\n"


def _metadata(run: Run) -> str:
    """Return the YAML that model hubs read."""
    pretrained = run.model.pretrained or run.host.model
    data = ModelCardData(
        library_name="layermem",
        pipeline_tag="text-generation"
        if run.records.source is None
        else _KIND_TAGS[run.records.kind],
        tags=["transformers", "layermem", "cross-layer-attention", run.variant],
        # A folder on this machine is no name that a hub could look up.
        base_model=None if pretrained is None or os.path.exists(pretrained) else pretrained,
        model_name=f"{run.preset}-{run.variant}-s{run.seed}",
    )
    return data.to_yaml().strip()


def _description(run: Run, model: nn.Module) -> str:
    config: Any = model.config
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if run.host.model is not None:
        return _description_of_host(run, type(model).__name__, parameters)
    options = ", ".join(run.model.options)
    return (
        f"A causal language model of the variant `{run.variant}`"
        f"{f' ({options})' if options else ''} of "
        "[layermem](https://arxiv.org/abs/2502.09245): a LLaMA-shaped decoder of "
        f"{config.num_hidden_layers} layers of width {config.hidden_size} with "
        f"{config.num_attention_heads} query heads and {config.num_key_value_heads} key-value "
        f"heads, {parameters:,} parameters."
    )


def _description_of_host(run: Run, architecture: str, parameters: int) -> str:
    host, window = run.host, f", window {run.host.window}" if run.host.window else ""
    memory = {
        "none": "without layer memory",
    }.get(host.memory, f"with attached layer memory ({host.memory}{window})")
    trained = {
        "routers": "its routers alone were trained",
        "all": "all of its weights were trained",
        "lora": "LoRA on its keys and values was trained, and is merged into them",
    }[host.train]
    return (
        f"{Path(str(host.model)).name}, a {architecture} of transformers, {memory}, "
        f"{parameters:,} parameters; {trained} by [layermem](https://arxiv.org/abs/2502.09245)."
    )


def _training(
    run: Run,
    rows: list[dict[str, Any]],
    about: Mapping[str, Any],
    groups: Groups,
    at_end: Mapping[str, str],
) -> str:
    """Return a table of what the model was trained on and how."""
    tokens = max((row["tokens"] for row in rows if "tokens" in row), default=None)
    start = run.model.pretrained or run.host.model or "new weights"
    if run.records.from_config is not None:
        start = f"random weights of the sizes in {run.records.from_config}"
    table = {
        "command": f"`{about['command']}`" if "command" in about else None,
        "run id": about.get("run_id"),
        "started from": start,
        "trained before by": about.get("trained_before_by"),
        "training data": _data(run),
        "digest of the data": about.get("data"),
        "steps": f"{run.max_steps:,}",
        "tokens": None if tokens is None else f"{tokens:,}",
        "sequences in a step": f"{run.optim.batch_size:,}",
        "seed": f"{run.seed} (weights and order of the data)",
        "learning rate": f"{_by_group(groups, 'initial_lr')}; {run.optim.schedule}, "
        f"{run.optim.warmup_steps} warm-up steps at most",
        "weight decay": _by_group(groups, "weight_decay"),
        **{name: _begun_and_ended(about.get(name), at_end.get(name)) for name in _PROVENANCE},
    }
    return _table("", "value", {name: value for name, value in table.items() if value is not None})


def _by_group(groups: Groups, setting: str) -> str:
    """Return each value of an optimiser's setting, with what was trained with it."""
    trained_with: dict[float, list[str]] = {}
    for group in groups:
        name = group["name"].removesuffix(NO_DECAY)
        trained_with.setdefault(group[setting], []).append(_GROUPS.get(name, name))
    return ", ".join(
        f"{value:g} ({', '.join(sorted(names))})" for value, names in trained_with.items()
    )


def _begun_and_ended(begun: str | None, ended: str | None) -> str | None:
    """Return one value, or both where a resumed run ended with another than it began with."""
    if begun is None or ended is None or begun == ended:
        return begun or ended
    return f"{begun} at the beginning, {ended} at the end"


def _data(run: Run) -> str:
    if run.records.source is not None:
        return f"{run.records.source}; {run.records.kind} of records"
    if run.task.name:
        options = " ".join(run.task.options)
        return (
            f"{run.task.examples:,} problems of the task {run.task.name}, seed {run.task.seed}"
            f"{f' ({options})' if options else ''}"
        )
    names = (run.data.source, run.data.subset, run.data.revision)
    return f"{', '.join(filter(None, names))}; blocks of {run.data.block_size} tokens"


def _evaluation(rows: list[dict[str, Any]], folder: RunFolder) -> str:
    """Return a table of the last validation and, of a task, the shares of test problems solved."""
    table = {}
    validation = next((row for row in reversed(rows) if "val_loss" in row), None)
    if validation is not None:
        is_of_tokens = "val_perplexity" in validation
        unit = "token" if is_of_tokens else "window" if folder.answers.exists() else "record"
        table[f"validation loss (nats a {unit})"] = f"{validation['val_loss']:.4f}"
        if is_of_tokens:
            table["validation perplexity"] = f"{validation['val_perplexity']:.2f}"
    if folder.answers.exists():
        table |= _evaluation_of_questions(folder)
    elif folder.records.exists():
        table |= _evaluation_of_records(folder)
    elif folder.result.exists():
        result = json.loads(folder.result.read_text(encoding="utf-8"))
        low, high = result["interval"]
        table |= {
            "test problems": f"{result['count']:,}",
            "right final answer": f"{result['accuracy']:.1%} (95% interval over problems: "
            f"{low:.1%} to {high:.1%})",
            "every step right": f"{result['steps']:.1%}",
            "right by chance": f"{result['chance']:.1%}",
        }
    if not table:
        return "Nothing was measured."
    return _table("", "value", table) + "\n\nOne run of one seed; other seeds give other figures."


def _evaluation_of_records(folder: RunFolder) -> dict[str, str]:
    result = json.loads(folder.result.read_text(encoding="utf-8"))
    counts = json.loads(folder.records.read_text(encoding="utf-8"))
    low, high = result["interval"]
    return {
        "validation records": f"{result['count']:,} ({counts['validation_cut']:,} of them cut)",
        "right class": f"{result['accuracy']:.1%} (95% interval over records: {low:.1%} to "
        f"{high:.1%})",
        f"right by always {counts['majority']!r}, the most frequent": f"{result['chance']:.1%}",
    }


def _evaluation_of_questions(folder: RunFolder) -> dict[str, str]:
    answers = read_result(Answers, folder.answers)
    scores = {
        "validation questions": answers.all,
        "of those with an answer": answers.has_answer if answers.no_answer else None,
        "of those without one": answers.no_answer,
        **{f"guess, {name}": score for name, score in answers.guesses.items()},
    }
    return {
        f"{name}: exact match, F1 of words": f"{score.exact:.1%}, {score.f1:.1%} of {score.count:,}"
        for name, score in scores.items()
        if score is not None
    }


def _table(left: str, right: str, values: Mapping[str, Any]) -> str:
    rows = (
        f"| {name} | {str(value).replace('|', chr(92) + '|').replace(chr(10), ' ')} |"
        for name, value in values.items()
    )
    return "\n".join([f"| {left} | {right} |", "|---|---|", *rows])
