"""The model card of ``save_pretrained``: what a model is, was made from, and is loaded by.

A run adds how the model was trained. The user adds the licence.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel

from layermem.models.configuration import DecoderConfig

CARD = "README.md"
TAGS = ("transformers", "layermem", "cross-layer-attention")
"""What a model hub finds models with memory by."""
_SAVED_BY = "saved by [layermem](https://arxiv.org/abs/2502.09245)"
_TEXT = """\
---
library_name: layermem
{base}tags: [{tags}]
---

# {title}

{description}, {parameters:,} parameters, {saved_by}.

```python
{code}
```

{licence}
"""


def write_card(
    folder: str | os.PathLike[str],
    model: PreTrainedModel,
    *,
    title: str,
    description: str,
    tags: Sequence[str],
    code: str,
) -> None:
    """Write a card into a folder, with code that loads ``"this-folder"``.

    ``tags``: what a model hub finds it by. A card that somebody else wrote, or has added a licence
    to, is left alone.
    """
    path, origin = Path(folder, CARD), origin_of(model)
    if path.exists():
        there = path.read_text(encoding="utf-8", errors="replace")
        if _SAVED_BY not in there or "\nlicense:" in there:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    is_on_hub = origin.count("/") == 1 and not Path(origin).exists()
    text = _TEXT.format(
        base=f"base_model: {origin}\n" if is_on_hub else "",
        tags=", ".join(tags),
        title=title,
        description=description,
        # Tied weights are counted once, and those of 4 bits as what is packed.
        parameters=model.num_parameters(),
        saved_by=_SAVED_BY,
        code=code,
        licence=ask_for_licence(origin),
    )
    path.write_text(text, encoding="utf-8")


def origin_of(model: PreTrainedModel) -> str:
    """Return the folder or the hub name that a model was loaded from; nothing: neither."""
    name = str(model.config.name_or_path)
    # Of a model that was made from one in memory transformers writes so.
    return "" if name == "None" else name


def ask_for_licence(origin: str, this: str = "this model") -> str:
    """Return what a card says of the licence.

    ``origin``: a folder or hub name, or words, of what ``this`` was made from, if anything.
    """
    # A path says nothing on another machine.
    name = Path(origin).name if Path(origin).exists() else origin
    return (
        f"No licence is stated: whoever publishes {this} chooses one that the training data"
        f"{f' and the licence of {name}' if origin else ''} allow, and adds it to the metadata "
        "above (`license:`)."
    )


def imports_of(config: type[DecoderConfig]) -> str:
    """Return the lines that make models of a config, a plugin's too, known to the Auto classes."""
    modules = {cls.__module__ for cls in config.__mro__ if issubclass(cls, DecoderConfig)}
    plugins = {name for name in modules - {"__main__"} if name.partition(".")[0] != "layermem"}
    return "\n".join(f"import {name}" for name in ("layermem", *sorted(plugins)))
