"""``save_routers`` and ``load_routers``: the routers of an attached model as a small adapter.

    routers.safetensors    the weights: "layers.1.weight", "layers.2.weight", ...
    routers.json           how memory is attached; the base model that they belong to; a digest of
                           the weights, so that the two files are of one saving; and, where a run
                           of ours trained them, on what (``lineage``)
    README.md              a model card

A base model is identified by *fingerprints*, hashes of samples of every weight of the module that
runs the layers: one of the samples rounded to bfloat16, one to float16. A model that is loaded in
either precision has the same rounded weights, so that one equal fingerprint is enough. A name and a
revision are written too, for people: the same weights may lie in another folder, and a name says
nothing of weights that were trained since. Saving after ``trainable(model, "all")``, or after LoRA
was merged, therefore gives an adapter of the trained base, which is saved with
``model.save_pretrained``. LoRA that is not merged is no part of the base.
"""

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from transformers.activations import ACT2FN

from layermem.models.card import ask_for_licence
from layermem.models.configuration import LINEAGE
from layermem.models.hub import commit_of
from layermem.models.memories import unadapted_memories
from layermem.models.seams import WeightsUnknown
from layermem.retrofit.attachment import (
    DEFAULTS,
    MEMORY,
    Attachment,
    attachment_of,
    check_same_memory,
    name_memory,
)
from layermem_base.files import write_atomically

