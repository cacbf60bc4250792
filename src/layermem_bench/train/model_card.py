"""The model card that a run writes beside its final model: README.md with metadata for a model hub.

The user adds the licence: this library cannot know under which one the training data may be used.
"""

import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCardData
from torch import nn

from layermem.models.card import ask_for_licence
from layermem.retrofit.attachment import DEFAULTS
from layermem_bench.config.run import Run
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.train.optimizer import DECAYED, NO_DECAY, PLAIN
from layermem_bench.train.run_config import describe_environment

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
_GROUPS = {DECAYED: "weight matrices", PLAIN: "norms, biases and embeddings"}
_PROVENANCE = ("layermem", "torch", "transformers", "python", "commit", "machine", "precision")
Groups = Sequence[Mapping[str, Any]]
"""The parameter groups of an optimiser, with ``name``, ``initial_lr`` and ``weight_decay``."""


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """What a card says of what the model was trained on, and how it is used."""

    task: str
    """Name of what the model does, as model hubs have it."""
    data: str
    unit: str
    """What a validation loss is of: a token, a record, a window."""
    results: Mapping[str, str] = field(default_factory=dict)
    """Rows of what is measured beside the validation."""
    usage: str
    """Python code that loads the model and uses it."""


def write_model_card(path: Path, trainer: Any) -> None:
    """Write README.md into the folder of a trainer's final model; a failure is a warning, since it
    must not cost the model."""
    run, folder = trainer.run, trainer.folder
    precision = "bfloat16" if trainer.args.bf16 else "float32"
    try:
        at_end = {**describe_environment(), "precision": precision}
        groups = trainer.unwrapped_optimizer().param_groups
        learnt = trainer.learning.describe(folder)
        card = model_card(run, folder, trainer.model, groups, learnt, at_end)
        (path / "README.md").write_text(card, encoding="utf-8")
    except Exception as error:
        name = type(error).__name__
        logger.warning("the final model has no model card of its training (%s: %s)", name, error)


def model_card(
    run: Run,
    folder: RunFolder,
    model: nn.Module,
    groups: Groups,
    learnt: Learnt,
    at_end: Mapping[str, str],
) -> str:
    """Return the card of a trained model, from its config and what the run recorded; ``at_end``:
    versions, commit and precision now, since a resumed run may have begun with others."""
    about = yaml.safe_load(folder.config.read_text(encoding="utf-8")).get("about", {})
    rows = folder.rows()
    parts = [
        f"---\n{_metadata(run, learnt.task)}\n---",
        f"# {_title(run)}",
        _description(run, model),
        f"## Training\n\n{_training(run, rows, about, groups, learnt.data, at_end)}",
        f"## Evaluation\n\n{_evaluation(rows, learnt)}",
        f"## Use\n\n```python\n{learnt.usage}\n```",
        f"## Licence\n\n{ask_for_licence(_origin(run))}",
        f"## Citation\n\nThe method is that of\n\n{_CITATION}",
    ]
    return "\n\n".join(parts) + "\n"


def _title(run: Run) -> str:
    if run.host.model is None:
        return f"{run.variant} trained by the preset {run.preset}, seed {run.seed}"
    memory = "without" if run.host.memory == "none" else "with"
    return f"{Path(run.host.model).name} trained further {memory} layer memory, seed {run.seed}"


def _origin(run: Run) -> str:
    """Return the folder or hub name of the weights that a run began with; nothing: new ones."""
    return run.model.pretrained or run.host.model or ""


def _metadata(run: Run, task: str) -> str:
    name = f"{run.preset}-{run.variant}"
    if run.host.model is not None:
        name = f"{Path(run.host.model).name}-{run.host.train}-{run.host.memory}"
    data = ModelCardData(
        library_name="layermem",
        pipeline_tag=task,
        tags=["transformers", "layermem", "cross-layer-attention", run.variant],
        # A folder on this machine is no name that a hub could look up.
        base_model=None if os.path.exists(_origin(run)) else _origin(run) or None,
        model_name=f"{name}-s{run.seed}",
    )
    return data.to_yaml().strip()


