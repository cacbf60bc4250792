"""The model card of ``save_pretrained``: what a model is, was made from, and is loaded by.

The user adds the licence, and how the model was trained.
"""

import os
from pathlib import Path
from typing import Any

from layermem.models.configuration import PREFIX, DecoderConfig

_SAVED_BY = "saved by [layermem](https://arxiv.org/abs/2502.09245)"
_TEXT = """\
---
library_name: layermem
{base}tags: [transformers, layermem, cross-layer-attention, {variant}]
---

# {name} of layermem

A decoder of the variant `{variant}`: {config.num_hidden_layers} layers of width \
{config.hidden_size}, {config.num_attention_heads} query heads, {config.num_key_value_heads} \
key-value heads, {parameters:,} parameters, {saved_by}.

```python
{imports}
from transformers import {auto}

model = {auto}.from_pretrained("this-folder")
```

No licence is stated: whoever publishes this model chooses one that the training data{origin} \
allow, and adds it to the metadata above (`license:`).
"""


def write_card(folder: str | os.PathLike[str], model: Any) -> None:
    """Write a card into a folder.

    A card that somebody else wrote, or has added a licence to, is left alone.
    """
    path, config, name = Path(folder, "README.md"), model.config, type(model).__name__
    if path.exists():
        there = path.read_text(encoding="utf-8", errors="replace")
        if _SAVED_BY not in there or "\nlicense:" in there:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Of a model that was made from one in memory transformers writes "None".
    origin = str(config.name_or_path).removeprefix("None")
    is_folder = Path(origin).exists()
    is_on_hub = origin.count("/") == 1 and not is_folder
    # A path says nothing on another machine.
    shown = Path(origin).name if is_folder else origin
    autos = (auto for auto, cls in config.auto_classes.items() if cls == name)
    text = _TEXT.format(
        base=f"base_model: {origin}\n" if is_on_hub else "",
        name=name,
        variant=config.model_type.removeprefix(PREFIX),
        config=config,
        # Tied weights are counted once.
        parameters=model.num_parameters(),
        saved_by=_SAVED_BY,
        imports=_imports_of(type(config)),
        auto=next(autos, "AutoModel"),
        origin=f" and the licence of {shown}" if origin else "",
    )
    path.write_text(text, encoding="utf-8")


def _imports_of(config: type[DecoderConfig]) -> str:
    """Return the lines that make models of a config, a plugin's too, known to the Auto classes."""
    modules = {cls.__module__ for cls in config.__mro__ if issubclass(cls, DecoderConfig)}
    plugins = {name for name in modules - {"__main__"} if name.partition(".")[0] != "layermem"}
    return "\n".join(f"import {name}" for name in ("layermem", *sorted(plugins)))
