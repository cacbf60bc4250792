"""``save_pretrained`` of an attached model: its config is that of a model with memory.

A model that holds one with memory (``attach(model.encoder)``) is saved with it too.
"""

import functools
import os
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from layermem.models.card import TAGS, origin_of, write_card
from layermem.retrofit.attached_config import saved_with_memory
from layermem.retrofit.attachment import attachment_of, has_memory, name_memory, owner_path

_METHOD = "save_pretrained"


class SavePretrained:
    """Takes the place of a model's method."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def __call__(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        """Save the model as its class does; its routers are among its weights."""
        if getattr(self.model, "_hf_peft_config_loaded", False):
            return self._save_adapter(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", not args or args[0]):
            self._write_card(save_directory)
        # A model may have two stacks of one class.
        memory = {**attachment_of(self.model).describe(), "path": owner_path(self.model)}
        with saved_with_memory(self.model.config, memory):
            return type(self.model).save_pretrained(self.model, save_directory, *args, **kwargs)

    def _write_card(self, folder: str | os.PathLike[str]) -> None:
        name, memory = type(self.model).__name__, attachment_of(self.model).describe()
        # It imports this module.
        from layermem.retrofit.auto_classes import auto_class_of

        auto = auto_class_of(self.model)
        write_card(
            folder,
            self.model,
            title=f"{Path(origin_of(self.model)).name or name} with layer memory",
            description=f"A `{name}` with attached layer memory ({name_memory(memory)})",
            tags=[*TAGS, "layer-memory"],
            code="from layermem.retrofit import load_attached\n"
            f"from transformers import {auto}\n\n"
            f'model = load_attached("this-folder", auto_class={auto})',
        )

    def _save_adapter(self, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Save the adapter that transformers holds for the model, which is all that it saves."""
        # Only here: PEFT need not be installed.
        from layermem.retrofit.peft_adapters import mark

        if kwargs.get("push_to_hub"):
            raise ValueError("an adapter of an attached model is saved first, then uploaded")
        result = type(self.model).save_pretrained(self.model, save_directory, *args, **kwargs)
        (name,) = self.model.active_adapters()
        mark(self.model, Path(save_directory), name)
        return result


def save_with_memory(model: nn.Module, owner: nn.Module) -> None:
    """Let every model of transformers in ``model`` that holds ``owner`` be saved with memory."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and any(m is owner for m in module.modules()):
            setattr(module, _METHOD, SavePretrained(module))


def save_as_before(model: nn.Module) -> None:
    """Undo ``save_with_memory``."""
    for module in model.modules():
        if isinstance(vars(module).get(_METHOD), SavePretrained):
            delattr(module, _METHOD)


def save_all_with_memory() -> None:
    """Let models of transformers be saved with the memory of a part that it was attached to."""
    save = PreTrainedModel.save_pretrained

    @functools.wraps(save)
    def save_pretrained(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _METHOD in vars(self) or not has_memory(self):
            return save(self, *args, **kwargs)
        setattr(self, _METHOD, SavePretrained(self))
        try:
            return self.save_pretrained(*args, **kwargs)
        finally:
            delattr(self, _METHOD)

    PreTrainedModel.save_pretrained = save_pretrained


save_all_with_memory()
