"""Tokenizers: of bytes, of GPT-2's files, or any that transformers loads.

All are fast ones. Transformers is imported when a tokenizer is loaded.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

Ids: TypeAlias = np.ndarray[Any, Any]
END = "<|endoftext|>"
BYTE_VOCABULARY_SIZE = 257
"""The number of ids of the tokenizer "bytes": the bytes, and the end token."""


def load_tokenizer(name: str, revision: str | None = None) -> Any:
    """Return the tokenizer "bytes", that of a folder, or one from the hub, with an end token;
    ``revision``: branch, tag or commit of one from the hub."""
    if name == "bytes":
        # One token for each byte, named by the letter that byte-level BPE uses.
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        letters = {letter: byte for byte, letter in sorted(bytes_to_unicode().items())}
        return _fast_tokenizer(models.BPE(letters, []))
    path = Path(name).expanduser()
    vocabulary, merges = path / "vocab.json", path / "merges.txt"
    # What a saved tokenizer makes of these two files, its other files say.
    saved = any((path / f"tokenizer{kind}.json").exists() for kind in ("", "_config"))
    if vocabulary.is_file() and merges.is_file() and not saved:
        return _fast_tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision or "main")
    except (OSError, ValueError) as error:
        raise ValueError(
            f'no tokenizer at {name}; data.tokenizer is "bytes", a folder with vocab.json and '
            f"merges.txt or a saved tokenizer, or a hub name ({error})"
        ) from error
    if tokenizer.eos_token_id is None or not tokenizer.is_fast:
        raise ValueError(
            f"the tokenizer {name} needs an end token, which stands between documents, and a "
            "tokenizer.json"
        )
    # As it was saved it may cut and pad texts, which changes with its first call.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def fingerprint(tokenizer: Any) -> str:
    """Return a text that changes when the tokens of any text, or the end token, would."""
    return f"{tokenizer.eos_token_id} {tokenizer.backend_tokenizer.to_str()}"


def batch_encoder(tokenizer: Any) -> Callable[[Sequence[str]], list[Ids]]:
    """Return a function that encodes texts as ``tokenizer`` does, but special tokens as other text.
    Where every byte is its own id, the UTF-8 of a text is its encoding."""
    dtype, own = id_dtype(tokenizer), load_tokenizer("bytes")

    def encode(texts: Sequence[str]) -> list[Ids]:
        encoded = tokenizer(
            list(texts), add_special_tokens=False, split_special_tokens=True, verbose=False
        )
        return [np.asarray(ids, dtype=dtype) for ids in encoded["input_ids"]]

    def encode_bytes(texts: Sequence[str]) -> list[Ids]:
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(dtype) for text in texts]

    # With added tokens, or a class of its own, a tokenizer may encode otherwise.
    is_own = type(tokenizer) is type(own) and fingerprint(tokenizer) == fingerprint(own)
    return encode_bytes if is_own else encode


def id_dtype(tokenizer: Any) -> type[np.unsignedinteger[Any]]:
    """Return the smallest of uint16 and uint32 that holds every id."""
    return np.uint16 if len(tokenizer) <= 2**16 else np.uint32


def _fast_tokenizer(model: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, bos_token=END, pad_token=END
    )
