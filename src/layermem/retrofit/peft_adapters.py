"""Adapters of PEFT that belong to an attached model: saved as such, and loaded onto nothing else.

PEFT saves what was trained, routers among it where they are ``modules_to_save``, and loads it into
any model that has the names: into the bare base without its routers, and without a word. So the
config of an adapter that was made on an attached model is saved with a type of its own:

    peft_type      "LAYERMEM_LORA" in place of "LORA": PEFT without layermem does not know it
    layer_memory   how memory is attached, and whether all routers are part of the adapter; if not,
                   hashes of those that it was made with

Where layermem is imported, such an adapter attaches memory to its base if its routers are part of
it, and is refused on a bare base otherwise. Importing this module wraps four methods of PEFT, whose
own registration (``register_peft_method``) takes no type beyond its enum. ``layermem.retrofit``
imports it where PEFT is installed.
"""

import functools
import json
import logging
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_TUNER_MAPPING
from peft.tuners.tuners_utils import BaseTuner
from peft.utils import CONFIG_NAME, ModulesToSaveWrapper
from torch import nn

from layermem.retrofit.adapter import hash_routers
from layermem.retrofit.attaching import attach_as_saved
from layermem.retrofit.attachment import (
    MEMORY,
    Attachment,
    attachment_of,
    check_same_memory,
    has_memory,
)

logger = logging.getLogger(__name__)

_PREFIX = "LAYERMEM_"
_MEMORY, _COMPLETE, _ROUTERS = "layer_memory", "holds_routers", "routers"


class _ConfigsOfAttached:
    """Stands for the config class of one type of adapter, where PEFT looks it up."""

    def __init__(self, peft_type: str) -> None:
        self.peft_type = peft_type

    def __call__(self, **fields: Any) -> Any:
        """Return a config of PEFT's own class, which knows the memory."""
        memory = fields.pop(_MEMORY)
        config = PeftConfig.from_peft_type(**{**fields, "peft_type": self.peft_type})
        setattr(config, _MEMORY, memory)
        return config

    def from_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        return PeftConfig.from_pretrained(*args, **kwargs)


def _match_prompt(function: Any) -> Any:
    """Wrap the method that adds an adapter, for prompts, which are put into no module."""

    @functools.wraps(function)
    def add_adapter(
        self: Any, adapter_name: str, peft_config: Any, *args: Any, **kwargs: Any
    ) -> Any:
        memory = getattr(peft_config, _MEMORY, None)
        if memory is not None:
            _match(self, memory)
        return function(self, adapter_name, peft_config, *args, **kwargs)

    return add_adapter


def _attach_first(function: Any) -> Any:
    """Wrap the method that puts an adapter into a model."""

    @functools.wraps(function)
    def inject_adapter(
        self: Any, model: nn.Module, adapter_name: str, *args: Any, **kwargs: Any
    ) -> Any:
        config = self.peft_config[adapter_name]
        memory = getattr(config, _MEMORY, None)
        if memory is not None:
            _match(model, memory)
        trained = not config.inference_mode and _train_routers(model)
        result = function(self, model, adapter_name, *args, **kwargs)
        if memory is not None and memory[_COMPLETE]:
            _expect_weights(model, adapter_name)
        if trained and not _train_routers(model):
            logger.warning(
                "PEFT has frozen the routers, which stay as they are: "
                'modules_to_save=["memory"] in the config of the adapter trains them'
            )
        return result

    return inject_adapter


def _train_routers(model: nn.Module) -> bool:
    """Return whether any router of an attached model trains."""
    attentions = attachment_of(model).attentions[1:] if has_memory(model) else ()
    memories = (attention._modules.get(MEMORY) for attention in attentions)
    return any(p.requires_grad for memory in memories if memory for p in memory.parameters())


def _match_again(function: Any) -> Any:
    """Wrap the method that loads an adapter, for one whose name the model has already, as where
    training goes on from a checkpoint: nothing is put into the model then."""

    @functools.wraps(function)
    def load_adapter(self: Any, model_id: Any, adapter_name: str, *args: Any, **kwargs: Any) -> Any:
        file = Path(model_id, kwargs.get("subfolder") or "", CONFIG_NAME)
        if adapter_name in self.peft_config and file.is_file():
            memory = json.loads(file.read_text(encoding="utf-8")).get(_MEMORY)
            if memory is not None:
                _match(self, memory)
        return function(self, model_id, adapter_name, *args, **kwargs)

    return load_adapter


@torch.no_grad()
def _expect_weights(model: nn.Module, adapter_name: str) -> None:
    """Let routers of an adapter refuse to run until its weights have been loaded.

    transformers 5.16 leaves ``modules_to_save`` of an adapter out, and only reports them.
    """
    for attention in attachment_of(model).attentions[1:]:
        wrapper: Any = attention.get_submodule(MEMORY)
        router = wrapper.modules_to_save[adapter_name]
        for weight in router.parameters():
            weight.fill_(float("nan"))
        router.register_forward_pre_hook(_RefuseUnloaded())


