"""``save_routers`` and ``load_routers``: the routers of an attached model as a small adapter.

    routers.safetensors    the weights: "layers.1.weight", "layers.2.weight", ...
    routers.json           what they belong to: the base model, its layers and heads
    README.md              a model card

A base model is identified by its *fingerprint*, a hash of the projections to keys (or of the fused
ones) of its first, middle and last layer, rounded to bfloat16. A name and a revision are written
too, for people: the same weights may lie in another folder, and a name says nothing of weights that
were trained since. Saving after ``trainable(model, "all")`` therefore gives an adapter of the
trained base, which is saved with ``model.save_pretrained``.

It does not know: how routers are trained, the hub.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from layermem.retrofit.attachment import Attachment, attachment_of
from layermem.retrofit.card import model_card

WEIGHTS, SETTINGS, CARD = "routers.safetensors", "routers.json", "README.md"
_FORMAT = 1


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
    path.mkdir(parents=True, exist_ok=True)
    settings = _describe(attachment)
    copies = {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
    save_file(copies, path / WEIGHTS, metadata={"format": "pt"})
    (path / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return settings


def load_routers(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Load saved routers into a model that is attached as theirs was, all or none."""
    attachment, path = attachment_of(model), Path(folder)
    saved = _read_settings(path)
    _check(saved, _describe(attachment), path)
    weights = _weights(attachment)
    try:
        loaded = load_file(path / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path / WEIGHTS} cannot be read ({error}); copy it again") from error
    if loaded.keys() != weights.keys():
        wrong = sorted(loaded.keys() ^ weights.keys())
        raise ValueError(f"{path / WEIGHTS} does not fit {SETTINGS}: it differs in {wrong}")
    for name, weight in weights.items():
        if loaded[name].shape != weight.shape or not loaded[name].isfinite().all():
            raise ValueError(
                f"{name} in {path / WEIGHTS} must be finite and {list(weight.shape)}, got "
                f"{list(loaded[name].shape)}, finite: {bool(loaded[name].isfinite().all())}"
            )
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(loaded[name])


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


def _describe(attachment: Attachment) -> dict[str, Any]:
    """Return the contents of routers.json for a model as it is."""
    config = getattr(attachment.owner, "config", None)
    return {
        "format": _FORMAT,
        "base": {
            "architecture": type(attachment.owner).__name__.removeprefix("FSDP"),
            "name": getattr(config, "_name_or_path", "") or "",
            "revision": getattr(config, "_commit_hash", None),
            "fingerprint": fingerprint(attachment),
        },
        "layers": len(attachment.layers),
        "heads": attachment.shape.heads,
        "head_dim": attachment.shape.head_dim,
        **attachment.settings,
    }


def fingerprint(attachment: Attachment) -> str:
    """Return a hash of a few weights of the base model."""
    digest, n = hashlib.sha256(), len(attachment.layers)
    for layer in sorted({0, n // 2, n - 1}):
        projection: Any = attachment.attentions[layer].get_submodule(attachment.host.projections[0])
        while isinstance(getattr(projection, "base_layer", None), nn.Module):
            # Below a LoRA.
            projection = projection.base_layer
        digest.update(_bytes(projection, layer))
    return digest.hexdigest()


def _bytes(projection: Any, layer: int) -> bytes:
    weight = getattr(projection, "weight", None)
    if not isinstance(weight, Tensor) or weight.is_meta or type(weight.data) is not Tensor:
        raise NotAtHand(
            f"the weights of layer {layer} are not at hand ({type(projection).__name__}, "
            "quantised, sharded or offloaded), so that the base model cannot be identified; "
            "save and load routers with the base model whole and in memory"
        )
    weight = weight.detach().cpu()
    if weight.is_floating_point():
        # So that a model loaded in another precision is the same base.
        weight = weight.to(torch.bfloat16).view(torch.int16)
    return weight.contiguous().numpy().tobytes()


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        saved = json.loads((path / SETTINGS).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"{path} holds no routers ({SETTINGS} cannot be read); give the folder that "
            "save_routers wrote"
        ) from error
    except ValueError as error:
        raise ValueError(f"{path / SETTINGS} is damaged ({error}); copy it again") from error
    if not isinstance(saved, dict) or saved.get("format") != _FORMAT:
        found = saved.get("format") if isinstance(saved, dict) else saved
        raise ValueError(f"{path / SETTINGS} must have format {_FORMAT}, got {found!r}")
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
