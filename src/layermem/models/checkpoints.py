"""Where the files of a checkpoint are, and the checks of its config and weights during loading."""

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from safetensors import SafetensorError
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import find_adapter_config_file, is_peft_available

from layermem.models.configuration import PREFIX, check_dtype, computing_fields

# The model types that from_llama takes: the plain decoder is a LLaMA.
LLAMA_MODEL_TYPES = ("llama", "layermem_plain")
# Arguments that locate a checkpoint's files. All its files are read with the same ones, so that the
# config and the weights are of one revision.
_LOCATION_ARGUMENTS = (
    "revision",
    "subfolder",
    "cache_dir",
    "force_download",
    "local_files_only",
    "proxies",
    "token",
)
# Names of a variant's own parameters: those at the two seams.
_VARIANT_PARAMETER = re.compile(r"\.memory\.|_connection\.|(^|\.)stream\.")


def location_arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return those arguments of a loading call that locate the files."""
    return {name: kwargs[name] for name in _LOCATION_ARGUMENTS if kwargs.get(name) is not None}


def join_subfolder(source: Any, location: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a local folder joined with its subfolder, and the other arguments; else the same."""
    if not Path(source).is_dir():
        return source, dict(location)
    others = {name: location[name] for name in location if name != "subfolder"}
    return Path(source, location.get("subfolder", "")), others


def check_path(source: str | os.PathLike[str], location: Mapping[str, Any] | None = None) -> None:
    """Raise if ``source`` is a path without a checkpoint; hub names are left to transformers."""
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(
            f"expected a checkpoint's folder or hub name, got a {type(source).__name__}; for a "
            "model with PEFT adapters pass what merge_and_unload() returns"
        )
    path = Path(source)
    if path.is_dir():
        folder = path / (location or {}).get("subfolder", "")
        if not (folder / "config.json").is_file():
            hint = ", ".join(sorted(p.parent.name for p in folder.glob("*/config.json")))
            more = f'; pass subfolder=, one of "{hint}"' if hint else ""
            raise OSError(f"{folder} is not a checkpoint: it has no config.json{more}")
    elif path.exists():
        raise OSError(f"{path} is a file; expected a folder with a config.json")
    elif not _may_be_hub_name(source):
        raise OSError(f"{path} does not exist; pass a checkpoint's folder or a hub name")


def _may_be_hub_name(source: str | os.PathLike[str]) -> bool:
    path, text = Path(source), str(source)
    is_path = path.is_absolute() or text.startswith((".", "~")) or len(path.parts) > 2
    return not is_path and not path.exists()


def adapter_config(source: str | os.PathLike[str], location: Mapping[str, Any]) -> Any:
    """Return the config of the PEFT adapter in ``source``, None if it holds a model."""
    is_local = Path(source).is_dir()
    # Older versions of transformers ignore the subfolder of a local path here.
    source, location = join_subfolder(source, location)
    if not (Path(source).is_dir() if is_local else _may_be_hub_name(source)):
        return None
    path = Path(source, location.get("subfolder", ""))
    if not is_peft_available():
        if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
            raise ImportError(f"{path} is a PEFT adapter, which needs peft: pip install peft")
        return None
    file = find_adapter_config_file(source, **location)
    if file is None:
        return None
    if (path / "config.json").is_file():
        raise ValueError(
            f"{path} holds a model and an adapter, which cannot be checked apart; move "
            "adapter_config.json and adapter_model.* into a folder of their own and load that"
        )
    adapter = json.loads(Path(file).read_text(encoding="utf-8"))
    if not adapter.get("base_model_name_or_path"):
        raise ValueError(
            f"{path} is a PEFT adapter that does not name its model; load the model and pass it "
            "to peft.PeftModel.from_pretrained(model, adapter)"
        )
    return adapter


