"""The inputs of a forward: their checks, the name of the cache, and the mask of attention.

transformers 5.24 renamed ``past_key_values`` to ``cache``. Our forwards take both names and pass on
the one that the installed release uses. A keyword that nothing takes is an error, so that a cache
under a third name cannot be lost.

Without a mask, sdpa is called with ``is_causal=True``. Its flash kernels need that, and on a CPU it
skips the scores that a mask would set to minus infinity. transformers looks at the values of
``position_ids`` and of the mask to find out whether it can do without one, which is not possible
under torch.compile and makes a GPU wait in eager mode. Here arguments that are None answer first.

Letters: B batch, T tokens, D width.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.deprecation import deprecate_kwarg

from layermem.models.configuration import DecoderConfig
from layermem.models.layers import eager_attention

CACHE = (
    "cache"
    if "cache" in {field.name for field in fields(BaseModelOutputWithPast)}
    else "past_key_values"
)
"""What the installed transformers calls the cache, in its arguments and outputs."""
takes_older_name = deprecate_kwarg(
    "past_key_values",
    # A version that is reached already: without a warning, before transformers gives one.
    "5.40.0" if CACHE == "cache" else "5.0.0",
    new_name="cache",
    raise_if_both_names=True,
)
"""Lets a forward take the cache as ``past_key_values`` too."""

CONTRACT = frozenset(
    {
        # Read by transformers' decorators around the forward.
        *("output_attentions", "output_hidden_states", "return_dict"),
        *("debug_io", "debug_io_dir", "prune_layers"),
        # Read by the loss; Trainer passes it to decoders without one too.
        "num_items_in_batch",
        # Read by the mask and by attention.
        "is_causal",
        # Read by flash attention; other backends separate texts by position_ids.
        *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"),
        # Read by state-space models, beside position_ids that say the same.
        "seq_idx",
    }
)
"""Keywords of every transformers model that our forwards pass on."""
PAGED = frozenset(
    {
        *("block_table", "read_index", "write_index", "logits_indices", "logits_processor_args"),
        # Before transformers 5.23.
        *("max_seqlen_q", "max_seqlen_k"),
    }
)
"""What continuous batching passes beside its cache, which reads some of it."""
LOSS = frozenset({"num_items_in_batch", "shift_labels", "ignore_index"})
"""What transformers' loss of a causal LM takes beside logits, labels and vocab_size."""


def check_inputs(
    config: DecoderConfig,
    embeds: Tensor,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    cache: Cache | PagedAttentionCache | None,
    kwargs: Mapping[str, Any],
) -> None:
    """Raise for a keyword that nothing reads, and where tokens would see what they must not.

    ``kwargs`` are those that the forward does not name. Read are those of ``CONTRACT``, those that
    the attention function names, and with the cache of continuous batching those of ``PAGED``. One
    that is None was not given.
    """
    paged = isinstance(cache, PagedAttentionCache)
    implementation = config._attn_implementation or ""
    attention = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention)
    read = CONTRACT | PAGED if paged else CONTRACT
    for name, value in kwargs.items():
        if not (value is None or name in read or names(attention, name)):
            raise TypeError(
                f"got the keyword {name!r}, which no part of the forward reads: leave it out, or "
                "correct its name"
            )
    if isinstance(cache, PagedAttentionCache):
        if config.kv_sharing_modes:
            raise NotImplementedError(
                "the cache of continuous batching does not keep what layers borrow of others: "
                "generate with another cache"
            )
        # It holds several texts, and makes its own mask.
        return
    # What is traced does not know how full a cache is, and a GPU would be waited for.
    hidden = cache is not None and (
        hides_values(embeds) or (embeds.is_cuda and cache.is_compileable)
    )
    past = 0 if cache is None or hidden or attention_mask is None else int(cache.get_seq_length())
    if attention_mask is not None:
        _check_mask(attention_mask, embeds, past)
    if "flash" not in implementation:
        _check_packed(kwargs, position_ids, alone=cache is None and attention_mask is None)
    if position_ids is not None:
        # Flash attention may look at positions itself.
        looks = not (hidden or "flash" in implementation)
        seen = attention_mask[:, past:] if attention_mask is not None and looks else None
        stores = cache is not None and attention_mask is None
        _check_positions(position_ids, embeds, seen, stores=stores)


def _check_positions(
    position_ids: Tensor, embeds: Tensor, seen: Tensor | None, *, stores: bool
) -> None:
    """Raise where positions would be those of several documents that nothing keeps apart.

    ``seen``: a mask, from the first of these tokens on; ``stores``: there is a cache, and no mask.
    """
    if position_ids.shape[-1] != embeds.shape[1]:
        raise ValueError(
            f"position_ids must have one for each of {embeds.shape[1]} tokens, got "
            f"{list(position_ids.shape)}"
        )
    if position_ids.is_meta or position_ids.shape[-1] == 1:
        return
    if stores:
        _refuse_where(
            _departs(position_ids),
            "position_ids that do not go up one by one are those of several documents, which a "
            "cache does not keep apart: leave the cache out (use_cache=False), or give an "
            "attention_mask of 4 dimensions",
        )
    if seen is not None and seen.ndim == 2:
        # They may begin anew after padding.
        seen = seen[:, : position_ids.shape[-1]].bool()
        anew = (position_ids.diff(dim=-1) < 0) & seen[:, 1:] & seen[:, :-1]
        _refuse_where(
            anew.any(),
            "position_ids begin anew within a row, as those of several documents, which an "
            "attention_mask of tokens does not keep apart: leave the mask out, or give one of 4 "
            "dimensions",
        )


