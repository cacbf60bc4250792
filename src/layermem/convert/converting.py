"""Convert a checkpoint of another layout: find out which it is, load it, and save it anew.

a folder of transformers' LLaMA, or its hub name     a model of a variant
a folder of our plain decoder                        a model of a variant, or a LLaMA
a folder of LIMe's released code                     LIMe
a file of llama2.c and its tokenizer                 transformers' LLaMA, or a variant
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from layermem.convert.llama2c import load_llama2c, load_tokenizer, read_sizes
from layermem.convert.new_folder import check_target, new_folder
from layermem.convert.released_lime import is_released_lime, load_released_lime
from layermem.models.card import origin_of, write_card
from layermem.models.checkpoints import LLAMA_MODEL_TYPES
from layermem.models.lineage import read_lineage_fields
from layermem.models.registry import lookup

logger = logging.getLogger(__name__)

LAYOUTS = {
    "llama": "a LLaMA of transformers",
    "plain": "our plain decoder",
    "released_lime": "a checkpoint of LIMe's released code",
    "llama2c": "a checkpoint of llama2.c",
}
"""The layouts that are converted, and what they are called."""
LLAMA = "llama"
"""What to convert to for a LLaMA of transformers, in place of a variant."""
# What a config says of its own file and class.
_OF_THE_FILE = ("model_type", "architectures", "auto_map", "transformers_version")
# How files begin that are often taken for one of llama2.c.
_OTHER_FILES = {
    b"GGUF": "a GGUF file: load it with transformers (gguf_file=) and save_pretrained, and convert "
    "that folder",
    b"PK\x03\x04": "a file of torch.save: name the folder that holds it and its config.json; a "
    "checkpoint of llama2.c's training is written by its export.py --version 0",
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """A checkpoint: its layout (of ``LAYOUTS``), its place, and that of its tokenizer if any."""

    layout: str
    location: Path | str
    tokenizer: Path | str | None


@dataclass(frozen=True, kw_only=True)
class Converted:
    """What was found and written. Tied parameters count once."""

    source: Source
    folder: Path
    model_class: str
    parameters: int
    has_tokenizer: bool


def convert(
    source: str,
    target: Path,
    *,
    variant: str | None = None,
    fields: Mapping[str, Any] | None = None,
    tokenizer: str | None = None,
    force: bool = False,
) -> Converted:
    """Load a checkpoint of any of ``LAYOUTS`` and save it in the folder ``target``.

    ``variant``: the model to make of a LLaMA, which starts with the LLaMA's logits; None: "lime",
    and of llama2.c's transformers' own LLaMA. "llama": transformers' LLaMA, of our plain decoder
    too. ``fields`` are further fields of a variant's config.
    ``tokenizer``: where to read the tokenizer; None: where the checkpoint is.
    """
    found = find_source(source, tokenizer)
    path = found.location if isinstance(found.location, Path) else None
    target = check_target(target, path, force=force)
    logger.info("found %s: %s", LAYOUTS[found.layout], found.location)
    if found.layout in ("llama", "plain"):
        # It goes into the new config with all that the old one says; what is lost is refused.
        read_lineage_fields(found.location)
    # Created first, so that a folder that cannot be is said before a model is loaded.
    with new_folder(target) as folder:
        model = _load_model(found, variant, dict(fields or {}))
        words = _load_tokenizer(found, model.config)
        weights = model.state_dict()
        if damaged := [name for name in weights if not weights[name].isfinite().all()]:
            raise ValueError(f"{source} is damaged: {damaged[0]} holds numbers that are not finite")
        # Its card says so.
        model.config.name_or_path = str(found.location)
        model.save_pretrained(folder)
        if isinstance(model, LlamaForCausalLM):
            _write_card(folder, model)
        if words is not None:
            words.save_pretrained(folder)
    return Converted(
        source=found,
        folder=target,
        model_class=type(model).__name__,
        parameters=model.num_parameters(),
        has_tokenizer=words is not None,
    )


def _write_card(folder: Path, model: LlamaForCausalLM) -> None:
    """Write the card of a LLaMA, of which transformers writes none."""
    name = type(model).__name__
    write_card(
        folder,
        model,
        title=f"{Path(origin_of(model)).stem} as a LLaMA",
        description=f"`{name}` of transformers, {model.config.num_hidden_layers} layers of width "
        f"{model.config.hidden_size}",
        tags=["transformers", "llama"],
        code=f'from transformers import {name}\n\nmodel = {name}.from_pretrained("this-folder")',
        library="transformers",
    )


def find_source(source: str, tokenizer: str | None = None) -> Source:
    """Return a checkpoint's layout, which is told by its files; raise if it is none of ours."""
    path = Path(source).expanduser()
    if path.is_file():
        return _llama2c(path, tokenizer)
    if not path.exists():
        if path.is_absolute() or source.startswith(("./", "../", "~")) or len(path.parts) != 2:
            raise FileNotFoundError(f"{source} does not exist; name a folder, file or hub name")
        return Source(layout="llama", location=source, tokenizer=tokenizer or source)
    if is_released_lime(path):
        beside = path if (path / "tokenizer.json").is_file() else None
        return Source(layout="released_lime", location=path, tokenizer=tokenizer or beside)
    if (path / "config.json").is_file():
        return _llama(path, tokenizer)
    files = sorted(file for file in path.glob("*.bin") if not file.name.startswith("tok"))
    if len(files) != 1:
        named = ", ".join(sorted(file.name for file in path.iterdir())[:5]) or "nothing"
        raise ValueError(
            f"{path} is no checkpoint that can be converted: it has neither a config.json nor one "
            f".bin file of llama2.c, but {named}; name the file itself, or the folder of a saved "
            "LLaMA"
        )
    return _llama2c(files[0], tokenizer)


