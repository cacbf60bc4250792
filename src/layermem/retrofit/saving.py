"""``save_pretrained`` of an attached model, which saves its routers beside it.

The checkpoint holds the routers' weights under their names, which transformers reports as
unexpected when it loads the bare model; and the adapter's files, which ``load_routers`` reads.

It does not know: routers, hooks.
"""

import os
import warnings
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from layermem.retrofit.adapter import NotAtHand, write_routers

_METHOD = "save_pretrained"


class SavePretrained:
    """Takes the place of a model's method."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def __call__(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        """Save the model as its class does, and then the routers."""
        result = type(self.model).save_pretrained(self.model, save_directory, *args, **kwargs)
        is_main = args[0] if args else kwargs.get("is_main_process", True)
        if is_main:
            try:
                write_routers(self.model, Path(save_directory))
            except NotAtHand as error:
                warnings.warn(
                    f"{save_directory} holds the routers under their names in the model alone, not "
                    f"as files for load_routers: {error}",
                    stacklevel=2,
                )
        return result


def save_routers_too(model: nn.Module, owner: nn.Module) -> None:
    """Let every model of transformers in ``model`` that holds ``owner`` save the routers too."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and any(m is owner for m in module.modules()):
            setattr(module, _METHOD, SavePretrained(module))


def save_as_before(model: nn.Module) -> None:
    """Undo ``save_routers_too``."""
    for module in model.modules():
        if isinstance(vars(module).get(_METHOD), SavePretrained):
            delattr(module, _METHOD)
