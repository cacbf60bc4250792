"""``load_attached``: a saved attached model, or a base with its adapter, as one attached model.

a whole checkpoint   what ``save_pretrained`` of an attached model wrote
an adapter           routers.json: the base lies elsewhere
"""

import os
from pathlib import Path
from typing import Any

from huggingface_hub import file_exists
from transformers import AutoModelForCausalLM
from transformers.utils import CONFIG_NAME

from layermem.models.hub import find_commit, set_commit
from layermem.models.pretrained import location_arguments, without_loading_report
from layermem.retrofit.adapter import BASE, SETTINGS, load_routers, read_settings
from layermem.retrofit.attached_config import read_memory
from layermem.retrofit.attached_model import refuse_missing
from layermem.retrofit.attaching import attach_as_saved


def load_attached(
    folder: str | os.PathLike[str],
    base: str | os.PathLike[str] | None = None,
    auto_class: Any = AutoModelForCausalLM,
    *,
    output_loading_info: bool = False,
    **kwargs: Any,
) -> Any:
    """Load an attached model: a whole checkpoint, or an adapter and its base.

    ``folder`` is what ``model.save_pretrained`` of an attached model wrote, or ``save_routers``.
    The base of the latter is ``base``, or else what routers.json names. ``kwargs`` are those of
    ``auto_class.from_pretrained``. Weights that are missing or unexpected are an error, where
    transformers would report them. With ``output_loading_info`` only those of layers are, and
    (model, what transformers reports) is returned.
    """
    path = Path(folder)
    location, revision = (base, None) if base is not None else find_base(path, **kwargs)
    if revision is not None:
        kwargs.setdefault("revision", revision)
    commit = find_commit(location, **location_arguments(kwargs))
    if commit is not None:
        kwargs["revision"] = commit
    with without_loading_report():
        model, info = auto_class.from_pretrained(location, output_loading_info=True, **kwargs)
    if location != path:
        set_commit(model.config, commit)
        attach_as_saved(model, read_settings(path))
        load_routers(model, path)
    elif unexpected := sorted(info["unexpected_keys"]):
        raise ValueError(
            f"{path} holds {len(unexpected)} weights that its model has no place for, such as "
            f"{unexpected[0]}; merge adapters before saving, or load it by the class it was "
            "saved as"
        )
    refuse_missing(model, info["missing_keys"], location, in_layers=output_loading_info)
    return (model, info) if output_loading_info else model


def is_attached(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds a whole checkpoint of an attached model, or an adapter."""
    return read_memory(folder) is not None or (Path(folder) / SETTINGS).is_file()


def saved_memory(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return how memory is attached in a whole checkpoint, or in the model of an adapter."""
    return read_memory(folder) or read_settings(Path(folder))


def find_base(folder: str | os.PathLike[str], **kwargs: Any) -> tuple[str | Path, str | None]:
    """Return where the base of saved routers lies, which may be their folder, and its revision.

    The hub is asked once, without retries, for a name that is not in the cache.
    """
    path = Path(folder)
    if read_memory(path) is not None:
        return path, None
    saved = read_settings(path)
    name: str = saved[BASE]
    if name and Path(name).is_dir():
        return name, None
    revision = saved["base"]["revision"]
    location = {"revision": revision, **location_arguments(kwargs)}
    asked, reason = {each: location.get(each) for each in ("revision", "token")}, "not there"
    try:
        cached = find_commit(name, **{**location, "local_files_only": True})
        config = os.path.join(location.get("subfolder") or "", CONFIG_NAME)
        # Of a path this raises without asking.
        if cached or (not location.get("local_files_only") and file_exists(name, config, **asked)):
            return name, revision
    except Exception as error:
        reason = str(error)
    raise ValueError(
        f"{path / SETTINGS} names a base that is not found here, {name!r} ({reason}); give it: "
        "load_attached(folder, base=...)"
    )
