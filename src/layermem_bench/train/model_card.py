"""The model card of a run, README.md beside its final model: what the model is, how it was trained,
what was measured, how it is loaded. The user adds the licence."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from layermem.models.card import TAGS, ask_for_licence
from layermem_bench.config.run import Run
from layermem_bench.results.run_folder import RunFolder, read_config

_ABOUT = ("command", "run_id", "data", "trained_before_by", "precision")
_VERSIONS = ("layermem", "torch", "transformers", "python", "commit", "machine")
_CARD = """\
---
{metadata}
---

# {title}

{description} Trained by [layermem](https://arxiv.org/abs/2502.09245).

## Training

{training}

## Evaluation

{evaluation}

One run of one seed; other seeds give other figures.

## Use

```python
{usage}
```

## Licence

{licence}
"""


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """What a card says of what the model was trained on, and how it is used."""

    task: str
    """Name of what the model does, as model hubs have it."""
    data: str
    unit: str
    """What a validation loss is of: a token."""
    results: Mapping[str, str] = field(default_factory=dict)
    """Rows of what is measured beside the validation."""
    usage: str
    """Python code that loads the model and uses it."""


def model_card(run: Run, folder: RunFolder, model: Any, learnt: Learnt) -> str:
    """Return the card of a trained model, from its config and what the run recorded."""
    about, rows = read_config(folder.config)[1], folder.rows()
    origin, host = run.model.pretrained or run.host.model or "", run.host
    memory = "" if host.model is None else f", memory {host.memory}, trained {host.train}"
    name = run.preset if host.model is None else Path(host.model).name
    parameters = f"{sum(each.numel() for each in model.parameters()):,}"
    metadata = ModelCardData(
        library_name="layermem",
        pipeline_tag=learnt.task,
        tags=[*TAGS, run.variant],
        # A folder on this machine is no name that a hub could look up.
        base_model=None if os.path.exists(origin) else origin or None,
        model_name=f"{name}-{run.variant}-s{run.seed}",
    )
    optim = run.optim
    training = {
        "started from": origin or "new weights",
        "training data": learnt.data,
        "steps": f"{run.max_steps:,}",
        "tokens": f"{max((row['tokens'] for row in rows), default=0):,}",
        "sequences in a step": f"{optim.batch_size:,}",
        "seed": f"{run.seed} (weights and order of the data)",
        "learning rate": f"{optim.lr:g}, {optim.schedule} to {optim.min_lr:g}",
        "learning rate of routers": None if optim.router_lr is None else f"{optim.router_lr:g}",
        "weight decay": f"{optim.weight_decay:g}",
        **{name.replace("_", " "): about.get(name) for name in (*_ABOUT, *_VERSIONS)},
    }
    validated = [row for row in rows if "val_loss" in row]
    losses = {f"validation loss after {r['step']:,} steps": r["val_loss"] for r in validated[-1:]}
    evaluation = {
        **{f"{what} (nats a {learnt.unit})": f"{loss:.4f}" for what, loss in losses.items()},
        **learnt.results,
    }
    return _CARD.format(
        metadata=metadata.to_yaml().strip(),
        title=f"{name}, {run.variant}, seed {run.seed}",
        description=f"{type(model).__name__}, {parameters} parameters{memory}.",
        training=_table(training),
        evaluation=_table(evaluation),
        usage=learnt.usage,
        licence=ask_for_licence(origin),
    )


def _table(values: Mapping[str, Any]) -> str:
    cells = {name: str(value) for name, value in values.items() if value is not None}
    rows = [f"| {name} | {' '.join(c.replace('|', '').split())} |" for name, c in cells.items()]
    return "\n".join(["|  | value |", "|---|---|", *rows])


def literal(text: str) -> str:
    """Return a text as a Python literal in double quotes."""
    return json.dumps(text, ensure_ascii=False)
