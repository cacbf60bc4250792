"""Tokenizer and config of a model of transformers that learns records, and whether they fit.

It does not know: records, the model's weights.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from layermem.config import Run
from layermem.models.checkpoints import check_path

# Models whose positions are counted from the id of the padding token on.
_OFFSET_POSITIONS = {
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "roberta-prelayernorm",
}


def load_host_tokenizer(run: Run) -> Any:
    """Return the tokenizer of the model."""
    host = run.host
    if run.records.from_config is None:
        check_path(str(host.model))
    try:
        return AutoTokenizer.from_pretrained(host.model, revision=host.revision or "main")
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{host.model} has no tokenizer ({str(error).splitlines()[0]}); save one into it: "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        ) from error


def load_host_config(run: Run) -> Any:
    """Return the config of the pretrained model, or that of a file for random weights."""
    file = run.records.from_config
    if file is None:
        check_path(str(run.host.model))
        return AutoConfig.from_pretrained(run.host.model, revision=run.host.revision or "main")
    try:
        fields = json.loads(Path(file).expanduser().read_text(encoding="utf-8"))
        return AutoConfig.for_model(fields.pop("model_type"), **fields)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{file} is no config of a model of transformers, a JSON object with model_type and "
            f"sizes ({type(error).__name__}: {error})"
        ) from error


def check_fits(run: Run, config: Any, tokenizer: Any) -> None:
    """Raise if the model has no place for what the tokenizer makes of the records."""
    text, model = config.get_text_config(), run.records.from_config or run.host.model
    if len(tokenizer) > text.vocab_size:
        raise ValueError(
            f"{model} has {text.vocab_size} token ids, and its tokenizer {len(tokenizer)}: they "
            "do not belong together"
        )
    own, theirs = config.pad_token_id, tokenizer.pad_token_id
    if None not in (own, theirs) and own != theirs and run.records.from_config is None:
        raise ValueError(
            f"{model} takes token {own} for padding, and its tokenizer {theirs}: save the "
            "tokenizer that it was trained with"
        )
    offset = padding_of(tokenizer) + 1 if config.model_type in _OFFSET_POSITIONS else 0
    longest = getattr(text, "max_position_embeddings", None)
    if isinstance(longest, int) and run.records.max_length > longest - offset:
        raise ValueError(
            f"records.max_length={run.records.max_length} is more than {model} reads, "
            f"{longest - offset} tokens (max_position_embeddings): lower it"
        )


def check_known(sequences: Iterable[list[int]], tokenizer: Any, model: str) -> None:
    """Raise if most tokens are unknown: transformers makes a tokenizer up where there is none.

    ``sequences``: ids of the training records.
    """
    tokens = [token for ids in sequences for token in ids]
    unknown, special_ids = tokens.count(tokenizer.unk_token_id), set(tokenizer.all_special_ids)
    special = sum(token in special_ids for token in tokens) - unknown
    if 2 * unknown > len(tokens) - special:
        raise ValueError(
            f"the tokenizer of {model} knows {len(tokens) - special - unknown} of "
            f"{len(tokens) - special} tokens of the training records: it is none of theirs, or "
            "there is none; save one there: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )


def padding_of(tokenizer: Any) -> int:
    """Return the id that sequences are padded with: that of the end, where there is no other."""
    ids = (tokenizer.pad_token_id, tokenizer.eos_token_id)
    found = next((each for each in ids if each is not None), None)
    if found is None:
        raise ValueError(
            "the tokenizer has neither a padding token nor an end token; give it one: "
            "tokenizer.pad_token = ..., tokenizer.save_pretrained(...)"
        )
    return int(found)


def joins_pairs(tokenizer: Any) -> bool:
    """Return whether a tokenizer puts a special token between two texts."""
    special = tokenizer("a", "a", return_special_tokens_mask=True)["special_tokens_mask"]
    return 1 in special[special.index(0) : len(special) - special[::-1].index(0)]
