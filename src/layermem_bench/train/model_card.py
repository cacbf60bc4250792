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

from layermem.models.card import TAGS, ask_for_licence, imports_of
from layermem.models.configuration import DecoderConfig
from layermem.models.registry import lookup
from layermem_bench.config.run import Run
from layermem_bench.results.run_folder import RunFolder, read_config

_CARD = """\
---
{metadata}
---

# {title}

A {kind}. Trained by [layermem](https://arxiv.org/abs/2502.09245).

## Training

{training}

```yaml
{about}```

## Evaluation

{evaluation}

One run of one seed; other seeds give other figures.

## Use

```python
{imports}

path = "path/to/this/folder"
tokenizer = AutoTokenizer.from_pretrained(path)
model = {load}(path)
prompt = {prompt}
# As in training: without special tokens, which some tokenizers add at both ends.
inputs = tokenizer(
    prompt, return_tensors="pt", add_special_tokens=False, return_token_type_ids=False
)
tokens = model.generate(**inputs, max_new_tokens=64, do_sample=False)
print(tokenizer.decode(tokens[0]))
```

## Licence

{licence}
"""


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """What a card says of what the model was trained on."""

    data: str
    prompt: str = "The"
    """What the model continues in the example of its use."""
    results: Mapping[str, str] = field(default_factory=dict)
    """Rows of what is measured beside the validation."""


def model_card(run: Run, folder: RunFolder, model: Any, learnt: Learnt) -> str:
    """Return the card of a trained model, from its config and what the run recorded."""
    about, rows = read_config(folder.config)[1], folder.rows()
    host, optim = run.host, run.optim
    origin = run.model.pretrained or host.model or ""
    name = run.preset if host.model is None else Path(host.model).name
    metadata = ModelCardData(
        library_name="layermem",
        pipeline_tag="text-generation",
        tags=[*TAGS, run.variant],
        # A folder on this machine is no name that a hub could look up.
        base_model=None if os.path.exists(origin) else origin or None,
        model_name=f"{name}-{run.variant}-s{run.seed}",
    )
    training = {
        "parameters": f"{sum(each.numel() for each in model.parameters()):,}",
        "started from": origin or "new weights",
        "trained": host.model and host.train,
        "memory": host.model and host.memory,
        "training data": learnt.data,
        "steps": f"{run.max_steps:,} of {optim.batch_size:,} sequences",
        "tokens": f"{max((row['tokens'] for row in rows), default=0):,}",
        "learning rate": f"{optim.lr:g}, {optim.schedule} to {optim.min_lr:g}",
        "weight decay": f"{optim.weight_decay:g}",
    }
    losses = [f"{row['val_loss']:.4f}" for row in rows if "val_loss" in row]
    evaluation = {"validation loss (nats a token)": losses[-1] if losses else None}
    imports, load = _loading(run)
    return _CARD.format(
        metadata=metadata.to_yaml().strip(),
        title=f"{name}, {run.variant}, seed {run.seed}",
        kind=type(model).__name__,
        training=_table(training),
        about=yaml.safe_dump(about, sort_keys=False),
        evaluation=_table({**evaluation, **learnt.results}),
        imports=imports,
        load=load,
        # A Python literal in double quotes.
        prompt=json.dumps(learnt.prompt, ensure_ascii=False),
        licence=ask_for_licence(origin),
    )


def _loading(run: Run) -> tuple[str, str]:
    """Return the imports of the code that loads the model, and the function that does."""
    if run.host.model is not None and run.host.memory != "none":
        attached = "from layermem.retrofit import load_attached"
        return f"{attached}\nfrom transformers import AutoTokenizer", "load_attached"
    first = imports_of(lookup(run.variant).config if run.host.model is None else DecoderConfig)
    of_transformers = "from transformers import AutoModelForCausalLM, AutoTokenizer"
    return f"{first}\n{of_transformers}", "AutoModelForCausalLM.from_pretrained"


def _table(values: Mapping[str, Any]) -> str:
    cells = {name: str(value) for name, value in values.items() if value is not None}
    rows = [f"| {name} | {' '.join(c.replace('|', '').split())} |" for name, c in cells.items()]
    return "\n".join(["|  | value |", "|---|---|", *rows])
