"""The config of a saved attached model: a model type of its own, taken for no other.

    model_type     "layermem_attached": transformers without layermem refuses it
    host_type, host_config
                   the config of the host
    layer_memory   how memory is attached: the host's mapping, its heads, router and window
    auto_map       the stub module beside it, which imports layermem or says that it is missing
    vocab_size...  a sentence in place of sizes, so that the host's own class cannot be built of it

``AutoConfig`` returns an ``AttachedConfig``, of which the host's own class cannot be built either.
The model itself has the host's config.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from layermem.models.configuration import STUB_NAME, write_stub

MODEL_TYPE = "layermem_attached"
_PREFIX = "Attached"
# Sizes that some config of transformers has, and no model can be built without.
_SIZES = ("vocab_size", "hidden_size", "text_config")
_NEEDS_LAYERMEM = "layer memory is attached: pip install layermem, import it, use an Auto class"


class AttachedConfig(PreTrainedConfig):
    """The config of a host, and how memory is attached to its model."""

    model_type = MODEL_TYPE
    # Some look here for the Auto class of an architecture that transformers does not name.
    auto_map: ClassVar[Mapping[str, str]] = MappingProxyType({})
    host: Any = None
    """The config of the host."""
    layer_memory: dict[str, Any] | None = None
    """What ``Attachment.describe`` returned."""

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Return the config that a config.json holds; ``kwargs`` change the host's."""
        with_unused = kwargs.pop("return_unused_kwargs", False)
        architectures = config_dict["architectures"] or ()
        fields = {
            **config_dict["host_config"],
            "architectures": [name.removeprefix(_PREFIX) for name in architectures],
            "_commit_hash": config_dict.get("_commit_hash"),
        }
        host_class = CONFIG_MAPPING[config_dict["host_type"]]
        host, unused = host_class.from_dict(fields, return_unused_kwargs=True, **kwargs)
        memory = config_dict["layer_memory"]
        config = cls(host=host, layer_memory=memory, architectures=[*architectures])
        return (config, unused) if with_unused else config

    def get_text_config(self, *args: Any, **kwargs: Any) -> Any:
        """Return the config of the host's language model."""
        return self.host.get_text_config(*args, **kwargs)

    def to_json_string(self, use_diff: bool = True) -> str:
        """Return the content of config.json."""
        fields = json.loads(self.host.to_json_string(use_diff))
        values = {
            "model_type": MODEL_TYPE,
            "architectures": [_PREFIX + name for name in fields.pop("architectures", None) or ()],
            "auto_map": {"AutoConfig": f"{STUB_NAME}.{AttachedConfig.__name__}"},
            # A host's class takes a nested config that has its model_type for its own.
            "host_type": fields.pop("model_type"),
            "host_config": fields,
            "layer_memory": self.layer_memory,
            **dict.fromkeys(_SIZES, _NEEDS_LAYERMEM),
        }
        return json.dumps(values, indent=2, sort_keys=True) + "\n"

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save as transformers does, with the module that ``auto_map`` names."""
        write_stub(Path(save_directory), __name__, [AttachedConfig.__name__])
        super().save_pretrained(save_directory, *args, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Do nothing: otherwise transformers would copy our source files into every checkpoint."""


@contextmanager
def saved_as_attached(config: PreTrainedConfig, memory: dict[str, Any]) -> Iterator[None]:
    """Let the config of a host be saved as that of an attached model, within the block."""

    def save_pretrained(*args: Any, **kwargs: Any) -> None:
        del fields["save_pretrained"]
        AttachedConfig(host=config, layer_memory=memory).save_pretrained(*args, **kwargs)

    fields = vars(config)
    fields["save_pretrained"] = save_pretrained
    try:
        yield
    finally:
        fields.pop("save_pretrained", None)


def read_memory(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return how memory is attached in a folder's whole checkpoint, None if it is no such."""
    file = Path(folder, "config.json")
    values = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return values["layer_memory"] if values.get("model_type") == MODEL_TYPE else None


AutoConfig.register(MODEL_TYPE, AttachedConfig)
