"""The keywords of a forward, none without effect: the cache under either name, the mask.

transformers 5.24 renamed ``past_key_values`` to ``cache``. Our forwards take both names and pass on
the one that the installed release uses; from then on they warn of the older name as LLaMA does. A
keyword that nothing takes is an error, so that a cache under a third name cannot be lost.

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

_OUTPUTS = {field.name for field in fields(BaseModelOutputWithPast)}
CACHE = "cache" if "cache" in _OUTPUTS else "past_key_values"
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
NOT_OURS = frozenset({"output_router_logits"})
"""Keywords of transformers' contract, of mixtures of experts, that our decoder refuses."""
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


def check_keywords(
    model: str,
    config: DecoderConfig,
    kwargs: Mapping[str, Any],
    cache: Any,
    position_ids: Tensor | None,
    attention_mask: Tensor | None,
) -> None:
    """Raise ``TypeError`` for a keyword that no part of a decoder's forward reads.

    What is read are those of ``CONTRACT``, those that the attention function names, and with the
    cache of continuous batching those of ``PAGED``. A keyword that is None was not given.
    ``ValueError``: the attention does not read what tells the texts of a row apart.
    """
    if isinstance(cache, PagedAttentionCache) and config.kv_sharing_modes:
        raise NotImplementedError(
            f"{model} has layers that borrow keys and values, which the cache of "
            "continuous batching does not keep for them: generate with another cache"
        )
    implementation = config._attn_implementation
    attention = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention)
    paged = PAGED if isinstance(cache, PagedAttentionCache) else frozenset()
    for name, value in kwargs.items():
        if value is None or name in CONTRACT or name in paged or names(attention, name):
            continue
        raise TypeError(
            f"{model} got the keyword {name!r}, which no part of its forward reads: leave it "
            "out, or correct its name"
        )
    ends = kwargs.get("cu_seq_lens_q", kwargs.get("cu_seq_lens_k"))
    is_packed = ends is not None or kwargs.get("seq_idx") is not None
    if not is_packed or paged or "flash" in (implementation or ""):
        return
    message = (
        f"attention {implementation!r} reads neither cu_seq_lens_q nor seq_idx, so that the texts "
        "of a row would attend to each other: pass position_ids that are 0 where a text begins, "
        "and neither a cache nor an attention_mask"
    )
    # The mask is made of positions that begin anew, where nothing else says what it is to be.
    if position_ids is None or cache is not None or attention_mask is not None:
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


def are_of_documents(position_ids: Tensor) -> bool:
    """Return whether positions are those of several documents, as transformers tells it.

    They are where one is not the last one and one more.
    """
    if position_ids.shape[-1] == 1:
        # A GPU need not be waited for.
        return False
    return bool(_departs(position_ids))


def _departs(position_ids: Tensor) -> Tensor:
    """Return whether a position is not the last one and one more, as a tensor."""
    return (position_ids.diff(dim=-1) != 1).any()


def check_documents(
    config: DecoderConfig,
    position_ids: Tensor | None,
    attention_mask: Tensor | None,
    cache: Cache | PagedAttentionCache | None,
) -> None:
    """Raise if tokens of several documents would attend to each other.

    Positions that begin anew keep documents apart only without a cache and without a mask of tokens
    (2-D), where attention is not flash attention, which may look at positions itself. After padding
    they may begin anew, and they may stay the same. ``PagedAttentionCache`` holds several texts.
    """
    if position_ids is None or position_ids.shape[-1] == 1:
        return
    if isinstance(cache, PagedAttentionCache) or position_ids.is_meta:
        return
    if attention_mask is None and cache is not None:
        _refuse_where(
            _departs(position_ids),
            "position_ids that do not go up one by one are those of several documents, which a "
            "cache does not keep apart: leave the cache out (use_cache=False), or give an "
            "attention_mask of 4 dimensions",
        )
    is_flash = "flash" in (config._attn_implementation or "")
    # What is traced does not know how full a cache is.
    unknown = cache is not None and hides_values(position_ids)
    if attention_mask is not None and attention_mask.ndim == 2 and not (is_flash or unknown):
        start = int(cache.get_seq_length()) if cache is not None else 0
        seen = attention_mask[:, start : start + position_ids.shape[-1]].bool()
        anew = position_ids.diff(dim=-1) < 0
        _refuse_where(
            (anew & seen[:, 1:] & seen[:, :-1]).any(),
            "position_ids begin anew within a row, as those of several documents, which an "
            "attention_mask of tokens does not keep apart: leave the mask out, or give one of "
            "4 dimensions",
        )


