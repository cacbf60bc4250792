"""The config of a saved attached model: a model type of its own, taken for no other.

    model_type     "layermem_attached": transformers without layermem refuses it
    host_type, host_config
                   the config of the host
    layer_memory   how memory is attached: the host's mapping, its heads, router and window
    auto_map       the stub module beside it, which imports layermem or says that it is missing
    vocab_size...  a sentence in place of sizes, so that the host's own class cannot be built of it

``AutoConfig`` returns a config of the host's class with ``layer_memory``; it becomes the file again
when it is saved. The model itself keeps the host's config.
"""

import copy
import json
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from layermem.models.configuration import STUB_NAME, DecoderConfig, write_stub

MODEL_TYPE = "layermem_attached"
_PREFIX = "Attached"
# Sizes that some config of transformers has, and no model can be built without.
_SIZES = ("vocab_size", "hidden_size", "text_config")
_NEEDS_LAYERMEM = "layer memory is attached: pip install layermem, import it, use an Auto class"


class AttachedConfig(PreTrainedConfig):
    """Reads the config of a saved attached model as one of its host's class."""

    model_type = MODEL_TYPE

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Return the config of the host's class, with ``layer_memory``."""
        host_class = CONFIG_MAPPING[config_dict["host_type"]]
        fields = {
            **config_dict["host_config"],
            "layer_memory": config_dict["layer_memory"],
            "architectures": config_dict["architectures"],
            "_commit_hash": config_dict.get("_commit_hash"),
        }
        return config_class(host_class).from_dict(fields, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Do nothing: otherwise transformers would copy our source files into every checkpoint."""


class _HostWithMemory:
    """What the config of a host's class has beside its own fields, while memory is attached."""

    host_class: ClassVar[type[PreTrainedConfig]]
    auto_map = DecoderConfig.auto_map
    layer_memory: dict[str, Any]

    def to_json_string(self, use_diff: bool = True) -> str:
        """Return the content of config.json."""
        host = host_config(self)
        fields = json.loads(host.to_json_string(use_diff))
        values = {
            "model_type": MODEL_TYPE,
            "architectures": [_PREFIX + name for name in host.architectures or ()],
            "auto_map": {"AutoConfig": f"{STUB_NAME}.{AttachedConfig.__name__}"},
            # A host's class takes a nested config that has its model_type for its own.
            "host_type": fields.pop("model_type"),
            "host_config": fields,
            "layer_memory": self.layer_memory,
            **dict.fromkeys(_SIZES, _NEEDS_LAYERMEM),
        }
        return json.dumps(values, indent=2, sort_keys=True) + "\n"

    def __reduce__(self) -> Any:
        """Pickle by the host's class: a process that unpickles may not have made this one yet."""
        return _without_fields, (type(self).host_class,), dict(vars(self))

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save as transformers does, with the module that ``auto_map`` names."""
        write_stub(Path(save_directory), __name__, [AttachedConfig.__name__])
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]


def config_class(host_class: type[PreTrainedConfig]) -> Any:
    """Return the class of a host's config with memory; transformers' Auto classes learn of it."""
    name = _PREFIX + host_class.__name__
    known = vars(sys.modules[__name__]).get(name)
    if known is not None and known.host_class is host_class:
        return known
    body = {"__module__": __name__, "host_class": host_class}
    cls = types.new_class(
        name, (_HostWithMemory, host_class), exec_body=lambda space: space.update(body)
    )
    setattr(sys.modules[__name__], name, cls)
    # It imports this module.
    from layermem.retrofit.auto_classes import register

    register(cls)
    return cls


def _without_fields(host_class: type[PreTrainedConfig]) -> Any:
    cls = config_class(host_class)
    return cls.__new__(cls)


def host_config(config: Any) -> Any:
    """Return the config of the host alone."""
    host = copy.deepcopy(config)
    host.__class__ = type(config).host_class
    del host.layer_memory
    host.architectures = [name.removeprefix(_PREFIX) for name in host.architectures or ()]
    return host


@contextmanager
def saved_with_memory(config: PreTrainedConfig, memory: dict[str, Any]) -> Iterator[None]:
    """Let the config of a host be saved as that of an attached model, within the block."""
    host_class: Any = type(config)
    whole: Any = config
    whole.__class__, whole.layer_memory = config_class(host_class), memory
    try:
        yield
    finally:
        del whole.layer_memory
        whole.__class__ = host_class


def read_memory(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return how memory is attached in a folder's whole checkpoint, None if it is no such."""
    try:
        values = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(values, dict) or values.get("model_type") != MODEL_TYPE:
        return None
    memory = values.get("layer_memory")
    if not isinstance(memory, dict):
        raise ValueError(
            f"{Path(folder, 'config.json')} is damaged (it does not say how its memory is "
            "attached); copy it again"
        )
    return memory


AutoConfig.register(MODEL_TYPE, AttachedConfig)