def _check_mask(attention_mask: Tensor, embeds: Tensor, past: int) -> None:
    """Raise if a mask of tokens (2-D) is not one of all tokens: what is missing on the right is
    taken for padding. One that is added to scores is not of integers, and has a row for each."""
    is_added = attention_mask.is_floating_point()
    if attention_mask.ndim != 2:
        is_of_kind = is_added or attention_mask.dtype == torch.bool
        if not is_of_kind or attention_mask.shape[-2] != embeds.shape[1]:
            raise ValueError(
                f"an attention_mask of {attention_mask.ndim} dimensions is added to scores: give "
                f"booleans (.bool()) with a row for each of the {embeds.shape[1]} tokens, got "
                f"{attention_mask.dtype} and {list(attention_mask.shape)}"
            )
        return
    if is_added and not attention_mask.is_meta:
        _refuse_where(
            (attention_mask < 0).any(),
            "an attention_mask of tokens (2-D) has negative numbers, as one that is added to "
            "scores: give 1 for each token that is seen, 0 for padding",
        )
    (batch, length), (rows, columns) = embeds.shape[:2], attention_mask.shape
    if rows != batch or columns < past + length:
        raise ValueError(
            f"an attention_mask of {batch} rows and {past + length} tokens, those in the cache "
            f"included, was expected, got one of shape {list(attention_mask.shape)}: give 1 for "
            "each token that is seen, 0 for padding"
        )


def _check_packed(kwargs: Mapping[str, Any], position_ids: Tensor | None, *, alone: bool) -> None:
    """Raise unless positions say what ``cu_seq_lens_q`` and ``seq_idx`` do: where texts begin.

    Without flash attention nothing else does. ``alone``: there is neither a cache nor a mask, so
    that the mask is made of the positions.
    """
    ends = kwargs.get("cu_seq_lens_q", kwargs.get("cu_seq_lens_k"))
    if ends is None and kwargs.get("seq_idx") is None:
        return
    message = (
        "this attention reads neither cu_seq_lens_q nor seq_idx, so that the texts of a row would "
        "attend to each other: pass position_ids that are 0 where a text begins, and neither a "
        "cache nor an attention_mask"
    )
    if position_ids is None or not alone:
        raise ValueError(message)
    if ends is not None:
        _refuse_where(position_ids.flatten()[ends[:-1].long()].any(), message)


def _refuse_where(wrong: Tensor, message: str) -> None:
    """Raise ``ValueError`` if ``wrong``, a boolean tensor of no dimensions, is true.

    Numbers that cannot be looked at yet are looked at by what is compiled or captured, as it runs:
    it raises ``RuntimeError``, on a GPU as an assertion of the device does.
    """
    if hides_values(wrong):
        torch._assert_async(~wrong, message)
    elif wrong:
        raise ValueError(message)


def hides_values(x: Tensor) -> bool:
    """Return whether the numbers of a tensor cannot be looked at: code is being compiled, or what
    is launched is being captured in a CUDA graph."""
    return torch.compiler.is_compiling() or (x.is_cuda and torch.cuda.is_current_stream_capturing())


def _departs(position_ids: Tensor) -> Tensor:
    """Return whether a position is not the last one and one more, as a tensor."""
    return (position_ids.diff(dim=-1) != 1).any()


def may_be_packed(attention_mask: Tensor | None, position_ids: Tensor | None) -> bool:
    """Return whether the rows may hold several documents, as transformers tells it: without a
    mask, a position is not the last one and one more."""
    if attention_mask is not None or position_ids is None or position_ids.shape[-1] == 1:
        return False
    return hides_values(position_ids) or bool(_departs(position_ids))


def names(reader: Callable[..., Any], name: str) -> bool:
    """Return whether a function has a parameter of this name."""
    parameter = inspect.signature(reader).parameters.get(name)
    return parameter is not None and parameter.kind is not parameter.VAR_KEYWORD


def update_cache(
    cache: Cache | PagedAttentionCache | None,
    key: Tensor,
    value: Tensor,
    layer_idx: int,
    kwargs: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """Write a layer's keys and values into the cache; return those of all its tokens.

    ``kwargs`` are those of attention, which the cache of continuous batching reads and changes.
    """
    if cache is None:
        return key, value
    if not isinstance(cache, PagedAttentionCache):
        key, value = cache.update(key, value, layer_idx)
    elif CACHE == "cache":
        key, value = cache.update(key, value, layer_idx, kwargs=kwargs)
    else:
        # Before transformers 5.24 attention itself writes into it.
        kwargs["cache"] = cache
    return key, value


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
    if attention_mask is None and config._attn_implementation == "sdpa":
        # A dynamic cache holds what has been computed and nothing else (other caches have places
        # that are not yet filled, or an offset): a first forward sees its own tokens, one token
        # sees all.
        if cache is None and position_ids is None:
            return None
        if (
            isinstance(cache, DynamicCache)
            and type(cache) is DynamicCache
            and (embeds.shape[1] == 1 or cache.get_seq_length() == 0)
        ):
            return None
    mask: Tensor | None = create_causal_mask(
        config=config,
        inputs_embeds=embeds,
        attention_mask=attention_mask,
        position_ids=position_ids,
        **{CACHE: cache},
    )
    return mask