def read_saved_config(
    cls: type[PreTrainedModel], source: str | os.PathLike[str], location: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the checkpoint's config as a dictionary; raise if ``cls`` cannot load its model."""
    values: dict[str, Any] = PreTrainedConfig.get_config_dict(source, **location)[0]
    model_type, expected = values.get("model_type"), _config_class(cls).model_type
    if str(model_type).startswith(PREFIX) and model_type != expected:
        raise ValueError(
            f"{source} holds a model of the variant {str(model_type).removeprefix(PREFIX)!r}, and "
            f"{cls.__name__} would compute something else with its weights; load it with "
            "transformers.AutoModelForCausalLM (or another Auto class)"
        )
    if model_type not in (None, "", expected, *LLAMA_MODEL_TYPES):
        raise ValueError(
            f"{source} holds a model of model_type {model_type!r} "
            f"({', '.join(values.get('architectures') or ['no architectures'])}); {cls.__name__} "
            f"loads {expected!r}, and from_llama a LLaMA, no other family: load this one with "
            "transformers.AutoModel"
        )
    return values


def check_fields(
    cls: type[PreTrainedModel],
    source: str | os.PathLike[str],
    saved_values: Mapping[str, Any],
    kwargs: Mapping[str, Any],
) -> None:
    """Raise if the caller's config or fields contradict those of the checkpoint."""
    check_dtype(kwargs.get("dtype", kwargs.get("torch_dtype")))
    config_class, config = _config_class(cls), kwargs.get("config")
    given: dict[str, Any] = {} if isinstance(config, PreTrainedConfig) else dict(kwargs)
    if isinstance(config, (str, os.PathLike)):
        values = PreTrainedConfig.get_config_dict(config, **location_arguments(kwargs))[0]
        config = config_class.from_dict(values)
    names = computing_fields(config_class)
    given = {**{name: getattr(config, name) for name in names if hasattr(config, name)}, **given}
    given = {name: given[name] for name in names if name in given}
    if not given:
        return
    saved = config_class.from_dict(dict(saved_values))
    if isinstance(config, PreTrainedConfig) and "rope_parameters" not in kwargs:
        _check_rope(source, saved, config)
    for name, value in given.items():
        if value != getattr(saved, name):
            raise ValueError(
                f"{source} was saved with {name}={getattr(saved, name)}, got {name}={value}; "
                f"its weights cannot be used with another value: leave {name} out"
            )


def _check_rope(source: str | os.PathLike[str], saved: Any, config: Any) -> None:
    """Raise for plain rope where another was saved, as a config that was made by hand has it.

    Rope of another type is for longer texts, and asked for.
    """
    ropes = [dict(getattr(each, "rope_parameters", None) or {}) for each in (saved, config)]
    then, now = ({"rope_type": "default"} | each for each in ropes)
    other = [key for key in ("rope_theta", "rope_type") if then.get(key) != now.get(key)]
    if now["rope_type"] == "default" and other:
        raise ValueError(
            f"{source} was saved with {other[0]}={then.get(other[0])}, got a config with "
            f"{now.get(other[0])}; its weights cannot be used with another value: take it over, or "
            "give rope_parameters by keyword"
        )


def check_complete(
    model: PreTrainedModel,
    info: Mapping[str, Any],
    source: str,
    model_type: str | None,
    *,
    allow_missing_own: bool = False,
) -> None:
    """Raise if the checkpoint lacks weights of the decoder, or has some that the decoder lacks.

    ``info`` is transformers' loading info and ``model_type`` that of the checkpoint. With
    ``allow_missing_own`` the variant's own parameters may be missing. Heads may always be.
    """
    name, depth = type(model).__name__, model.config.num_hidden_layers
    mismatched = {key[0] for key in info["mismatched_keys"]}
    missing = {key for key in info["missing_keys"] if _in_decoder(model, key)} - mismatched
    unexpected = {key for key in info["unexpected_keys"] if _belongs_to_decoder(model, key)}
    own = {key for key in missing if _VARIANT_PARAMETER.search(key)}
    if lacking := missing - own:
        stray = min(info["unexpected_keys"], default=None)
        others = f"; it has others, such as {stray}: key_mapping={{old: new}} renames weights"
        raise ValueError(
            f"{source} lacks {len(lacking)} weights, such as {min(lacking)}, of a {name} with "
            f"num_hidden_layers={depth}{others if stray else ''}"
        )
    if unexpected:
        raise ValueError(
            f"{source} has {len(unexpected)} weights that a {name} with num_hidden_layers={depth} "
            f"does not have, such as {min(unexpected)}; load it with the class that saved it"
        )
    all_own = {key for key in model.state_dict() if _VARIANT_PARAMETER.search(key)}
    computes_otherwise = _config_class(type(model)).model_type != f"{PREFIX}plain"
    if model_type in LLAMA_MODEL_TYPES and computes_otherwise and not (own or allow_missing_own):
        raise ValueError(
            f"{source} is a LLaMA, and a {name} computes something else with its weights, without "
            f"parameters of its own: {name}.from_llama takes them over as a start"
        )
    if own and allow_missing_own and own != all_own:
        raise ValueError(
            f"{source} has some of the {len(all_own)} parameters that {name} adds to a LLaMA, and "
            f"lacks {len(own)}, such as {min(own)}: choose fields with which all of them are there "
            "(those it was trained with), or detach its memory first"
        )
    if own and not allow_missing_own:
        advice = (
            f"to add them to a LLaMA checkpoint use {name}.from_llama"
            if model_type in LLAMA_MODEL_TYPES
            else f"its model_type is {model_type!r}: it should have them, save or download it again"
        )
        raise ValueError(
            f"{source} has no weights for {len(own)} parameters that {name} adds to a LLaMA, such "
            f"as {min(own)}; {advice}"
        )


@contextmanager
def naming_source(source: Any) -> Iterator[None]:
    """Name the checkpoint whose weights are cut short, damaged, or more than tensors."""
    try:
        yield
    except (SafetensorError, UnpicklingError) as error:
        raise ValueError(
            f"weights of {source} cannot be read ({str(error).splitlines()[0]}); fetch them again, "
            "or, if you trust them, save them as model.safetensors"
        ) from error


@contextmanager
def without_loading_report() -> Iterator[None]:
    """Leave out transformers' report of missing and unexpected weights, which are checked here."""

    def is_no_report(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    reporter = logging.getLogger("transformers.modeling_utils")
    reporter.addFilter(is_no_report)
    try:
        yield
    finally:
        reporter.removeFilter(is_no_report)


def _config_class(cls: type[PreTrainedModel]) -> Any:
    return cls.config_class


def _in_decoder(model: PreTrainedModel, key: str) -> bool:
    return model.base_model is model or key.startswith(f"{model.base_model_prefix}.")


def _belongs_to_decoder(model: PreTrainedModel, key: str) -> bool:
    """Whether a key that our model lacks belongs to the decoder of the checkpoint's model.

    Weights of other heads do not, nor does the buffer of rope in old LLaMA checkpoints.
    """
    if "rotary_emb." in key:
        return False
    modules = {name for name, _ in model.named_modules() if name}
    # Of the module itself, or of a part that something has put into it.
    has_module = any(key.startswith(f"{name}.") for name in modules)
    inside = key.startswith(f"{model.base_model_prefix}.")
    return has_module or inside or "layers." in key or _VARIANT_PARAMETER.search(key) is not None