WEIGHTS, SETTINGS, CARD = "routers.safetensors", "routers.json", "README.md"
# Numbers of a weight that are hashed, at most, so that large models stay quick.
_SAMPLES = 2**14
# Where PEFT keeps a module that it wraps: below a LoRA, and beside a copy that trains.
_WRAPPED = ("base_layer", "original_module")
_FORMAT = 3
# Fields of a config by which the same weights compute something else.
_COMPUTES = (
    *("hidden_act", "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
    *("sliding_window", "layer_types", "attn_logit_softcapping", "final_logit_softcapping"),
    *("query_pre_attn_scalar", "partial_rotary_factor", "rotary_pct", "no_rope_layers"),
    *("activation_function", "hidden_activation", "use_parallel_residual", "scale_attn_weights"),
    *("scale_attn_by_inverse_layer_idx", "relative_attention", "pos_att_type", "position_buckets"),
    *("max_relative_positions", "position_biased_input", "share_att_key", "norm_rel_ebd"),
    *("attention_multiplier", "residual_multiplier", "embedding_multiplier", "logits_scaling"),
    *("is_decoder", "use_bidirectional_attention", "num_experts_per_tok"),
)
_ACTIVATIONS = ("hidden_act", "activation_function", "hidden_activation")
# Of releases that keep it beside the other numbers of rope, and of those that do not.
_PART_OF_A_HEAD = ("partial_rotary_factor", "rotary_pct")
_OF_ROPE = (
    *("rope_type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor"),
    *("original_max_position_embeddings", "beta_fast", "beta_slow"),
)
# What rope may leave out; to leave it out computes something else too.
_OF_ROPE_OR_NOT = (
    *("attention_factor", "mscale", "mscale_all_dim", "truncate", "short_factor", "long_factor"),
)
_PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


_CARD = """\
---
library_name: layermem
{base_line}tags:
- layer-memory
- adapter
---

# Layer memory for {title}

Routers of layer-integrated memory (LIMe, [arXiv 2502.09245](https://arxiv.org/abs/2502.09245)):
attention heads of {title} read keys and values of earlier layers too.

| | |
|---|---|
| architecture | {architecture} |
| base model | {name} |
| revision of the base | {revision} |
| layers, heads, head width | {layers}, {heads}, {head_dim} |
| routers | {routers} |

```python
import layermem
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained({quoted_name})
layermem.attach(model{options})
layermem.load_routers(model, "this-folder")
```

{licence}
"""


class OtherBase(ValueError):
    """Routers were saved for a base with other weights."""


class NotAtHand(ValueError):
    """Weights are not whole and in memory: sharded, offloaded or held by an adapter."""


def save_routers(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write the routers of an attached model to a folder, with a model card.

    The folder can be uploaded as it is (``huggingface_hub.upload_folder``). A card that is there
    already is kept, unless it is that of the routers which are replaced, as it was written.
    """
    attachment, path = attachment_of(model), Path(folder)
    if (path / "config.json").exists():
        raise ValueError(
            f"{path} holds a model, which would still be loaded without the routers; give a folder "
            "of their own, or save the whole model with save_pretrained"
        )
    try:
        for attention in attachment.attentions[1:]:
            unadapted_memories(attention)
    except WeightsUnknown as error:
        raise NotAtHand(str(error)) from error
    weights = _weights(attachment.routers)
    for name, weight in weights.items():
        if not weight.isfinite().all():
            raise ValueError(f"{name} of the routers is not finite; load an earlier checkpoint")
    keeps_card = (path / CARD).exists() and not _is_of_replaced(path)
    copies = {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
    content = save(copies, metadata={"format": "pt"})
    settings = {**_describe(model), "digest": hashlib.sha256(content).hexdigest()}
    if lineage := getattr(getattr(model, "config", None), LINEAGE, None):
        settings[LINEAGE] = lineage
    write_atomically(path / WEIGHTS, content)
    write_atomically(path / SETTINGS, json.dumps(settings, indent=2) + "\n")
    if not keeps_card:
        (path / CARD).write_text(model_card(settings), encoding="utf-8")


def _is_of_replaced(path: Path) -> bool:
    """Return whether the card in a folder is that of its routers, and nobody has edited it."""
    try:
        return (path / CARD).read_text(encoding="utf-8") == model_card(read_settings(path))
    except (OSError, ValueError, KeyError):
        return False


def load_routers(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Load saved routers into a model that is attached as theirs was, all or none."""
    copy_routers(model, Path(folder), base=model)


def copy_routers(model: nn.Module, path: Path, base: nn.Module) -> None:
    """Do the same, where ``base`` has the base's weights; in another precision, it may be."""
    attachment = attachment_of(model)
    saved = read_settings(path)
    _check(saved, _describe(base), path)
    weights = _weights(attachment.routers)
    try:
        content = (path / WEIGHTS).read_bytes()
        loaded = load(content)
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
    if hashlib.sha256(content).hexdigest() != saved.get("digest"):
        raise ValueError(
            f"{path / WEIGHTS} is not the file that {SETTINGS} beside it was written with, by its "
            "digest; copy both again, or save the routers again"
        )
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(loaded[name])
    if lineage := saved.get(LINEAGE):
        # What trained the routers is not in the config of a bare base.
        setattr(model.config, LINEAGE, lineage)


def _weights(routers: Mapping[int, Any]) -> dict[str, Tensor]:
    weights = {}
    for layer, router in routers.items():
        for name in router.weight_names.values():
            weight = getattr(router, name)
            if not isinstance(weight, Tensor) or type(weight.data) is not Tensor or weight.is_meta:
                raise NotAtHand(
                    f"the router of layer {layer} is not whole and at hand (an adapter, sharding "
                    "or offloading holds it); merge, gather or load the model first"
                )
            weights[f"layers.{layer}.{name}"] = weight
    return weights


def _describe(model: nn.Module) -> dict[str, Any]:
    """Return the contents of routers.json for a model as it is."""
    attachment = attachment_of(model)
    config = getattr(attachment.owner, "config", None)
    name = getattr(config, "_name_or_path", "") or ""
    return {
        "format": _FORMAT,
        "base": {
            # With ./ before it, a folder is never looked for on the hub.
            "name": os.path.join(os.curdir, name) if name and Path(name).is_dir() else name,
            "revision": commit_of(config),
            "fingerprints": _hash_weights(attachment),
            "embeddings": _hash_embeddings(model, attachment),
            "head": _hash_head(model),
            "computes": _computes(config),
        },
        **attachment.describe(),
    }


def _hash_weights(attachment: Attachment) -> dict[str, str]:
    """Return hashes of samples of all weights of the base model, by what they are rounded to."""
    routers = {id(attention._modules.get(MEMORY)) for attention in attachment.attentions}
    return _hash_all(_base_weights(attachment.owner, "", routers))


def _hash_embeddings(model: Any, attachment: Attachment) -> dict[str, str] | None:
    """Return the same of embeddings outside of the module that runs the layers, as an encoder's,
    with what lies beside them: positions, a norm."""
    try:
        embeddings = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    if any(embeddings is module for module in attachment.owner.modules()):
        return None
    path = next(name for name, module in model.named_modules() if module is embeddings)
    beside = model.get_submodule(path.rpartition(".")[0])
    if any(attachment.owner is module for module in beside.modules()):
        beside = embeddings
    return _hash_all(_base_weights(beside, "", ()))


def _hash_head(model: Any) -> dict[str, str] | None:
    """Return the same of a head over the vocabulary with weights of its own; None: it has none."""
    try:
        head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    if head is None or getattr(head, "weight", None) is getattr(embeddings, "weight", None):
        return None
    return _hash_all(_base_weights(head, "", ()))


def _computes(config: Any) -> dict[str, Any]:
    """Return what a config says of how the base computes, which its weights do not show."""
    fields = {name: getattr(config, name) for name in _COMPUTES if hasattr(config, name)}
    # Few configs have the field; any may be given it.
    fields["is_causal"] = getattr(config, "is_causal", None) is not False
    rope = getattr(config, "rope_parameters", None) or {}
    # Of some models each kind of layer has its own.
    by_kind = {f"{kind}.": each for kind, each in rope.items() if isinstance(each, dict)}
    for kind, values in (by_kind or {"": rope}).items():
        named = {name: values[name] for name in _OF_ROPE if name in values}
        named |= {name: values[name] for name in _OF_ROPE_OR_NOT if name in values}
        parts = (values.get(name, getattr(config, name, None)) for name in _PART_OF_A_HEAD)
        named["partial_rotary_factor"] = next(filter(None, parts), 1.0)
        fields |= {f"rope_parameters.{kind}{name}": value for name, value in named.items()}
    return fields


def _are_alike(name: str, one: Any, other: Any) -> bool:
    """Return whether two values of a field compute the same; activations have several names."""
    if one == other:
        return True
    if name == "layer_types":
        # Not every release derives them.
        return one is None or other is None
    if name not in _ACTIVATIONS or not {one, other} <= ACT2FN.keys():
        return False
    x = torch.linspace(-4, 4, 33)
    return torch.allclose(ACT2FN[one](x), ACT2FN[other](x), atol=1e-6)


def _hash_all(weights: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    digests = {name: hashlib.sha256() for name in _PRECISIONS}
    for name, weight in weights:
        samples = _samples(weight, name)
        for precision, dtype in _PRECISIONS.items():
            digests[precision].update(f"{list(weight.shape)}".encode())
            digests[precision].update(_bytes(samples, dtype))
    return {name: digest.hexdigest() for name, digest in digests.items()}


def hash_routers(routers: Mapping[int, nn.Module]) -> dict[str, str]:
    """Return hashes of the weights of routers, one for each layer, by what they are rounded to."""
    weights = _weights(routers).values()
    return {
        name: hashlib.sha256(b"".join(_bytes(w.detach().cpu(), dtype) for w in weights)).hexdigest()
        for name, dtype in _PRECISIONS.items()
    }


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


def _samples(weight: Any, name: str) -> Tensor:
    if not isinstance(weight, Tensor) or weight.is_meta or type(weight.data) is not Tensor:
        raise NotAtHand(
            f"the weights of the base are not at hand ({name} is quantised, sharded or offloaded), "
            "so that the base model cannot be identified; save and load routers with the base "
            "model whole and in memory"
        )
    # Odd, so that the samples are not of a few columns.
    stride = (weight.numel() // _SAMPLES) | 1
    return weight.detach().flatten()[::stride].cpu()


def _bytes(samples: Tensor, dtype: torch.dtype) -> bytes:
    if samples.is_floating_point():
        samples = samples.to(dtype).view(torch.int16)
    return samples.contiguous().numpy().tobytes()


def read_settings(path: Path) -> dict[str, Any]:
    """Return the content of a folder's routers.json."""
    file = path / SETTINGS
    if not file.is_file():
        raise ValueError(
            f"{path} holds no routers (no {SETTINGS}); give the folder that save_routers wrote"
        )
    try:
        saved: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if saved["format"] == _FORMAT and isinstance(saved["base"]["fingerprints"], dict):
            return saved
        error: Any = f"format {saved['format']!r}"
    except (OSError, ValueError, KeyError, TypeError) as caught:
        error = repr(caught)
    raise ValueError(f"{file} is damaged or of another version ({error}); copy it again")


def _check(saved: dict[str, Any], current: dict[str, Any], path: Path) -> None:
    """Raise ``ValueError`` if routers were saved for another base or other sources."""
    base, own = saved["base"], current["base"]
    try:
        check_same_memory(current, saved)
    except ValueError as error:
        raise ValueError(f"the routers in {path} do not fit: {error}") from error
    # Files of older releases do not say it.
    computes = base.get("computes") or {}
    left_out = dict.fromkeys(
        name for name in own["computes"] if name.rpartition(".")[2] in _OF_ROPE_OR_NOT
    )
    of_rope = any(name.endswith(f".{_PART_OF_A_HEAD[0]}") for name in computes)
    for name, value in {**(left_out if of_rope else {}), **computes}.items():
        optional = name.rpartition(".")[2] in _OF_ROPE_OR_NOT
        this = own["computes"].get(name)
        if (optional or name in own["computes"]) and not _are_alike(name, this, value):
            raise ValueError(
                f"the routers in {path} were trained on a base with {name}={value}, and this one "
                f"has {this}, by which the same weights compute something else; "
                f"load the base as it was, from_pretrained(..., {name.partition('.')[0]}=...)"
            )
    is_same = not base["fingerprints"].items().isdisjoint(own["fingerprints"].items())
    # A classifier has no head over the vocabulary, and takes a decoder's routers.
    for part in ("embeddings", "head"):
        theirs, ours = base.get(part), own[part]
        if theirs and ours:
            is_same = is_same and not theirs.items().isdisjoint(ours.items())
    if not is_same or saved.get("architecture") != current["architecture"]:
        named = f"{base.get('name') or 'a model without a name'}"
        raise OtherBase(
            f"the routers in {path} are for {saved.get('architecture')} {named} (revision "
            f"{base.get('revision')}), whose weights are others than those of this "
            f"{current['architecture']} {own['name'] or ''}(revision {own['revision']}); load that "
            "base, in float32 if routers and base were rounded to two kinds of 16 bits. A base "
            "whose embeddings were resized is saved with its new rows, which are random "
            "(save_pretrained), and one in 4 or 8 bits as a whole with its routers"
        )


def model_card(settings: Mapping[str, Any]) -> str:
    """Return the card of routers with these settings (those of routers.json)."""
    base = settings["base"]
    name = base["name"]
    options = "".join(
        f", {key}={json.dumps(settings[key]) if isinstance(settings[key], str) else settings[key]}"
        for key, default in DEFAULTS.items()
        if settings.get(key, default) != default
    )
    # A path of one machine names no model of the hub.
    is_hub_name = name.count("/") == 1 and not name.startswith(("/", "."))
    return _CARD.format(
        base_line=f"base_model: {name}\n" if is_hub_name else "",
        title=name if is_hub_name else f"a {settings['architecture']}",
        architecture=settings["architecture"],
        name=name if is_hub_name else "not from the hub",
        revision=base["revision"] or "not known",
        layers=settings["layers"],
        heads=settings["heads"],
        head_dim=settings["head_dim"],
        routers=name_memory(settings),
        quoted_name=json.dumps(name if is_hub_name else "the-base-model"),
        options=options,
        licence=ask_for_licence("the base model", "them"),
    )
