"""The model card that ``save_pretrained`` writes: what the model is, and how it is loaded.

A run replaces it by one that also says how the model was trained and what was measured. The user
adds the licence.
"""

import os
from pathlib import Path

from torch import nn

from layermem.models.configuration import DecoderConfig

CARD = "README.md"
_SAVED_BY = "saved by [layermem](https://arxiv.org/abs/2502.09245)"
_TEXT = """\
---
library_name: layermem
tags:
- transformers
- layermem
- cross-layer-attention
- {tag}
---

# {title}

{description}, {parameters:,} parameters, {saved_by}.

```python
{code}
```

No licence is stated: whoever publishes this model chooses one that its training data allow, and
adds it to the metadata above (`license:`).
"""


def write_card(
    folder: str | os.PathLike[str],
    model: nn.Module,
    *,
    title: str,
    description: str,
    tag: str,
    code: str,
) -> None:
    """Write a card into a folder, with code that loads ``"this-folder"``.

    A card that somebody else wrote, or has added a licence to, is left alone.
    """
    path = Path(folder, CARD)
    if Path(folder).is_file() or (path.exists() and not _is_ours(path)):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Tied weights are counted once.
    parameters = sum(parameter.numel() for parameter in model.parameters())
    fields = {"title": title, "description": description, "tag": tag, "code": code}
    fields["saved_by"] = _SAVED_BY
    path.write_text(_TEXT.format(**fields, parameters=parameters), encoding="utf-8")


def imports_of(config: type[DecoderConfig]) -> str:
    """Return the lines that make models of a config known to the Auto classes.

    A variant of a plugin, or a pair with it, is known once the plugin's module is imported. One of
    a script has no module to import.
    """
    modules = {cls.__module__ for cls in config.__mro__ if issubclass(cls, DecoderConfig)}
    lines = [
        "# First run the code that declares the model's variant."
        if module == "__main__"
        else f"import {module}  # declares the model's variant"
        for module in sorted(modules)
        if module.partition(".")[0] != "layermem"
    ]
    return "\n".join(["import layermem  # makes the model known to transformers", *lines])


def _is_ours(path: Path) -> bool:
    text = path.read_text(encoding="utf-8", errors="replace")
    return _SAVED_BY in text and "\nlicense:" not in text
