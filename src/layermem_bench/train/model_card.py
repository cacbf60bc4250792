"""The model card of a run, README.md beside its final model.

It says what the model is, how it was trained, what was measured and how it is loaded. The user adds
the licence.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCardData

from layermem.models.card import TAGS, ask_for_licence
from layermem_bench.config.run import Run
from layermem_bench.results.run_folder import RunFolder, read_config

_CARD = """\
---
{metadata}
---

# {title}

{description} Trained by [layermem](https://arxiv.org/abs/2502.09245).

## Training

{training}

```yaml
{about}```

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
    origin, optim = run.model.pretrained or run.host.model or "", run.optim
    name = run.preset if run.host.model is None else Path(run.host.model).name
    metadata = ModelCardData(
        library_name="layermem",
        pipeline_tag=learnt.task,
        tags=[*TAGS, run.variant],
        # A folder on this machine is no name that a hub could look up.
        base_model=None if os.path.exists(origin) else origin or None,
        model_name=f"{name}-{run.variant}-s{run.seed}",
    )
    training = {
        "parameters": f"{sum(each.numel() for each in model.parameters()):,}",
        "started from": origin or "new weights",
        "trained": None if run.host.model is None else run.host.train,
        "memory": None if run.host.model is None else run.host.memory,
        "training data": learnt.data,
        "steps": f"{run.max_steps:,} of {optim.batch_size:,} sequences",
        "tokens": f"{max((row['tokens'] for row in rows), default=0):,}",
        "learning rate": f"{optim.lr:g}, {optim.schedule} to {optim.min_lr:g}",
        "weight decay": f"{optim.weight_decay:g}",
    }
    losses = [f"{row['val_loss']:.4f}" for row in rows if "val_loss" in row]
    evaluation = {f"validation loss (nats a {learnt.unit})": losses[-1] if losses else None}
    return _CARD.format(
        metadata=metadata.to_yaml().strip(),
        title=f"{name}, {run.variant}, seed {run.seed}",
        description=f"A {type(model).__name__}.",
        training=_table(training),
        about=yaml.safe_dump(about, sort_keys=False),
        evaluation=_table({**evaluation, **learnt.results}),
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
