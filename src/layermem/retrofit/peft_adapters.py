"""Adapters of PEFT that were made on an attached model: their saved configs say so.

    peft_type      "LAYERMEM_LORA" in place of "LORA": PEFT without layermem does not know it
    layer_memory   how memory is attached

PEFT loads an adapter into any model that has its names: into the bare base too, without a word.
Where layermem is imported, an adapter that holds the routers (``modules_to_save=["memory"]``)
attaches memory to its base first, and any other is refused on a bare base. PEFT's own registration
takes no type beyond its enum. So importing this module, as ``layermem.retrofit`` does where PEFT is
installed, adds to PEFT's table of configs and wraps the method that puts adapters into a model.
"""

import functools
from dataclasses import dataclass
from typing import Any

from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
from peft.tuners.tuners_utils import BaseTuner
from torch import nn

from layermem.retrofit.attaching import attach_as_saved
from layermem.retrofit.attachment import MEMORY, attachment_of, check_same_memory, has_memory

_PREFIX = "LAYERMEM_"
# For type checkers: methods are called of PEFT's class, which comes after this one.
_Config: Any = object
_configs: dict[Any, Any] = PEFT_TYPE_TO_CONFIG_MAPPING


@dataclass
class _OfAttached(_Config):
    """What the config of an adapter of an attached model has beside PEFT's own."""

    layer_memory: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        fields: dict[str, Any] = super().to_dict()
        if self.layer_memory is None:
            del fields["layer_memory"]
            return fields
        return {**fields, "peft_type": f"{_PREFIX}{fields['peft_type'].value}"}


def mark_adapters(model: nn.Module) -> None:
    """Let the configs of a model's adapters say how memory is attached, if it is."""
    memory = attachment_of(model).describe() if has_memory(model) else None
    configs = [each for m in model.modules() for each in vars(m).get("peft_config", {}).values()]
    for config in configs:
        if memory is not None and not isinstance(config, _OfAttached):
            config.__class__ = _configs[_PREFIX + config.peft_type.value]
        if isinstance(config, _OfAttached):
            config.layer_memory = memory


def _match_memory(model: nn.Module, config: Any) -> None:
    """Attach the memory of an adapter to its base, or compare it with what is attached."""
    memory = config.layer_memory
    if has_memory(model):
        check_same_memory(attachment_of(model).describe(), memory)
    elif any(name.endswith(MEMORY) for name in getattr(config, "modules_to_save", None) or ()):
        attach_as_saved(model, memory)
    else:
        raise ValueError(
            f"this adapter was made on {memory['architecture']} with layer memory, whose routers "
            "are no part of it: attach memory to the base and load_routers before the adapter"
        )


@functools.wraps(BaseTuner.inject_adapter)
def _inject_adapter(
    self: Any, model: nn.Module, adapter_name: str, *args: Any, **kwargs: Any
) -> None:
    config = self.peft_config[adapter_name]
    if getattr(config, "layer_memory", None) is not None:
        _match_memory(model, config)
    _inject_adapter.__wrapped__(self, model, adapter_name, *args, **kwargs)
    mark_adapters(self)


for _type, _class in list(_configs.items()):
    # Of the same name, by which pickle finds it here.
    _own: Any = dataclass(type(_class.__name__, (_OfAttached, _class), {"__module__": __name__}))
    globals()[_own.__name__] = _configs[_PREFIX + _type.value] = _own
_tuner: Any = BaseTuner
_tuner.inject_adapter = _inject_adapter
