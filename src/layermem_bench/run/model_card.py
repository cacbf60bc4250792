"""The model card of a run, README.md beside its final model.

It says what the model is, how it was trained, what was measured and how it is loaded. The user adds
the licence.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCardData

from layermem.models.card import TAGS, ask_for_licence, imports_of
from layermem.models.configuration import DecoderConfig
from layermem.models.registry import lookup
from layermem_bench.config.run import Run
from layermem_bench.run.folder import RunFolder, read_config
from layermem_bench.run.solved import Solved

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


def model_card(run: Run, folder: RunFolder, model: Any, data: str) -> str:
    """Return the card of a trained model, from its config and what the run recorded; ``data``: what
    it was trained on."""
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
        "training data": data,
        "steps": f"{run.max_steps:,} of {optim.batch_size:,} sequences",
        "tokens": f"{max((row['tokens'] for row in rows), default=0):,}",
        "learning rate": f"{optim.lr:g}, {optim.schedule} to {optim.min_lr:g}",
        "weight decay": f"{optim.weight_decay:g}",
    }
    losses = [f"{row['val_loss']:.4f}" for row in rows if "val_loss" in row]
    evaluation, prompt = {"validation loss (nats a token)": losses[-1] if losses else None}, "The"
    if folder.result.exists():
        solved = Solved.from_json(folder.result.read_text(encoding="utf-8"))
        evaluation |= describe_solved(solved)
        with folder.attempts.open(encoding="utf-8") as file:
            prompt = json.loads(file.readline())["prompt"]
    imports, load = _loading(run)
    return _CARD.format(
        metadata=metadata.to_yaml().strip(),
        title=f"{name}, {run.variant}, seed {run.seed}",
        kind=type(model).__name__,
        training=_table(training),
        about=yaml.safe_dump(about, sort_keys=False),
        evaluation=_table(evaluation),
        imports=imports,
        load=load,
        # A Python literal in double quotes.
        prompt=json.dumps(prompt, ensure_ascii=False),
        licence=ask_for_licence(origin),
    )


def describe_solved(solved: Solved) -> dict[str, str | None]:
    """Return what a model solves of the test problems, by what each number is of."""
    low, high = solved.interval
    interval = f"95% interval over problems: {low:.1%} to {high:.1%}"
    return {
        "test problems": f"{solved.count:,}",
        "right final answer": f"{solved.accuracy:.1%} ({interval})",
        "every step right": f"{solved.steps:.1%}",
        "right by chance": f"{solved.chance:.1%}",
    }


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
