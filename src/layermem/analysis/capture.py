"""What a model holds inside, batch by batch: hidden states, values, routed values, layer by layer.

Our variants and Hugging Face's decoders alike. Forward hooks copy what passes to the CPU and let go
of it with the batch, so memory is bounded by one batch; outputs are not altered.

Letters: B batch, T tokens, D model width, G key-value heads, E head width.
It does not know: what is computed of the arrays.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from layermem.models.memories import active_memories

Kind = Literal["hidden", "values", "routed"]
KINDS: tuple[Kind, ...] = ("hidden", "values", "routed")
Array = np.ndarray


@dataclass(frozen=True, kw_only=True)
class Captured:
    """One batch. Arrays are float32; a kind that was not asked for is empty."""

    ids: Array
    """Token ids [B, T]."""
    mask: Array
    """Which tokens count, [B, T]; False: padding."""
    hidden: Sequence[Array]
    """Of each layer: what it hands on, [B, T, D]."""
    values: Sequence[Array]
    """Of each layer: the values it makes, all heads side by side, [B, T, G * E]."""
    routed: Sequence[Array]
    """Of each layer: the values its attention reads. Where nothing is routed, the same."""


def capture(
    model: PreTrainedModel,
    batches: Iterable[Tensor | Mapping[str, Tensor]],
    *,
    kinds: Sequence[Kind] = KINDS,
) -> Iterator[Captured]:
    """Yield what a model holds inside for each batch.

    A batch is token ids [B, T], or what a tokenizer returns (padded, with its mask). The model runs
    in eval mode, without gradients or head, and is left in the mode it was in.
    """
    if unknown := sorted(set(kinds) - set(KINDS)):
        raise ValueError(f"unknown kinds {', '.join(unknown)}; there are {', '.join(KINDS)}")
    layers = decoder_layers(model)
    found: dict[tuple[str, int], Array] = {}
    was_training = model.training
    model.eval()
    with ExitStack() as hooks:
        for i, layer in enumerate(layers):
            for handle in _hooks(layer, i, model.config, kinds, found):
                hooks.callback(handle.remove)
        hooks.callback(model.train, was_training)
        device = next(model.parameters()).device
        for batch in batches:
            inputs = dict(batch) if isinstance(batch, Mapping) else {"input_ids": batch}
            inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
            found.clear()
            # What the layers hold does not depend on the head, whose logits are large.
            with torch.inference_mode():
                model.base_model(**inputs, use_cache=False)
            yield _captured(inputs, found, len(layers), kinds)


def sequences_at_once(model: PreTrainedModel, length: int, memory: int = 2**27) -> int:
    """Return how many sequences a batch may hold so that its arrays, two kinds, take ``memory``."""
    numbers = 2 * model.config.num_hidden_layers * model.config.hidden_size * length
    return max(1, memory // (4 * numbers))


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """Return the layers of a decoder: its longest list of modules."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise ValueError(f"{type(model).__name__} has no list of layers; capture reads decoders")
    return max(lists, key=len)


def _hooks(
    layer: nn.Module,
    index: int,
    config: Any,
    kinds: Sequence[Kind],
    found: dict[tuple[str, int], Array],
) -> Iterator[Any]:
    """Register what records a layer."""

    def keep_hidden(module: nn.Module, given: Any, made: Any) -> None:
        found["hidden", index] = _array(made[0] if isinstance(made, tuple) else made)

    if "hidden" in kinds:
        yield layer.register_forward_hook(keep_hidden)
    if not {"values", "routed"} & set(kinds):
        return
    memory = next(iter(active_memories(layer)), None)
    if memory is not None:

        def keep_both(module: nn.Module, given: Any, made: Any) -> None:
            if "values" in kinds:
                found["values", index] = _array(_flat(given[2]))
            if "routed" in kinds:
                found["routed", index] = _array(_flat(made[1]))

        yield memory.register_forward_hook(keep_both)
        return
    projection, values_of = _projection(layer, index, config)

    def keep_values(module: nn.Module, given: Any, made: Tensor) -> None:
        array = _array(values_of(made))
        found.update({(kind, index): array for kind in ("values", "routed") if kind in kinds})

    yield projection.register_forward_hook(keep_values)


def _projection(
    layer: nn.Module, index: int, config: Any
) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """Return the module that makes a layer's values, and what of its output they are."""
    named: dict[str, Any] = {
        name.rpartition(".")[2]: module for name, module in layer.named_modules()
    }
    if "v_proj" in named:
        return named["v_proj"], lambda made: made
    if "qkv_proj" in named and "o_proj" in named:
        # Phi-3: queries as wide as what o_proj takes; keys and values share the rest.
        queries = named["o_proj"].in_features
        return named["qkv_proj"], lambda made: made[..., queries:].chunk(2, dim=-1)[1]
    for name in ("c_attn", "query_key_value"):
        values_of = _fused(name, named[name], config) if name in named else None
        if values_of is not None:
            return named[name], values_of
    raise ValueError(
        f"layer {index} ({type(layer).__name__}) has no projection of values that is known here: "
        "v_proj, qkv_proj, or, laid out as GPT-2, GPT-BigCode, GPT-NeoX or Falcon do, c_attn or "
        'query_key_value; ask for kinds=("hidden",)'
    )


def _fused(name: str, module: Any, config: Any) -> Callable[[Tensor], Tensor] | None:
    """Return what of a projection of queries, keys and values the values are; None: unknown."""
    heads, family = config.num_attention_heads, config.model_type
    width = config.hidden_size // heads
    whole = module.nf if isinstance(module, Conv1D) else module.out_features
    groups, rest = divmod(whole - heads * width, 2 * width)
    if rest or (groups != heads and family not in ("gpt_bigcode", "falcon")):
        return None
    if name == "c_attn" and (family != "gpt_bigcode" or groups == 1):
        # GPT-2, and GPT-BigCode of one key-value head: queries, keys, values side by side.
        return lambda made: made[..., -groups * width :]
    # GPT-NeoX: head by head; Falcon: each key-value head after its query heads.
    return lambda made: made.unflatten(-1, (groups, -1, width))[..., -1, :].flatten(-2)


def _captured(
    inputs: Mapping[str, Tensor],
    found: Mapping[tuple[str, int], Array],
    depth: int,
    kinds: Sequence[Kind],
) -> Captured:
    by_kind = {
        kind: [found[kind, i] for i in range(depth)] if kind in kinds else [] for kind in KINDS
    }
    ids = inputs["input_ids"].cpu().numpy()
    given = inputs.get("attention_mask")
    mask = np.ones(ids.shape, dtype=bool) if given is None else given.bool().cpu().numpy()
    return Captured(ids=ids, mask=mask, **by_kind)


def _flat(values: Tensor) -> Tensor:
    """[B, G, T, E] to [B, T, G * E]."""
    return values.transpose(1, 2).flatten(2)


def _array(tensor: Tensor) -> Array:
    array: Array = tensor.detach().float().cpu().numpy()
    return array
