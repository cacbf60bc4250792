"""``save_routers`` and ``load_routers``: the routers of an attached model as a small adapter.

    routers.safetensors    the weights: "layers.1.weight", "layers.2.weight", ...
    routers.json           how memory is attached; the base model that they belong to; a digest of
                           the weights, so that the two files are of one saving; and, where a run
                           of ours trained them, on what (``lineage``)

A base model is recognised by its *fingerprints*, hashes of samples of every weight of the module
that runs the layers and of the embeddings: of the samples rounded to bfloat16, and to float16. A
model that is loaded in either precision has the same rounded weights, so that one equal hash is
enough. Name and revision are for people: a name says nothing of weights that were trained since.
Saving after ``trainable(model, "all")``, or after LoRA was merged, therefore gives an adapter of
the trained base, which is saved with ``model.save_pretrained``. LoRA that is not merged is no part
of the base.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from transformers import PreTrainedModel

from layermem.models.configuration import LINEAGE
from layermem.models.hub import commit_of
from layermem.models.memories import unadapted_memories
from layermem.retrofit.attachment import MEMORY, attachment_of, check_same_memory
from layermem_base.files import write_atomically

WEIGHTS, SETTINGS = "routers.safetensors", "routers.json"
BASE = "base_model_name_or_path"
# Numbers of a weight that are hashed, at most, so that large models stay quick.
_SAMPLES = 2**14
# Where PEFT keeps a module that it wraps: below a LoRA, and beside a copy that trains.
_WRAPPED = ("base_layer", "original_module")
_FORMAT = 4
_PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def save_routers(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write the routers of an attached model to a folder.

    It can be uploaded as it is (``huggingface_hub.upload_folder``). The base is recognised by its
    weights, wherever it lies; settings of its config, as the type of rope, are not compared. LoRA
    that is not merged is no part of it: PEFT saves that.
    """
    path = Path(folder)
    if (path / "config.json").exists():
        raise ValueError(
            f"{path} holds a model, which would still be loaded without the routers; give a folder "
            "of their own, or save the whole model with save_pretrained"
        )
    weights = {name: w.detach().cpu().contiguous() for name, w in _weights(model).items()}
    content = save(weights, metadata={"format": "pt"})
    config = getattr(attachment_of(model).owner, "config", None)
    name = getattr(config, "_name_or_path", "") or ""
    settings = {
        "format": _FORMAT,
        # As in PEFT's files. With ./ before it, a folder is never looked for on the hub.
        BASE: os.path.join(os.curdir, name) if name and Path(name).is_dir() else name,
        "base": {"revision": commit_of(config), "fingerprints": _fingerprints(model)},
        **attachment_of(model).describe(),
        "digest": hashlib.sha256(content).hexdigest(),
    }
    if lineage := getattr(config, LINEAGE, None):
        settings[LINEAGE] = lineage
    write_atomically(path / WEIGHTS, content)
    write_atomically(path / SETTINGS, json.dumps(settings, indent=2) + "\n")


def load_routers(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Load saved routers into a model that is attached as theirs was, all or none."""
    path = Path(folder)
    saved, own = read_settings(path), attachment_of(model).describe()
    check_same_memory(own, saved)
    is_same = not saved["base"]["fingerprints"].items().isdisjoint(_fingerprints(model).items())
    if not is_same or saved["architecture"] != own["architecture"]:
        raise ValueError(
            f"the routers in {path} are for {saved['architecture']} {saved[BASE]} "
            f"(revision {saved['base']['revision']}), whose weights are others than those of this "
            f"{own['architecture']}; load that base, in float32 if routers and base were rounded "
            "to two kinds of 16 bits. Resized embeddings and weights of 4 or 8 bits are saved with "
            "the routers, by save_pretrained"
        )
    content = (path / WEIGHTS).read_bytes()
    if hashlib.sha256(content).hexdigest() != saved["digest"]:
        raise ValueError(
            f"{path / WEIGHTS} is not the file that {SETTINGS} beside it was written with, by its "
            "digest; copy both again, or save the routers again"
        )
    loaded = load(content)
    with torch.no_grad():
        for name, weight in _weights(model).items():
            weight.copy_(loaded[name])
    if lineage := saved.get(LINEAGE):
        # What trained the routers is not in the config of a bare base.
        setattr(attachment_of(model).owner.config, LINEAGE, lineage)


def read_settings(path: Path) -> dict[str, Any]:
    """Return the content of a folder's routers.json."""
    try:
        saved: dict[str, Any] = json.loads((path / SETTINGS).read_text(encoding="utf-8"))
        if saved.get("format") != _FORMAT:
            raise ValueError(f"format {saved.get('format')!r}, not {_FORMAT}")
        return saved
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path} holds no routers that can be read ({error}); give a folder that "
            "save_routers of this release wrote"
        ) from error


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of all routers; raise ``ValueError`` if they are not whole and at hand."""
    weights = {}
    for layer, attention in enumerate(attachment_of(model).attentions[1:], start=1):
        router: Any = unadapted_memories(attention)[0]
        for name in router.weight_names.values():
            key = f"layers.{layer}.{name}"
            weights[key] = _at_hand(getattr(router, name), key)
    return weights


def _fingerprints(model: nn.Module) -> dict[str, str]:
    """Return hashes of samples of all weights of the base, by what they are rounded to.

    A head is left out, which may be another one.
    """
    owner = attachment_of(model).owner
    weights = dict(_below(owner))
    whole = next((m for m in model.modules() if isinstance(m, PreTrainedModel)), None)
    embeddings = whole.get_input_embeddings() if whole is not None else owner
    # Those of an encoder lie outside.
    if all(embeddings is not module for module in owner.modules()):
        weights |= _below(embeddings, "embeddings.")
    digests = {name: hashlib.sha256() for name in _PRECISIONS}
    for name, weight in weights.items():
        # Odd, so that the samples are not of a few columns.
        stride = (weight.numel() // _SAMPLES) | 1
        samples = _at_hand(weight, name).detach().flatten()[::stride].cpu()
        for precision, dtype in _PRECISIONS.items():
            rounded = samples.to(dtype).contiguous().view(torch.int16)
            digests[precision].update(f"{list(weight.shape)}".encode())
            digests[precision].update(rounded.numpy().tobytes())
    return {name: digest.hexdigest() for name, digest in digests.items()}


def _below(module: nn.Module, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the weights below a module and their names, without routers and PEFT's adapters."""
    for wrapped in _WRAPPED:
        if isinstance(inner := module._modules.get(wrapped), nn.Module):
            yield from _below(inner, path)
            return
    for name, weight in module._parameters.items():
        if weight is not None:
            yield f"{path}{name}", weight
    for name, child in module._modules.items():
        if child is not None and name != MEMORY:
            yield from _below(child, f"{path}{name}.")


def _at_hand(weight: Any, name: str) -> Tensor:
    if not isinstance(weight, Tensor) or weight.is_meta or type(weight.data) is not Tensor:
        raise ValueError(
            f"{name} is not whole and in memory (quantised, sharded, offloaded, or held by an "
            "adapter): save and load routers with the whole model in memory"
        )
    return weight
