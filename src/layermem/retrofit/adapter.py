"""``save_routers`` and ``load_routers``: the routers of an attached model as a small adapter.

    routers.safetensors    the weights: "layers.1.weight", "layers.2.weight", ...
    routers.json           what they belong to: the base model, its layers and heads; and a digest
                           of the weights, so that the two files are of one saving; and, where a
                           run of ours trained them, on what (``lineage``)
    README.md              a model card

A base model is identified by its *fingerprint*, a hash of samples of every weight of the module
that runs the layers, rounded to bfloat16. A name and a revision are written too, for people: the
same weights may lie in another folder, and a name says nothing of weights that were trained since.
Saving after ``trainable(model, "all")``, or after LoRA was merged, therefore gives an adapter of
the trained base, which is saved with ``model.save_pretrained``. LoRA that is not merged is no part
of the base. Format 1 had a hash of three projections alone; it is still read.

It does not know: how routers are trained, the hub.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from layermem.lineage import FIELD
from layermem.retrofit.attachment import ROUTER, Attachment, attachment_of
from layermem.retrofit.card import model_card
from layermem.runs import write_atomically

WEIGHTS, SETTINGS, CARD = "routers.safetensors", "routers.json", "README.md"
# Numbers of a weight that are hashed, at most, so that large models stay quick.
_SAMPLES = 2**14
# Where PEFT keeps a module that it wraps: below a LoRA, and beside a copy that trains.
_WRAPPED = ("base_layer", "original_module")


class NotAtHand(ValueError):
    """Weights are not whole and in memory: sharded, offloaded or held by an adapter."""


def save_routers(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write the routers of an attached model to a folder, with a model card.

    The folder can be uploaded as it is (``huggingface_hub.upload_folder``). A card that is there
    already is kept.
    """
    path = Path(folder)
    settings = write_routers(model, path)
    if not (path / CARD).exists():
        (path / CARD).write_text(model_card(settings), encoding="utf-8")


