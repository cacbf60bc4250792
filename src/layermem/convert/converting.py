"""Convert a checkpoint of another layout: find out which it is, load it, and save it anew.

a folder of transformers' LLaMA, or its hub name     a model of a variant
a folder of our plain decoder                        a model of a variant, or a LLaMA
a folder of LIMe's released code                     LIMe
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from layermem.convert.released_lime import find_released_lime, load_released_lime
from layermem.models.pretrained import FILE_FIELDS
from layermem.models.registry import lookup
from layermem_base.files import new_folder

logger = logging.getLogger(__name__)

LLAMA = "llama"
"""What to convert to for a LLaMA of transformers, in place of a variant."""


@dataclass(frozen=True, kw_only=True)
class Converted:
    """What was written. Tied parameters count once."""

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
) -> Converted:
    """Load a checkpoint of any of the layouts above and save it in the new folder ``target``.

    ``variant``: the model to make of a LLaMA, which starts with the LLaMA's logits; None: "lime".
    "llama": transformers' LLaMA, of our plain decoder. ``fields`` are further fields of a
    variant's config.
    ``tokenizer``: where to read the tokenizer; None: where the checkpoint is.
    """
    path, fields = Path(source).expanduser(), dict(fields or {})
    if variant == LLAMA and fields:
        raise ValueError(f"{', '.join(fields)} are fields of a variant, got {variant!r}: name one")
    # Created first, so that a folder that cannot be is said before a model is loaded.
    with new_folder(target) as folder:
        model = _load_folder(path, source, variant, fields)
        words = _load_tokenizer(path, source, tokenizer, model.config)
        weights = model.state_dict()
        if damaged := [name for name in weights if not weights[name].isfinite().all()]:
            raise ValueError(f"{source} is damaged: {damaged[0]} holds numbers that are not finite")
        # Its card says so.
        model.config.name_or_path = source
        model.save_pretrained(folder)
        if words is not None:
            words.save_pretrained(folder)
    return Converted(
        folder=target,
        model_class=type(model).__name__,
        parameters=model.num_parameters(),
        has_tokenizer=words is not None,
    )


def _load_folder(path: Path, source: str, variant: str | None, fields: dict[str, Any]) -> Any:
    """Return the model of a folder, or of the hub, as it is to be saved."""
    if released := find_released_lime(path):
        logger.info("found a checkpoint of LIMe's released code: %s", released)
        if variant not in (None, "lime") or fields:
            raise ValueError(
                f"the routers of {path} are trained, and read all sources: leave the variant "
                f"{variant!r} and the fields {fields} out"
            )
        return load_released_lime(released)
    logger.info("found a saved model: %s", source)
    place = path if path.exists() else source
    if variant == LLAMA:
        return as_llama(place)
    return lookup(variant or "lime").causal_lm.from_llama(place, **fields)


def as_llama(source: Path | str) -> LlamaForCausalLM:
    """Return the LLaMA of transformers that computes what a saved plain decoder of ours does."""
    plain = AutoModelForCausalLM.from_pretrained(source)
    if not isinstance(plain, lookup("plain").causal_lm):
        raise ValueError(
            f"{source} is no plain decoder of ours but a {type(plain).__name__}: only that becomes "
            "a LLaMA of transformers"
        )
    values = {name: v for name, v in plain.config.to_dict().items() if name not in FILE_FIELDS}
    # A checkpoint may have a head of its own though its config says that it is tied.
    values["tie_word_embeddings"] = plain.lm_head.weight is plain.get_input_embeddings().weight
    llama = LlamaForCausalLM(LlamaConfig(**values)).to(plain.dtype)
    llama.load_state_dict(plain.state_dict())
    llama.generation_config = plain.generation_config
    return llama


def _load_tokenizer(path: Path, source: str, given: str | None, config: Any) -> Any:
    """Return the tokenizer of a folder or of the hub; raise if it has more tokens than the model.

    None: there is none in the folder.
    """
    names = ("tokenizer*", "vocab.json")
    if given is None and path.exists() and not any(any(path.glob(name)) for name in names):
        return None
    tokenizer = AutoTokenizer.from_pretrained(given or (path if path.exists() else source))
    if len(tokenizer) > config.vocab_size:
        raise ValueError(
            f"the tokenizer {given or source} has {len(tokenizer):,} tokens, and the model "
            f"{config.vocab_size:,}: it is another model's"
        )
    return tokenizer
