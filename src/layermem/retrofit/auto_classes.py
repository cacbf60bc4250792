"""Transformers' Auto classes open saved attached models, with memory attached before weights.

Routers are then parameters like any others while a checkpoint is loaded: in its precision, on its
devices, of its shards. What is returned is of the host's class.
"""

import functools
from collections.abc import Iterator
from typing import Any, ClassVar

from torch import nn
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.auto_factory import _BaseAutoModelClass, _get_model_class
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING

from layermem.retrofit.attached_config import host_config
from layermem.retrofit.attaching import attach_as_saved
from layermem.retrofit.attachment import MEMORY, owner_path

# Keywords by which transformers shards a model while it is loaded.
_SHARDED = ("tp_plan", "tp_size", "device_mesh", "distributed_config")


def refuse_configs_with_memory() -> None:
    """Let no model be built of a config with memory: a host's own class would leave it out.

    The Auto classes build of the host's config and attach memory then.
    """
    build = PreTrainedModel.__init__

    @functools.wraps(build)
    def checked(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        if getattr(config, "layer_memory", None) is not None and hasattr(config, "host_class"):
            raise ValueError(
                f"this config has attached layer memory, which {type(self).__name__} would leave "
                "out: build or load the model by an Auto class"
            )
        build(self, config, *args, **kwargs)

    PreTrainedModel.__init__ = checked


class AttachedModels:
    """Stands for the models of one Auto class in its table."""

    auto_class: ClassVar[Any]

    @classmethod
    def from_pretrained(
        cls, name: Any, *args: Any, config: Any, output_loading_info: bool = False, **kwargs: Any
    ) -> Any:
        """Load a saved attached model; who asks for ``output_loading_info`` sees what it lacks."""
        if sharded := [key for key in _SHARDED if kwargs.get(key) is not None]:
            raise ValueError(
                f"{sharded[0]}= cannot be given for a model with layer memory: its routers read "
                "all heads; load it whole"
            )
        model_class, host = cls._host_of(config)
        model, info = _with_memory(model_class, config.layer_memory).from_pretrained(
            name, *args, config=host, output_loading_info=True, **kwargs
        )
        model.__class__ = model_class
        if output_loading_info:
            return model, info
        check_missing(model, info["missing_keys"], name)
        return model

    @classmethod
    def _from_config(cls, config: Any, **kwargs: Any) -> Any:
        """Build an attached model with new weights."""
        model_class, host = cls._host_of(config)
        model = _with_memory(model_class, config.layer_memory)._from_config(host, **kwargs)
        model.__class__ = model_class
        return model

    @classmethod
    def _host_of(cls, config: Any) -> tuple[Any, Any]:
        """Return the class of the host that the Auto class has, and its config."""
        host = host_config(config)
        model_class: Any = _get_model_class(host, cls.auto_class._model_mapping)
        # Of a model of text and images, some Auto classes load the text model alone.
        if model_class.config_class is host.sub_configs.get("text_config"):
            host = host.get_text_config()
        return model_class, host


def auto_class_of(model: PreTrainedModel) -> str:
    """Return the name of the Auto class that loads a model as what it is."""
    names = {
        auto.__name__
        for auto in _auto_classes_of(type(model.config))
        if auto.__name__ != "AutoModelForPreTraining"
        and _get_model_class(model.config, auto._model_mapping) is type(model)
    }
    usual = "AutoModelForCausalLM"
    return min(names, key=lambda name: (name != usual, name), default=usual)


def _auto_classes_of(host_class: type[Any]) -> Iterator[Any]:
    for auto in vars(modeling_auto).values():
        mapping = getattr(auto, "_model_mapping", None)
        is_auto = isinstance(auto, type) and issubclass(auto, _BaseAutoModelClass)
        if is_auto and mapping is not None and host_class in mapping:
            yield auto


def register(config_class: Any) -> None:
    """Let each Auto class that knows a host know its config with memory."""
    for auto in _auto_classes_of(config_class.host_class):
        body = {"auto_class": auto, "__module__": __name__}
        models = type(f"Attached{auto.__name__.removeprefix('Auto')}", (AttachedModels,), body)
        auto._model_mapping.register(config_class, models)
    if config_class.host_class in TOKENIZER_MAPPING:
        TOKENIZER_MAPPING.register(config_class, TOKENIZER_MAPPING[config_class.host_class])


def check_missing(model: nn.Module, names: Any, location: Any) -> None:
    """Raise if weights of layers or routers are missing: their random values would be another's."""
    path = owner_path(model)
    prefix = f"{path}." if path else ""
    # Encoders have their embeddings outside of the module that runs the layers.
    parts = (f".{MEMORY}.", ".embeddings.")
    lost = sorted(n for n in names if n.startswith(prefix) or any(p in f".{n}" for p in parts))
    if lost:
        raise ValueError(
            f"{location} lacks {len(lost)} of the model's weights, such as {lost[0]}: it is "
            "damaged, or of another architecture than its config.json says"
        )


def _with_memory(model_class: type[PreTrainedModel], memory: dict[str, Any]) -> Any:
    """Return a subclass whose models have memory attached when they are built."""

    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        model_class.__init__(self, *args, **kwargs)
        attach_as_saved(self, memory)

    body = {"__init__": build, "__module__": model_class.__module__}
    return type(model_class.__name__, (model_class,), body)


refuse_configs_with_memory()