def check_positions(position_ids: Tensor | None, embeds: Tensor) -> None:
    """Raise if positions are not those of the tokens, one row for each text or for all."""
    if position_ids is None:
        return
    batch, length = embeds.shape[:2]
    shape = tuple(position_ids.shape)
    if shape not in ((batch, length), (1, length)):
        raise ValueError(
            f"position_ids of shape {[batch, length]} or {[1, length]} were expected, got "
            f"{list(shape)}: give one position for each token"
        )


def check_mask(attention_mask: Tensor | None, embeds: Tensor, cache: Any) -> None:
    """Raise if a mask of tokens (2-D) is not one of all tokens, those in the cache included, or if
    numbers of a mask are of the other kind: 1 and 0 for tokens, to be added for scores (4-D).

    transformers takes what is missing on the right for padding.
    """
    if attention_mask is None or isinstance(cache, PagedAttentionCache):
        return
    hidden = attention_mask.is_meta or torch._C._are_functorch_transforms_active()
    if attention_mask.dtype != torch.bool and not hidden:
        _check_kind(attention_mask)
    if attention_mask.ndim == 4 and attention_mask.shape[2] != embeds.shape[1]:
        raise ValueError(
            f"an attention_mask of 4 dimensions has a row for each of the {embeds.shape[1]} tokens "
            f"of this forward, got one of shape {list(attention_mask.shape)}, by which each would "
            "see those after it: give [batch, 1, tokens, tokens], or a mask of tokens (2-D)"
        )
    if attention_mask.ndim == 4 and attention_mask.shape[3] < embeds.shape[1]:
        raise ValueError(
            f"an attention_mask of 4 dimensions has a column for each of the {embeds.shape[1]} "
            "tokens of this forward and of those in the cache, got one of shape "
            f"{list(attention_mask.shape)}: give [batch, 1, tokens, tokens], or a mask of tokens "
            "(2-D)"
        )
    if attention_mask.ndim != 2:
        return
    batch, length, what = *embeds.shape[:2], "tokens"
    # A GPU would be waited for to know how full a cache of a fixed length is.
    if cache is not None and not (
        hides_values(embeds) or (embeds.is_cuda and cache.is_compileable)
    ):
        length += int(cache.get_seq_length())
        what = "tokens, those in the cache included,"
    rows, columns = attention_mask.shape
    if rows != batch or columns < length:
        raise ValueError(
            f"an attention_mask of {batch} rows and {length} {what} was expected, got one of shape "
            f"{list(attention_mask.shape)}: give 1 for each token that is seen, 0 for padding"
        )


def _check_kind(attention_mask: Tensor) -> None:
    """Raise if a mask has the numbers of another kind of mask; of integers 2-D ones are right."""
    if attention_mask.ndim == 2:
        if attention_mask.is_floating_point():
            _refuse_where(
                (attention_mask < 0).any(),
                "an attention_mask of tokens (2-D) has negative numbers, as one that is added to "
                "scores: give 1 for each token that is seen, 0 for padding",
            )
        return
    message = (
        f"an attention_mask of {attention_mask.ndim} dimensions is added to scores, and this "
        f"one of {attention_mask.dtype} would hide nothing, as if made of 1 and 0: give "
        "booleans (.bool()), or 0 for what is seen and a large negative number for the rest"
    )
    if not attention_mask.is_floating_point():
        raise ValueError(message)
    # Looked at once, as a GPU is waited for.
    _refuse_where((attention_mask >= 0).all() & (attention_mask > 0).any(), message)


def names(reader: Callable[..., Any], name: str) -> bool:
    """Return whether a function has a parameter of this name."""
    parameter = inspect.signature(reader).parameters.get(name)
    return parameter is not None and parameter.kind is not parameter.VAR_KEYWORD


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
