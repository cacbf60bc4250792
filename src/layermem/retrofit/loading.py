"""``load_attached``: a saved attached model, or a base with its adapter, as one attached model.

a whole checkpoint   what ``save_pretrained`` of an attached model wrote
an adapter           routers.json: the base lies elsewhere
"""

import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from layermem.models.checkpoints import location_arguments, without_loading_report
from layermem.models.hub import find_commit, set_commit
from layermem.retrofit.adapter import SETTINGS, load_routers, read_settings
from layermem.retrofit.attached_config import read_memory
from layermem.retrofit.attached_model import check_missing
from layermem.retrofit.attaching import attach_as_saved


def load_attached(
    folder: str | os.PathLike[str],
    base: str | os.PathLike[str] | None = None,
    auto_class: Any = AutoModelForCausalLM,
    **kwargs: Any,
) -> Any:
    """Load an attached model: a whole checkpoint, or an adapter and its base.

    ``folder`` is what ``model.save_pretrained`` of an attached model wrote, or ``save_routers``.
    The base of the latter is ``base``, or else what routers.json names. ``kwargs`` are those of
    ``auto_class.from_pretrained``. Weights that are missing or unexpected are an error, where
    transformers would report them.
    """
    model, missing = load_reporting(folder, base, auto_class, **kwargs)
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
    **kwargs: Any,
) -> tuple[Any, list[str]]:
    """Do the same, and return the names of missing weights of a head in place of an error."""
    path = Path(folder)
    location, revision = find_base(path, base)
    if revision is not None:
        kwargs.setdefault("revision", revision)
    commit = find_commit(location, **location_arguments(kwargs))
    if commit is not None:
        kwargs["revision"] = commit
    with without_loading_report():
        model, info = auto_class.from_pretrained(location, output_loading_info=True, **kwargs)
    missing, unexpected = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
    if location != path:
        set_commit(model.config, commit)
        attach_as_saved(model, read_settings(path))
        load_routers(model, path)
    elif unexpected:
        raise ValueError(
            f"{path} holds {len(unexpected)} weights that its model has no place for, such as "
            f"{unexpected[0]}; merge adapters before saving, or load it by the class it was "
            "saved as"
        )
    check_missing(model, missing, location)
    return model, missing


def is_attached(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds a whole checkpoint of an attached model, or an adapter."""
    return read_memory(folder) is not None or (Path(folder) / SETTINGS).is_file()


def saved_memory(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return how memory is attached in a whole checkpoint, or in the model of an adapter."""
    return read_memory(folder) or read_settings(Path(folder))


def find_base(
    folder: str | os.PathLike[str], base: str | os.PathLike[str] | None = None
) -> tuple[str | Path, str | None]:
    """Return where the base of saved routers lies, which may be their folder, and its revision."""
    path = Path(folder)
    if read_memory(path) is not None:
        if base is not None:
            raise ValueError(
                f"{path} is a whole checkpoint with weights of its own; leave base={str(base)!r} "
                "out, or attach a model of that base and load_routers into it"
            )
        return path, None
    if base is not None:
        return Path(base) if isinstance(base, os.PathLike) else base, None
    named = read_settings(path)["base"]
    name: str = named["name"]
    is_folder = Path(name).is_dir()
    if not name or (not is_folder and name.startswith((".", "/"))):
        raise ValueError(
            f"{path / SETTINGS} names no base that is on this machine, but {name!r}; give it: "
            "load_attached(folder, base=...)"
        )
    return name, None if is_folder else named["revision"]


@torch.no_grad()
def check_causal(model: Any) -> None:
    """Raise if a token changes what is predicted before it, as in an encoder.

    ``AutoModelForCausalLM`` takes encoders such as RoBERTa too, without a weight that is missing.
    """
    was_training = model.training
    ids = torch.arange(8, device=model.device) % model.config.get_text_config().vocab_size
    other = torch.cat([ids[:-1], ids[:1]])
    logits = model.eval()(torch.stack([ids, other])).logits[:, :-1].float()
    model.train(was_training)
    tolerance = max(1e-5, torch.finfo(model.dtype).eps)
    if (logits[0] - logits[1]).abs().max() > tolerance * logits.abs().max():
        raise ValueError(
            f"{type(model).__name__} is no decoder: a token changes what is predicted before it, "
            "so that it cannot predict the next token; name a decoder"
        )
