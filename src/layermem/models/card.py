"""The model card of ``save_pretrained``: what a model is, was made from, and is loaded by.

A run replaces it by one that also says how the model was trained and what was measured. The user
adds the licence.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel

from layermem.models.configuration import DecoderConfig

CARD = "README.md"
_SAVED_BY = "saved by [layermem](https://arxiv.org/abs/2502.09245)"
_TEXT = """\
---
{metadata}
---

# {title}

{description}, {parameters:,} parameters, {saved_by}.

```python
{code}
```

{licence}
"""
_NO_LICENCE = (
    "No licence is stated: whoever publishes {this} chooses one that the training data{origin} "
    "allow, and adds it to the metadata above (`license:`)."
)
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
TAGS = ("transformers", "layermem", "cross-layer-attention")
"""What a model hub finds models with memory by."""


def write_card(
    folder: str | os.PathLike[str],
    model: PreTrainedModel,
    *,
    title: str,
    description: str,
    tags: Sequence[str],
    code: str,
    library: str = "layermem",
) -> None:
    """Write a card into a folder, with code that loads ``"this-folder"``.

    ``tags``: what a model hub finds it by. ``library``: what loads it. A card that somebody else
    wrote, or has added a licence to, is left alone.
    """
    path = Path(folder, CARD)
    if Path(folder).is_file() or (path.exists() and not _is_ours(path)):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Tied weights are counted once, and those of 4 bits as what is packed.
    parameters = model.num_parameters()
    origin = origin_of(model)
    metadata = [f"library_name: {library}", *hub_origin(origin), "tags:"]
    metadata += [f"- {tag}" for tag in tags]
    text = _TEXT.format(
        metadata="\n".join(metadata),
        title=title,
        description=description,
        parameters=parameters,
        saved_by=_SAVED_BY,
        code=code,
        licence=state_licence(origin),
    )
    path.write_text(text, encoding="utf-8")


def origin_of(model: PreTrainedModel) -> str:
    """Return the folder or the hub name that a model was loaded from; nothing: neither."""
    name = str(model.config.name_or_path)
    # Of a model that was made from one in memory transformers writes so.
    return "" if name == "None" else name


def hub_origin(origin: str) -> list[str]:
    """Return the line of the metadata that names an origin on the hub, if it is there."""
    is_on_hub = _HUB_NAME.fullmatch(origin) and not Path(origin).exists()
    return [f"base_model: {origin}"] if is_on_hub else []


def state_licence(origin: str) -> str:
    """Return the words of a card on what a model was made from, and under which licence."""
    if not origin:
        return _NO_LICENCE.format(this="this model", origin="")
    name = origin if hub_origin(origin) else Path(origin).name
    heading = re.search(r"(?m)^# (.+)$", _read_card(origin))
    title = f" ({heading[1]})" if heading else ""
    return ask_for_licence(f"The model was made from `{name}`{title}", read_licence(origin))


def ask_for_licence(origin: str, licence: str | None, this: str = "this model") -> str:
    """Return what a card says where the licence of an origin, a clause, binds ``this`` too."""
    known = f"which has the licence {licence}" if licence else "whose licence is not known here"
    return f"{origin}, {known}. " + _NO_LICENCE.format(this=this, origin=" and that licence")


def read_licence(origin: str) -> str | None:
    """Return the licence that the card of a folder states; on the hub it is not looked up."""
    metadata = re.match(r"---\n(.*?)^---$", _read_card(origin), re.DOTALL | re.MULTILINE)
    stated = re.search(r"(?m)^license: *(\S.*)$", metadata[1]) if metadata else None
    return stated[1] if stated else None


def _read_card(folder: str) -> str:
    card = Path(folder, CARD)
    return card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""


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
