"""``AttachedModel``: the class of a model with attached memory, which saves it; and its loading.

``attach`` gives each model of transformers that runs the layers, or holds the one that does, a
subclass of its own class, of the same name. The Auto classes open what was saved: they build a
model of this subclass, which attaches memory before weights are read. Routers are then parameters
like any others: in the precision of the checkpoint, on its devices, of its shards.
"""

import copy
from collections.abc import Iterable
from functools import cache
from typing import Any, ClassVar

from torch import nn
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.auto_factory import _BaseAutoModelClass, _get_model_class

from layermem.retrofit.attached_config import AttachedConfig, saved_as_attached
from layermem.retrofit.attachment import MEMORY, attachment_of, has_memory, owner_path

# Where the config of a host has its memory while a model is built of it.
_MEMORY = "layer_memory"
# For type checkers: methods are called of the host's class, which comes after this one.
_Host: Any = object


class AttachedModel(_Host):
    """What the class of an attached model has beside its host's."""

    host_class: ClassVar[type[PreTrainedModel]]

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        memory = vars(config).pop(_MEMORY, None)
        super().__init__(config, *args, **kwargs)
        if memory is not None:
            # It imports this module.
            from layermem.retrofit.attaching import attach_as_saved

            attach_as_saved(self, memory)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle by the host's class: this one is an attribute of no module."""
        return _new, (self.host_class,), self.__getstate__()

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Save the model as its host's class does; its routers are among its weights."""
        if not has_memory(self):
            return super().save_pretrained(save_directory, *args, **kwargs)
        # A model may have two stacks of one class.
        memory = {**attachment_of(self).describe(), "path": owner_path(self)}
        with saved_as_attached(self.config, memory):
            return super().save_pretrained(save_directory, *args, **kwargs)


@cache
def attached_class(host_class: Any) -> Any:
    """Return the class of the attached models of a host's class."""
    body = {"host_class": host_class, "__module__": host_class.__module__}
    return type(host_class.__name__, (AttachedModel, host_class), body)


def _new(host_class: Any) -> Any:
    cls = attached_class(host_class)
    return cls.__new__(cls)


def swap_classes(model: nn.Module, owner: nn.Module) -> None:
    """Let every model of transformers in ``model`` that holds ``owner`` be saved with memory."""
    for module in model.modules():
        host_class: Any = type(module)
        is_host = issubclass(host_class, PreTrainedModel)
        if is_host and not issubclass(host_class, AttachedModel) and owner in set(module.modules()):
            module.__class__ = attached_class(host_class)


def swap_back(model: nn.Module) -> None:
    """Undo ``swap_classes``; a class that was derived since (FSDP2) stays, without memory."""
    for module in model.modules():
        host_class: Any = getattr(module, "host_class", None)
        if isinstance(module, AttachedModel) and type(module) is attached_class(host_class):
            module.__class__ = host_class


class _SavedModels:
    """Stands for attached models in the table of one Auto class."""

    config_class = AttachedConfig
    auto_class: ClassVar[Any]

    @classmethod
    def from_pretrained(
        cls, name: Any, *args: Any, config: Any, output_loading_info: bool = False, **kwargs: Any
    ) -> Any:
        """Load a saved attached model; who asks for ``output_loading_info`` sees what it lacks."""
        model_class, host = cls._host_of(config)
        model, info = model_class.from_pretrained(
            name, *args, config=host, output_loading_info=True, **kwargs
        )
        if output_loading_info:
            return model, info
        refuse_missing(model, info["missing_keys"], name)
        return model

    @classmethod
    def _from_config(cls, config: Any, **kwargs: Any) -> Any:
        """Build an attached model with new weights."""
        model_class, host = cls._host_of(config)
        return model_class._from_config(host, **kwargs)

    @classmethod
    def _host_of(cls, config: Any) -> tuple[Any, Any]:
        """Return the class of the attached models, and the config of the host with its memory."""
        host, table = copy.deepcopy(config.host), cls.auto_class._model_mapping
        if type(host) not in table:
            raise ValueError(f"{cls.auto_class.__name__} opens no model of type {host.model_type}")
        model_class: Any = _get_model_class(host, table)
        # Of a model of text and images, some Auto classes load the text model alone.
        if model_class.config_class is host.sub_configs.get("text_config"):
            host = host.get_text_config()
        setattr(host, _MEMORY, config.layer_memory)
        return attached_class(model_class), host


def refuse_missing(
    model: nn.Module, names: Iterable[str], location: Any, *, in_layers: bool = True
) -> None:
    """Raise if weights of layers or routers are missing: their random values would be another's.

    Without ``in_layers``, raise if any weights are missing.
    """
    path = owner_path(model)
    # Encoders have their embeddings outside of the module that runs the layers.
    parts = (f".{path}." if path and in_layers else ".", f".{MEMORY}.", ".embeddings.")
    if lost := sorted(name for name in names if any(part in f".{name}" for part in parts)):
        raise ValueError(
            f"{location} lacks {len(lost)} of the model's weights, such as {lost[0]}: it is "
            f"damaged, or was not saved as a {type(model).__name__}"
        )


_auto: Any
for _auto in vars(modeling_auto).values():
    _is_auto_class = isinstance(_auto, type) and issubclass(_auto, _BaseAutoModelClass)
    if _is_auto_class and _auto._model_mapping is not None:
        _models = type("AttachedModels", (_SavedModels,), {"auto_class": _auto})
        _auto.register(AttachedConfig, _models)
