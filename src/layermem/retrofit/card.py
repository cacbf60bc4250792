"""The model card of saved routers, as the hub shows it."""

import json
from collections.abc import Mapping
from typing import Any

_CARD = """\
---
library_name: layermem
{base_line}tags:
- layer-memory
- adapter
---

# Layer memory for {title}

Routers of layer-integrated memory (LIMe, [arXiv 2502.09245](https://arxiv.org/abs/2502.09245)):
attention heads of {title} read keys and values of earlier layers too.

| | |
|---|---|
| architecture | {architecture} |
| base model | {name} |
| revision of the base | {revision} |
| layers, heads, head width | {layers}, {heads}, {head_dim} |
| router, window | {router}, {window} |

```python
import layermem
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained({quoted_name})
layermem.attach(model{options})
layermem.load_routers(model, "this-folder")
```
"""


def model_card(settings: Mapping[str, Any]) -> str:
    """Return the card of routers with these settings (those of routers.json)."""
    base = settings["base"]
    name = base["name"]
    options = "".join(
        f", {key}={json.dumps(settings[key])}"
        for key in ("router", "window")
        if settings[key] not in (None, "full")
    )
    # A path of one machine names no model of the hub.
    is_hub_name = name.count("/") == 1 and not name.startswith(("/", "."))
    return _CARD.format(
        base_line=f"base_model: {name}\n" if is_hub_name else "",
        title=name if is_hub_name else f"a {settings['architecture']}",
        architecture=settings["architecture"],
        name=name if is_hub_name else "not from the hub",
        revision=base["revision"] or "not known",
        layers=settings["layers"],
        heads=settings["heads"],
        head_dim=settings["head_dim"],
        router=settings["router"],
        window=settings["window"] or "none",
        quoted_name=json.dumps(name if is_hub_name else "the-base-model"),
        options=options,
    )
