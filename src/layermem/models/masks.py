"""The attention mask of a forward, and when there is none because attention is causal alone.

Without a mask, sdpa is called with ``is_causal=True``. Its flash kernels need that, and on a CPU it
skips the scores that a mask would set to minus infinity. transformers looks at the values of
``position_ids`` and of the mask to find out whether it can do without one, which is not possible
under torch.compile and makes a GPU wait in eager mode. Here arguments that are None answer first.

Letters: B batch, T tokens, D width.
"""

from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_causal_mask

from layermem.models.configuration import DecoderConfig
from layermem.models.keywords import CACHE


def create_mask(
    config: DecoderConfig,
    embeds: Tensor,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    cache: Cache | None,
) -> Tensor | None:
    """Return the mask that the attention backend is given, for embeddings [B, T, D].

    ``attention_mask`` and ``position_ids`` are those of the caller. Positions that begin anew
    separate the documents of a row, so positions that the decoder counts itself are not passed.
    """
    if attention_mask is None and _is_causal_alone(config, embeds, position_ids, cache):
        return None
    mask: Tensor | None = create_causal_mask(
        config=config,
        inputs_embeds=embeds,
        attention_mask=attention_mask,
        position_ids=position_ids,
        **{CACHE: cache},
    )
    return mask


def _is_causal_alone(
    config: DecoderConfig,
    embeds: Tensor,
    position_ids: Tensor | None,
    cache: Cache | None,
) -> bool:
    """Return whether sdpa without a mask computes the right thing, if nothing is padded."""
    if config._attn_implementation != "sdpa":
        return False
    if cache is None:
        return position_ids is None
    # A dynamic cache holds what has been computed and nothing else (other caches have places that
    # are not yet filled, or an offset): a first forward sees its own tokens, one token sees all.
    if type(cache) is not DynamicCache:
        return False
    return embeds.shape[1] == 1 or cache.get_seq_length() == 0
