"""``load_attached``: a saved attached model, or a base with its adapter, as one attached model.

    a whole checkpoint   config, weights with the routers among them, and routers.json
    an adapter           routers.json without a config: the base lies elsewhere

It does not know: how a model is saved, the hub.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from layermem.retrofit.adapter import SETTINGS, WEIGHTS, load_routers, read_settings, read_weights
from layermem.retrofit.attaching import attach
from layermem.retrofit.attachment import attachment_of
from layermem.retrofit.hosts import Host

# How the name of a router's weight ends in a whole checkpoint.
_ROUTER_WEIGHT = ".router.weight"


def load_attached(
    folder: str | os.PathLike[str],
    base: str | os.PathLike[str] | None = None,
    auto_class: Any = AutoModelForCausalLM,
    *,
    host: Host | None = None,
    **kwargs: Any,
) -> Any:
    """Load an attached model: a whole checkpoint, or an adapter and its base.

    ``folder`` is what ``model.save_pretrained`` of an attached model wrote, or ``save_routers``.
    The base of the latter is ``base``, or else what routers.json names. ``kwargs`` are those of
    ``auto_class.from_pretrained``; ``host`` is that of ``attach``. Weights that are missing,
    unexpected or differ between the files are an error.
    """
    model, missing = load_reporting(folder, base, auto_class, host=host, **kwargs)
    if missing:
        raise ValueError(
            f"{base or folder} lacks {len(missing)} of the model's weights, such as {missing[0]}: "
            f"it is damaged, or {auto_class.__name__} is not the class that it was saved as"
        )
    return model


def load_reporting(
    folder: str | os.PathLike[str],
    base: str | os.PathLike[str] | None = None,
    auto_class: Any = AutoModelForCausalLM,
    *,
    host: Host | None = None,
    **kwargs: Any,
) -> tuple[Any, list[str]]:
    """Do the same, and return the names of missing weights of a head in place of an error."""
    path = Path(folder)
    settings = read_settings(path)
    location, revision = find_base(path, base)
    if revision is not None:
        kwargs.setdefault("revision", revision)
    with without_loading_report():
        model, info = auto_class.from_pretrained(location, output_loading_info=True, **kwargs)
    _check_unexpected(info["unexpected_keys"], location, is_whole=location == path)
    attach(model, router=settings["router"], window=settings["window"], host=host)
    missing = sorted(info["missing_keys"])
    _check_missing(model, missing, location)
    try:
        load_routers(model, path)
    except ValueError as error:
        if model.dtype is torch.float16:
            raise ValueError(
                f"{error}; in float16 a base that was saved in another precision is not recognised "
                "either: load it in float32 or bfloat16"
            ) from error
        raise
    if location == path:
        _check_same_routers(path, info["unexpected_keys"])
    return model, missing


def is_attached(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds routers: a whole checkpoint of an attached model, or an
    adapter."""
    return (Path(folder) / SETTINGS).is_file()


def find_base(
    folder: str | os.PathLike[str], base: str | os.PathLike[str] | None = None
) -> tuple[str | Path, str | None]:
    """Return where the base of saved routers lies, which may be their folder, and its revision."""
    path = Path(folder)
    if (path / "config.json").is_file():
        if base is not None:
            raise ValueError(
                f"{path} is a whole checkpoint with weights of its own; leave base={str(base)!r} "
                "out, or attach a model of that base and load_routers into it"
            )
        return path, None
    if base is not None:
        return Path(base) if isinstance(base, os.PathLike) else base, None
    named = read_settings(path).get("base", {})
    name = named.get("name")
    if not name:
        raise ValueError(
            f"{path / SETTINGS} names no base model (it had no name when the routers were saved); "
            "give it: load_attached(folder, base=...)"
        )
    is_path = Path(name).is_absolute() or name.startswith(".")
    if is_path and not Path(name).is_dir():
        raise FileNotFoundError(
            f"the base {name} that {path / SETTINGS} names is not on this machine; give the folder "
            "where it is: load_attached(folder, base=...)"
        )
    return name, None if Path(name).is_dir() else named.get("revision")


def stray_routers(unexpected: Iterable[str]) -> list[str]:
    """Return the routers among weights that a bare model has no place for."""
    return sorted(name for name in unexpected if name.endswith(_ROUTER_WEIGHT))


@contextmanager
def without_loading_report() -> Iterator[None]:
    """Leave out transformers' report of missing and unexpected weights, which are checked here."""

    def is_no_report(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(is_no_report)
    try:
        yield
    finally:
        logger.removeFilter(is_no_report)


def _check_unexpected(names: Iterable[str], location: str | Path, *, is_whole: bool) -> None:
    """Raise if a checkpoint holds what neither its class nor its routers have a place for."""
    names = list(names)
    routers = stray_routers(names)
    if routers and not is_whole:
        raise ValueError(
            f"the base {location} has routers of its own, such as {routers[0]}; give the base "
            "without layer memory"
        )
    # A base may have heads that its class leaves out.
    if is_whole and (others := sorted(set(names) - set(routers))):
        raise ValueError(
            f"{location} holds {len(others)} weights that its model has no place for, such as "
            f"{others[0]}; merge adapters before saving, or load it by the class it was saved as"
        )


def _check_missing(model: nn.Module, names: Iterable[str], location: str | Path) -> None:
    """Raise if weights of the layers are missing: their random values would be another base's."""
    owner = attachment_of(model).owner
    path = next(name for name, module in model.named_modules() if module is owner)
    lost = [name for name in names if name.startswith(f"{path}." if path else "")]
    if lost:
        raise ValueError(
            f"{location} lacks {len(lost)} of the model's weights, such as {lost[0]}: it is "
            "damaged, or of another architecture than its config.json says"
        )


def _check_same_routers(path: Path, names: Iterable[str]) -> None:
    """Raise if the routers in a checkpoint's weights are not those of its adapter files."""
    ours, _ = read_weights(path / WEIGHTS)
    theirs = _read_tensors(path, stray_routers(names))
    by_layer = {_layer_of(name): tensor for name, tensor in theirs.items()}
    for name, weight in ours.items():
        other = by_layer.get(int(name.split(".")[1]))
        if other is None or not torch.equal(other.to(weight.dtype), weight):
            raise ValueError(
                f"the router {name} in {path / WEIGHTS} is not the one in the weights of {path}: "
                "the files are of two savings; save the model again, or copy all files of one"
            )


def _layer_of(name: str) -> int:
    """Return the index in a name like model.layers.3.self_attn.router.weight."""
    return next(int(part) for part in name.split(".") if part.isdigit())


def _read_tensors(path: Path, names: list[str]) -> Mapping[str, Tensor]:
    """Return some tensors of a checkpoint, which may be in several safetensors files."""
    tensors: dict[str, Tensor] = {}
    for file in sorted(path.glob("model*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            present = set(weights.keys())
            tensors.update({name: weights.get_tensor(name) for name in names if name in present})
    return tensors
