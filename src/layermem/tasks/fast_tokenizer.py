"""``as_fast_tokenizer`` gives a tokenizer of words transformers' interface.

It imports transformers when it is called, so that tasks can be listed and described without it.
"""

from typing import TYPE_CHECKING

from tokenizers import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def as_fast_tokenizer(words: Tokenizer) -> "PreTrainedTokenizerFast":
    """Wrap a tokenizer whose special tokens are <pad>, <end> and <unknown>."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>"
    )