class _RefuseUnloaded:
    """A hook before a router's first forward."""

    def __call__(self, router: nn.Module, args: Any) -> None:
        if any(bool(weight.isnan().any()) for weight in router.parameters()):
            raise RuntimeError(
                "the routers of an adapter were not loaded with it; load it by "
                "peft.PeftModel.from_pretrained, or start a new one from a config of its own"
            )
        for key, hook in list(router._forward_pre_hooks.items()):
            if isinstance(hook, _RefuseUnloaded):
                del router._forward_pre_hooks[key]


def _match(model: nn.Module, memory: dict[str, Any]) -> None:
    """Attach the memory of an adapter to its base, or compare it with what is attached."""
    if has_memory(model):
        check_same_memory(attachment_of(model).describe(), memory)
        _check_routers(attachment_of(model), memory.get(_ROUTERS))
    elif memory[_COMPLETE]:
        attach_as_saved(model, {k: v for k, v in memory.items() if k != _COMPLETE})
    else:
        raise ValueError(
            f"this adapter was made on {memory['architecture']} with layer memory, whose routers "
            "are no part of it: attach memory to the base and load_routers before the adapter"
        )


def _check_routers(attachment: Attachment, saved: dict[str, str] | None) -> None:
    """Raise unless a model has the routers that an adapter without any was made with."""
    if saved is None:
        return
    # Loaded in one of these precisions, they have the same rounded weights.
    hashes = hash_routers(_routers_under(attachment, None))
    if not any(saved.get(name) == value for name, value in hashes.items()):
        raise ValueError(
            "this adapter was made on a model with other routers, which are no part of it: "
            "load_routers before the adapter"
        )


def _routers_under(attachment: Attachment, adapter_name: str | None) -> dict[int, Any]:
    """Return the routers that an adapter runs on: its own copies, else those below all adapters."""
    routers = {}
    for layer, router in attachment.routers.items():
        wrapper = attachment.attentions[layer]._modules[MEMORY]
        if isinstance(wrapper, ModulesToSaveWrapper):
            own = dict(wrapper.modules_to_save.items())
            router = own.get(adapter_name or "", wrapper.original_module)
        routers[layer] = router
    return routers


def _mark_saved(function: Any) -> Any:
    """Wrap the method that saves adapters."""

    @functools.wraps(function)
    def save_pretrained(
        self: Any,
        save_directory: Any,
        safe_serialization: bool = True,
        selected_adapters: list[str] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        chosen = safe_serialization, selected_adapters
        result = function(self, save_directory, *chosen, *args, **kwargs)
        if has_memory(self):
            for name in selected_adapters or self.peft_config:
                folder = Path(save_directory, "" if name == "default" else name)
                mark(self, folder, name)
        return result

    return save_pretrained


def mark(model: nn.Module, folder: Path, adapter_name: str) -> None:
    """Let a saved adapter say that it belongs to an attached model."""
    file = folder / CONFIG_NAME
    if not file.is_file():
        # Another process writes it, or it was not chosen.
        return
    fields = json.loads(file.read_text(encoding="utf-8"))
    fields["peft_type"] = _PREFIX + fields["peft_type"].removeprefix(_PREFIX)
    attachment = attachment_of(model)
    routers = [attention._modules.get(MEMORY) for attention in attachment.attentions[1:]]
    complete = all(
        isinstance(router, ModulesToSaveWrapper) and adapter_name in router.modules_to_save
        for router in routers
    )
    fields[_MEMORY] = {**attachment.describe(), _COMPLETE: complete}
    if not complete:
        fields[_MEMORY][_ROUTERS] = hash_routers(_routers_under(attachment, adapter_name))
        if any(p.requires_grad for router in routers if router for p in router.parameters()):
            logger.warning(
                "routers train and are no part of the adapter in %s, from which training does not "
                "go on: save_routers saves them too, and "
                'modules_to_save=["memory"] makes them part of an adapter',
                folder,
            )
    file.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")


for _type in list(PEFT_TYPE_TO_CONFIG_MAPPING):
    _configs: Any = _ConfigsOfAttached(str(_type.value))
    _name: Any = _PREFIX + str(_type.value)
    PEFT_TYPE_TO_CONFIG_MAPPING[_name] = _configs
_tuners: set[Any] = {BaseTuner, *PEFT_TYPE_TO_TUNER_MAPPING.values()}
for _tuner in _tuners:
    if "inject_adapter" in vars(_tuner):
        _tuner.inject_adapter = _attach_first(_tuner.inject_adapter)
PeftModel.load_adapter = _match_again(PeftModel.load_adapter)  # type: ignore[method-assign]
PeftModel.add_adapter = _match_prompt(PeftModel.add_adapter)  # type: ignore[method-assign]
PeftModel.save_pretrained = _mark_saved(PeftModel.save_pretrained)  # type: ignore[method-assign]