def write_routers(model: nn.Module, path: Path) -> dict[str, Any]:
    """Write the routers of an attached model without a card; return what routers.json says."""
    attachment = attachment_of(model)
    weights = _weights(attachment)
    for name, weight in weights.items():
        if not weight.isfinite().all():
            raise ValueError(f"{name} of the routers is not finite; load an earlier checkpoint")
    copies = {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
    content = save(copies, metadata={"format": "pt"})
    settings = {**_describe(attachment), "digest": hashlib.sha256(content).hexdigest()}
    if lineage := getattr(getattr(model, "config", None), FIELD, None):
        settings[FIELD] = lineage
    write_atomically(path / WEIGHTS, content)
    write_atomically(path / SETTINGS, json.dumps(settings, indent=2) + "\n")
    return settings


def load_routers(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Load saved routers into a model that is attached as theirs was, all or none."""
    attachment, path = attachment_of(model), Path(folder)
    saved = read_settings(path)
    _check(saved, _describe(attachment, saved["format"]), path)
    # A whole checkpoint holds the base itself.
    if saved["format"] == 1 and not (path / "config.json").exists():
        warnings.warn(
            f"the routers in {path} know their base by a few of its weights alone (format 1 of "
            f"{SETTINGS}): a base of which others were trained is not recognised; save them again",
            stacklevel=2,
        )
    weights = _weights(attachment)
    loaded, digest = read_weights(path / WEIGHTS)
    if loaded.keys() != weights.keys():
        wrong = sorted(loaded.keys() ^ weights.keys())
        raise ValueError(f"{path / WEIGHTS} does not fit {SETTINGS}: it differs in {wrong}")
    for name, weight in weights.items():
        if loaded[name].shape != weight.shape or not loaded[name].isfinite().all():
            raise ValueError(
                f"{name} in {path / WEIGHTS} must be finite and {list(weight.shape)}, got "
                f"{list(loaded[name].shape)}, finite: {bool(loaded[name].isfinite().all())}"
            )
    if digest != saved.get("digest"):
        raise ValueError(
            f"{path / WEIGHTS} is not the file that {SETTINGS} beside it was written with, by its "
            "digest; copy both again, or save the routers again"
        )
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(loaded[name])
    if lineage := saved.get(FIELD):
        # What trained the routers is not in the config of a bare base.
        setattr(model.config, FIELD, lineage)


def read_weights(path: Path) -> tuple[dict[str, Tensor], str]:
    """Return the weights in a file, and a digest of it."""
    try:
        content = path.read_bytes()
        return load(content), hashlib.sha256(content).hexdigest()
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read ({error}); copy it again") from error


def _weights(attachment: Attachment) -> dict[str, Tensor]:
    weights = {}
    for layer, router in attachment.routers.items():
        weight = router.weight
        if not isinstance(weight, Tensor) or type(weight.data) is not Tensor or weight.is_meta:
            raise NotAtHand(
                f"the router of layer {layer} is not whole and at hand (an adapter, sharding or "
                "offloading holds it); merge, gather or load the model first"
            )
        weights[f"layers.{layer}.weight"] = weight
    return weights


def _describe(attachment: Attachment, format_number: int = 2) -> dict[str, Any]:
    """Return the contents of routers.json for a model as it is."""
    config = getattr(attachment.owner, "config", None)
    return {
        "format": format_number,
        "base": {
            "architecture": type(attachment.owner).__name__.removeprefix("FSDP"),
            "name": getattr(config, "_name_or_path", "") or "",
            "revision": getattr(config, "_commit_hash", None),
            "fingerprint": _FINGERPRINTS[format_number](attachment),
        },
        "layers": len(attachment.layers),
        "heads": attachment.shape.heads,
        "head_dim": attachment.shape.head_dim,
        **attachment.settings,
    }


def _hash_weights(attachment: Attachment) -> str:
    """Return a hash of samples of all weights of the base model."""
    digest = hashlib.sha256()
    routers = {id(attention._modules.get(ROUTER)) for attention in attachment.attentions}
    for name, weight in _base_weights(attachment.owner, "", routers):
        # Odd, so that the samples are not of a few columns.
        stride = (weight.numel() // _SAMPLES) | 1
        digest.update(f"{list(weight.shape)}".encode())
        digest.update(_bytes(weight, name, stride))
    return digest.hexdigest()


def _base_weights(
    module: nn.Module, path: str, routers: Collection[int]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights below a module and their names, without routers and PEFT's adapters."""
    for wrapped in _WRAPPED:
        if isinstance(inner := module._modules.get(wrapped), nn.Module):
            yield from _base_weights(inner, path, routers)
            return
    for name, weight in module._parameters.items():
        if weight is not None:
            yield f"{path}{name}", weight
    for name, child in module._modules.items():
        if child is not None and id(child) not in routers:
            yield from _base_weights(child, f"{path}{name}.", routers)


def _hash_keys(attachment: Attachment) -> str:
    """Return the hash that format 1 has: of the projections to keys, or of the fused ones, in the
    first, middle and last layer."""
    digest, n = hashlib.sha256(), len(attachment.layers)
    for layer in sorted({0, n // 2, n - 1}):
        projection: Any = attachment.attentions[layer].get_submodule(attachment.host.projections[0])
        while isinstance(getattr(projection, "base_layer", None), nn.Module):
            # Below a LoRA.
            projection = projection.base_layer
        weight = getattr(projection, "weight", None)
        digest.update(_bytes(weight, f"the projection to keys of layer {layer}"))
    return digest.hexdigest()


_FINGERPRINTS = {1: _hash_keys, 2: _hash_weights}


def _bytes(weight: Any, name: str, stride: int = 1) -> bytes:
    if not isinstance(weight, Tensor) or weight.is_meta or type(weight.data) is not Tensor:
        raise NotAtHand(
            f"the weights of the base are not at hand ({name} is quantised, sharded or offloaded), "
            "so that the base model cannot be identified; save and load routers with the base "
            "model whole and in memory"
        )
    weight = weight.detach().flatten()[::stride].cpu()
    if weight.is_floating_point():
        # So that a model loaded in another precision is the same base.
        weight = weight.to(torch.bfloat16).view(torch.int16)
    return weight.contiguous().numpy().tobytes()


def read_settings(path: Path) -> dict[str, Any]:
    try:
        saved = json.loads((path / SETTINGS).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"{path} holds no routers ({SETTINGS} cannot be read); give the folder that "
            "save_routers wrote"
        ) from error
    except ValueError as error:
        raise ValueError(f"{path / SETTINGS} is damaged ({error}); copy it again") from error
    known = tuple(_FINGERPRINTS)
    if not isinstance(saved, dict) or saved.get("format") not in known:
        found = saved.get("format") if isinstance(saved, dict) else saved
        expected = " or ".join(map(str, known))
        raise ValueError(f"{path / SETTINGS} must have format {expected}, got {found!r}")
    return saved


def _check(saved: dict[str, Any], current: dict[str, Any], path: Path) -> None:
    """Raise ``ValueError`` if routers were saved for another base or other sources."""
    base, own = saved.get("base", {}), current["base"]
    for name in ("layers", "heads", "head_dim"):
        if saved.get(name) != current[name]:
            raise ValueError(
                f"the routers in {path} are for {base.get('architecture')} with {name}="
                f"{saved.get(name)}, this {own['architecture']} has {name}={current[name]}"
            )
    for name in ("router", "window"):
        if saved.get(name) != current[name]:
            raise ValueError(
                f"the routers in {path} were attached with {name}={saved.get(name)!r}, this model "
                f"with {name}={current[name]!r}; detach it and attach it with theirs"
            )
    for name in ("architecture", "fingerprint"):
        if base.get(name) != own[name]:
            named = f"{base.get('name') or 'a model without a name'}"
            raise ValueError(
                f"the routers in {path} are for {base.get('architecture')} {named} (revision "
                f"{base.get('revision')}), whose weights are others than those of this "
                f"{own['architecture']} {own['name'] or ''}(revision {own['revision']}); load that "
                "base"
            )
