"""The last layers of a prompt, run on its last token: those above all that store keys and values.

Where the layers from some layer on borrow what lower ones attend to, as in YOCO, nothing reads what
they compute for the tokens before the last: the next token is predicted from the last one alone.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache

from layermem.models.memories import are_looked_at
from layermem.models.seams import State, Stream


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


def cut(state: State, kwargs: Mapping[str, Any]) -> tuple[State, dict[str, Any]]:
    """Return the state, and the keywords of attention, of the last token."""
    mask = kwargs["attention_mask"]
    # A mask [B, 1, T, keys] has a row for each query; one [B, keys] is of keys alone.
    if mask is not None and mask.ndim == 4:
        mask = mask[:, :, -1:]
    return tuple(x[:, -1:] for x in state), {
        **kwargs,
        "attention_mask": mask,
        "position_embeddings": tuple(x[:, -1:] for x in kwargs["position_embeddings"]),
        "position_ids": kwargs["position_ids"][:, -1:],
    }