def _llama2c(path: Path, tokenizer: str | None) -> Source:
    with path.open("rb") as file:
        start = file.read(4)
    if start in _OTHER_FILES:
        raise ValueError(f"{path} is {_OTHER_FILES[start]}")
    if path.suffix in (".safetensors", ".json"):
        raise ValueError(f"{path} is one file of a saved model; name its folder, {path.parent}")
    names = (f"tok{read_sizes(path).vocabulary}.bin", "tokenizer.bin")
    beside = (path.parent / name for name in names if (path.parent / name).is_file())
    chosen = Path(tokenizer) if tokenizer is not None else next(beside, None)
    if chosen is not None and not chosen.is_file():
        raise FileNotFoundError(f"the tokenizer {tokenizer} is no file; name tokenizer.bin")
    return Source(layout="llama2c", location=path, tokenizer=chosen)


def _llama(path: Path, tokenizer: str | None) -> Source:
    try:
        model_type = json.loads((path / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}/config.json is damaged ({error!r}); fetch it again") from error
    if model_type not in LLAMA_MODEL_TYPES:
        kind = "is a model of layermem already" if str(model_type).startswith("layermem_") else ""
        raise ValueError(
            f"{path} {kind or 'holds no LLaMA'} (model_type {model_type!r}); convert takes "
            f"{', '.join(LAYOUTS.values())}"
        )
    has_tokenizer = any(path.glob("tokenizer*")) or (path / "vocab.json").is_file()
    return Source(
        layout="plain" if model_type == lookup("plain").config.model_type else "llama",
        location=path,
        tokenizer=tokenizer or (path if has_tokenizer else None),
    )


def _load_model(source: Source, variant: str | None, fields: dict[str, Any]) -> Any:
    if source.layout == "released_lime":
        if variant not in (None, "lime") or fields:
            wanted = ", ".join([variant or "lime", *fields])
            raise ValueError(
                f"{source.location} is a LIMe whose routers are trained, and becomes one of all "
                f"sources, got {wanted}; leave --variant and --options out"
            )
        return load_released_lime(Path(source.location))
    model: Any = source.location
    if source.layout == "llama2c":
        model = load_llama2c(Path(source.location))
        variant = variant or LLAMA
    if variant == LLAMA and fields:
        raise ValueError(
            f"{', '.join(fields)} are options of a variant; give --variant lime with them"
        )
    if variant == LLAMA and source.layout == "llama" and isinstance(model, Path):
        raise ValueError(
            f"{model} is a LLaMA of transformers already; name a variant to convert it to"
        )
    if variant == LLAMA:
        return model if source.layout == "llama2c" else as_llama(model)
    return lookup(variant or "lime").causal_lm.from_llama(model, **fields)


def as_llama(source: Path | str) -> LlamaForCausalLM:
    """Return the LLaMA of transformers that computes what a saved plain decoder of ours does."""
    plain = AutoModelForCausalLM.from_pretrained(source)
    if not isinstance(plain, lookup("plain").causal_lm):
        raise ValueError(
            f"{source} is no plain decoder of ours but a {type(plain).__name__}: only that becomes "
            "a LLaMA of transformers"
        )
    values = {k: v for k, v in plain.config.to_dict().items() if k not in _OF_THE_FILE}
    # A checkpoint may have a head of its own though its config says that it is tied.
    values["tie_word_embeddings"] = plain.lm_head.weight is plain.get_input_embeddings().weight
    llama = LlamaForCausalLM(LlamaConfig(**values)).to(plain.dtype)
    llama.load_state_dict(plain.state_dict())
    llama.generation_config = plain.generation_config
    return llama


def _load_tokenizer(source: Source, config: Any) -> Any:
    """Return the tokenizer of a source; raise if it has more tokens than the model."""
    if source.tokenizer is None:
        return None
    if source.layout == "llama2c":
        path = Path(source.tokenizer)
        return load_tokenizer(path, config.vocab_size, config.max_position_embeddings)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.tokenizer)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"the tokenizer {source.tokenizer} cannot be read ({reason}); name another by "
            "--tokenizer"
        ) from error
    if len(tokenizer) > config.vocab_size:
        raise ValueError(
            f"the tokenizer {source.tokenizer} has {len(tokenizer):,} tokens, and the model "
            f"{config.vocab_size:,}: it is another model's"
        )
    return tokenizer
