"""The last layers of a prompt, run on its last token: those above all that other tokens read.

Where the layers from some layer on borrow what lower ones attend to, as in YOCO, or have keys and
values of a state below, as in ``midpoint``, nothing reads what they compute for the tokens before
the last: the next token is predicted from the last one alone.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache

from layermem.models.memories import are_looked_at
from layermem.models.seams import OwnLayerMemory, State, Stream


def needs_residual(layer: Any) -> bool:
    """Return whether a layer makes keys and values of the residual, or a memory by queries."""
    is_aside = layer.attn_connection.kv_aside and type(layer.self_attn.memory) is OwnLayerMemory
    return not (layer.lenders or is_aside)


def may_cut(
    decoder: Any, layers: Iterable[nn.Module], mask: Any, cache: Cache, kwargs: Mapping[str, Any]
) -> bool:
    """Return whether these layers may run on the last token alone.

    They may where the state is the residual, all masks can be cut, and nobody looks at the layers'
    outputs.
    """
    # Without a mask one query attends to all that there is, and a cache of a fixed length has
    # places that are empty.
    can_be_cut = isinstance(mask, Tensor) or (mask is None and not cache.is_compileable)
    return (
        can_be_cut
        and type(decoder.stream) is Stream
        and not (decoder.training or decoder._forward_hooks or decoder._forward_pre_hooks)
        and not are_looked_at(decoder.config, (decoder.norm, *layers), kwargs)
    )


def cut(layer: Any, state: State, kwargs: Mapping[str, Any]) -> tuple[State, dict[str, Any]]:
    """Return the state before a layer, and the keywords of attention, of the last token.

    What keys and values are made of stays whole, and so do the angles of their positions.
    """
    mask = kwargs["attention_mask"]
    # A mask [B, 1, T, keys] has a row for each query; one [B, keys] is of keys alone.
    if mask is not None and mask.ndim == 4:
        mask = mask[:, :, -1:]
    n_cut = 1 if layer.attn_connection.kv_aside else len(state)
    return (*(x[:, -1:] for x in state[:n_cut]), *state[n_cut:]), {
        **kwargs,
        "attention_mask": mask,
        "position_ids": kwargs["position_ids"][:, -1:],
    }