def _description(run: Run, model: nn.Module) -> str:
    config: Any = model.config
    host = run.host
    parameters = f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters"
    layermem = "[layermem](https://arxiv.org/abs/2502.09245)"
    if host.model is None:
        options = f" ({', '.join(run.model.options)})" if run.model.options else ""
        return (
            f"A causal language model of the variant `{run.variant}`{options} of {layermem}: a "
            f"LLaMA-shaped decoder of {config.num_hidden_layers} layers of width "
            f"{config.hidden_size} with {config.num_attention_heads} query heads and "
            f"{config.num_key_value_heads} key-value heads, {parameters}."
        )
    values = {**vars(host), "router": host.memory}
    others = [f"{k}={values[k]}" for k, default in DEFAULTS.items() if values[k] != default]
    memory = f"with attached layer memory ({', '.join(others) or 'of all layers'})"
    if host.memory == "none":
        memory = "without layer memory"
    trained = {
        "routers": "its routers alone were trained",
        "all": "all of its weights were trained",
        "lora": "LoRA on its keys and values was trained, and is merged into them",
    }[host.train]
    return (
        f"{Path(host.model).name}, a {type(model).__name__} of transformers, {memory}, "
        f"{parameters}; {trained} by {layermem}."
    )


def _training(
    run: Run,
    rows: list[dict[str, Any]],
    about: Mapping[str, Any],
    groups: Groups,
    data: str,
    at_end: Mapping[str, str],
) -> str:
    tokens = max((row["tokens"] for row in rows if "tokens" in row), default=None)
    table: dict[str, Any] = {
        "command": f"`{about['command']}`" if "command" in about else None,
        "run id": about.get("run_id"),
        "started from": _origin(run) or "new weights",
        "trained before by": about.get("trained_before_by"),
        "training data": data,
        "digest of the data": about.get("data"),
        "steps": f"{run.max_steps:,}",
        "tokens": None if tokens is None else f"{tokens:,}",
        "sequences in a step": f"{run.optim.batch_size:,}",
        "seed": f"{run.seed} (weights and order of the data)",
        "learning rate": f"{_by_group(groups, 'initial_lr')}; {run.optim.schedule}, "
        f"{run.optim.warmup_steps} warm-up steps at most",
        "weight decay": _by_group(groups, "weight_decay"),
    }
    for name in _PROVENANCE:
        begun, ended = about.get(name), at_end.get(name)
        table[name] = begun or ended
        if begun and ended and begun != ended:
            # A resumed run.
            table[name] = f"{begun} at the beginning, {ended} at the end"
    return _table({name: value for name, value in table.items() if value is not None})


def _by_group(groups: Groups, setting: str) -> str:
    """Return each value of an optimiser's setting, with what was trained with it."""
    trained_with: dict[float, list[str]] = {}
    for group in groups:
        name = re.sub(r"^\w*Router$", "routers", group["name"].removesuffix(NO_DECAY))
        trained_with.setdefault(group[setting], []).append(_GROUPS.get(name, name))
    shown = {value: ", ".join(sorted(names)) for value, names in trained_with.items()}
    return ", ".join(f"{value:g} ({names})" for value, names in shown.items())


def _evaluation(rows: list[dict[str, Any]], learnt: Learnt) -> str:
    """Return a table of the first loss, the last validation and what else was measured."""
    table = {}
    validations = [row for row in rows if "val_loss" in row]
    first = next((row for row in rows if "loss" in row), None)
    if validations and validations[0]["step"] == 0:
        table["validation loss before the first step"] = f"{validations[0]['val_loss']:.4f}"
    elif first is not None:
        table[f"training loss of step {first['step']}"] = f"{first['loss']:.4f}"
    if validations:
        validation = validations[-1]
        table[f"validation loss (nats a {learnt.unit})"] = f"{validation['val_loss']:.4f}"
        if "val_perplexity" in validation:
            table["validation perplexity"] = f"{validation['val_perplexity']:.2f}"
    table |= learnt.results
    if not table:
        return "Nothing was measured."
    return _table(table) + "\n\nOne run of one seed; other seeds give other figures."


def _table(values: Mapping[str, Any]) -> str:
    cells = {
        name: str(value).replace("|", r"\|").replace("\n", " ") for name, value in values.items()
    }
    rows = (f"| {name} | {cell} |" for name, cell in cells.items())
    return "\n".join(["|  | value |", "|---|---|", *rows])


def literal(text: str) -> str:
    """Return a text as a Python literal in double quotes."""
    return json.dumps(text, ensure_ascii=False)
