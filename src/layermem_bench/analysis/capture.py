"""Capture hidden states, values and routed values of every layer of a decoder, batch by batch.

Forward hooks copy them to the CPU, of any decoder, bare or with attached memory; those of a batch
are dropped when the next one starts.

Letters: B batch, T tokens, D model width, G key-value heads, E head width.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from layermem.models.attention import Attention
from layermem.models.decoder import Decoder
from layermem.models.memories import active_memories

Kind = Literal["hidden", "values", "routed"]
KINDS: tuple[Kind, ...] = ("hidden", "values", "routed")
Array = np.ndarray


@dataclass(frozen=True, kw_only=True)
class CapturedBatch:
    """Activations of one batch in float32; a kind that was not requested is empty."""

    ids: Array
    """Token ids [B, T]."""
    mask: Array
    """Attention mask [B, T]; False: padding."""
    hidden: Sequence[Array]
    """Output of each layer [B, T, D]."""
    values: Sequence[Array]
    """Each layer's own values as attention would read them without routing, its heads concatenated
    [B, T, G * E]; of a layer that borrows, those that the last of its lenders reads."""
    routed: Sequence[Array]
    """The values that each layer's attention reads [B, T, G * E]; without routing, its own."""


class _Activations(dict[tuple[str, int], Array]):
    """What layers compute in one forward, which is the block that enters it; of others nothing."""

    is_open = False

    def __enter__(self) -> None:
        self.clear()
        self.is_open = True

    def __exit__(self, *_: Any) -> None:
        self.is_open = False

    def keep(self, place: tuple[str, int], tensor: Tensor) -> None:
        """Keep what a layer computes; raise if this forward has run it before."""
        if not self.is_open:
            return
        if place in self:
            raise ValueError(
                f"layer {place[1]} runs several times in a forward, of which the last alone would "
                "be captured: give a decoder whose layers run once"
            )
        # A copy even where it is float32 on the CPU already: models change tensors in place later.
        self[place] = tensor.detach().to("cpu", torch.float32, copy=True).numpy()


def capture(
    model: PreTrainedModel,
    batches: Iterable[Tensor | Mapping[str, Tensor]],
    *,
    kinds: Sequence[Kind] = KINDS,
) -> Iterator[CapturedBatch]:
    """Run a model on each batch and yield the activations of its layers.

    A batch is token ids [B, T], or a tokenizer's output (padded, with its mask). The model runs in
    eval mode, without gradients and without its head; afterwards it is in its former mode.
    """
    if unknown := sorted(set(kinds) - set(KINDS)):
        raise ValueError(f"unknown kinds {', '.join(unknown)}; there are {', '.join(KINDS)}")
    layers = decoder_layers(model)
    degree = getattr(getattr(model.config, "distributed_config", None), "tp_size", None) or 1
    if degree > 1 and {"values", "routed"} & set(kinds):
        raise ValueError(
            f"tp_size={degree}: each process has the values of some heads only; load the "
            'model without a tp_plan, or capture kinds=("hidden",)'
        )
    activations = _Activations()
    was_training = model.training
    model.eval()
    with ExitStack() as hooks:
        for i, layer in enumerate(layers):
            for handle in _register_hooks(layer, i, model.config, kinds, activations):
                hooks.callback(handle.remove)
        hooks.callback(model.train, was_training)
        device = next(model.parameters()).device
        for batch in batches:
            inputs = dict(batch) if isinstance(batch, Mapping) else {"input_ids": batch}
            inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
            # The base model alone: the head's logits are large and no layer depends on them.
            with torch.inference_mode(), activations:
                model.base_model(**inputs, use_cache=False)
            ids, mask = inputs["input_ids"], inputs.get("attention_mask")
            mask = torch.ones_like(ids) if mask is None else mask
            by_kind = {
                kind: [activations[kind, i] for i in range(len(layers)) if kind in kinds]
                for kind in KINDS
            }
            yield CapturedBatch(ids=ids.cpu().numpy(), mask=mask.bool().cpu().numpy(), **by_kind)


def sequences_at_once(model: PreTrainedModel, length: int, memory: int = 2**27) -> int:
    """Return how many sequences fit in a batch if two kinds of arrays may take ``memory`` bytes."""
    numbers = 2 * model.config.num_hidden_layers * model.config.hidden_size * length
    return max(1, memory // (4 * numbers))


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """Return the layers of a decoder: of another library's the first ``ModuleList`` of its depth.

    A layer may have longer lists inside, such as experts; without a depth it is the longest list.
    """
    for module in model.modules():
        if isinstance(module, Decoder):
            return module.layers
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise ValueError(f"{type(model).__name__} has no list of layers; give a decoder")
    config = getattr(model, "config", None)
    depth = getattr(config and config.get_text_config(), "num_hidden_layers", None)
    return next((each for each in lists if len(each) == depth), max(lists, key=len))


def _register_hooks(
    layer: nn.Module,
    index: int,
    config: Any,
    kinds: Sequence[Kind],
    activations: _Activations,
) -> Iterator[Any]:
    """Register the hooks that copy a layer's activations; yield their handles."""

    def keep(kind: Kind, tensor: Tensor) -> None:
        activations.keep((kind, index), tensor)

    def keep_hidden(module: nn.Module, inputs: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        if hidden.ndim != 3:
            raise ValueError(
                f"layer {index} ({type(module).__name__}) returns {list(hidden.shape)}, expected a "
                'hidden state [B, T, D]; values alone may work, with kinds=("values", "routed")'
            )
        keep("hidden", hidden)

    # A memory is called with (query, slots), the own slot last, and returns (key, value), both
    # [B, G, T, E].
    def keep_values(module: nn.Module, inputs: Any, output: Any) -> None:
        if "values" in kinds:
            keep("values", inputs[1][-1][1].transpose(1, 2).flatten(2))
        if "routed" in kinds:
            keep("routed", output[1].transpose(1, 2).flatten(2))

    if "hidden" in kinds:
        yield layer.register_forward_hook(keep_hidden)
    if not {"values", "routed"} & set(kinds):
        return
    if any(isinstance(module, Attention) for module in layer.modules()):
        yield active_memories(layer)[0].register_forward_hook(keep_values)
    else:
        yield from _hook_values(layer, index, config, kinds, keep)


def _hook_values(
    layer: nn.Module,
    index: int,
    config: Any,
    kinds: Sequence[Kind],
    keep: Callable[[Kind, Tensor], None],
) -> Iterator[Any]:
    """Register the hooks that keep the values of another decoder's layer; yield their handles."""
    clip = getattr(config.get_text_config(), "clip_qkv", None)

    def keep_clipped(kind: Kind, values: Tensor) -> None:
        # OLMo clips what its projection returns, after the hooks.
        keep(kind, values if clip is None else values.clamp(-clip, clip))

    attention = next((each for each in layer.modules() if _has_value_norm(each)), None)
    if attention is None:
        projection, select_values = _find_value_projection(layer, index, config)

        def keep_selected(kind: Kind, output: Tensor) -> None:
            keep_clipped(kind, select_values(output))

        yield from _hook_projection(layer, projection, kinds, keep_selected)
    else:
        yield from _hook_value_norm(attention, kinds, keep_clipped)


def _has_value_norm(module: nn.Module) -> bool:
    return isinstance(getattr(module, "v_norm", None), nn.Module)


def _hook_value_norm(
    attention: Any, kinds: Sequence[Kind], keep: Callable[[Kind, Tensor], None]
) -> Iterator[Any]:
    """Register the hooks that keep the values of attention that normalises them (Gemma 3n, 4).

    Its ``v_norm`` is called with the heads [B, T, G, E] that attention will read, routed ones if
    memory is attached to the projection; then own values are read before the memory's hook.
    """
    norm = attention.v_norm

    def keep_own(module: nn.Module, inputs: Any, output: Tensor) -> None:
        # Without the norm's hooks, which keep routed values.
        heads = norm.forward(output.unflatten(-1, (-1, attention.head_dim)))
        keep("values", heads.flatten(2))

    def keep_normed(kind: Kind, module: nn.Module, inputs: Any, output: Tensor) -> None:
        keep(kind, output.flatten(2))

    if "routed" in kinds:
        yield norm.register_forward_hook(partial(keep_normed, "routed"))
    if "values" in kinds and getattr(attention, "v_proj", None) is not None:
        yield attention.v_proj.register_forward_hook(keep_own, prepend=True)
    elif "values" in kinds:
        # Its values are its keys before their norm; memory cannot be attached to it.
        yield norm.register_forward_hook(partial(keep_normed, "values"))


def _hook_projection(
    layer: nn.Module,
    projection: nn.Module,
    kinds: Sequence[Kind],
    keep: Callable[[Kind, Tensor], None],
) -> Iterator[Any]:
    """Register the hooks that keep the values of another decoder's layer; yield their handles.

    Memory that is attached to it replaces what the projection returns, by a forward hook: own
    values are read before that hook, routed values after it.
    """

    def keep_values(kind: Kind, module: nn.Module, inputs: Any, output: Tensor) -> None:
        keep(kind, output)

    if "values" in kinds:
        yield projection.register_forward_hook(partial(keep_values, "values"), prepend=True)
    if "routed" in kinds:
        after = projection.register_forward_hook(partial(keep_values, "routed"))
        yield after

        # An attachment moves its hook to a projection that is new (as LoRA's) only when a forward
        # begins, which is before the layer runs.
        def stay_last(module: nn.Module, inputs: Any) -> None:
            hooks = projection._forward_hooks
            hooks[after.id] = hooks.pop(after.id)

        yield layer.register_forward_pre_hook(stay_last)


def _find_value_projection(
    layer: nn.Module, index: int, config: Any
) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """Return the module that computes a layer's values, and what selects them from its output."""
    modules: dict[str, Any] = {
        name.rpartition(".")[2]: module for name, module in layer.named_modules()
    }
    if "v_proj" in modules:
        return modules["v_proj"], lambda output: output
    if "qkv_proj" in modules and "o_proj" in modules:
        # Phi-3: queries are as wide as o_proj's input, keys and values have half of the remainder.
        width = modules["o_proj"].in_features
        return modules["qkv_proj"], lambda output: output[..., width:].chunk(2, dim=-1)[1]
    for name in ("c_attn", "query_key_value"):
        select = _select_fused_values(name, modules[name], config) if name in modules else None
        if select is not None:
            return modules[name], select
    raise ValueError(
        f"layer {index} ({type(layer).__name__}) has no projection of values that is supported: "
        "v_proj, qkv_proj, or c_attn or query_key_value with the layout of GPT-2, GPT-BigCode, "
        'GPT-NeoX or Falcon; hidden states alone work with kinds=("hidden",)'
    )


def _select_fused_values(name: str, module: Any, config: Any) -> Callable[[Tensor], Tensor] | None:
    """Return what selects the values from a fused projection's output; None: unknown layout."""
    heads, family = config.num_attention_heads, config.model_type
    head_width = config.hidden_size // heads
    width = module.nf if isinstance(module, Conv1D) else module.out_features
    kv_heads, remainder = divmod(width - heads * head_width, 2 * head_width)
    if remainder or (kv_heads != heads and family not in ("gpt_bigcode", "falcon")):
        return None
    if name == "c_attn" and (family != "gpt_bigcode" or kv_heads == 1):
        # GPT-2, and GPT-BigCode with one key-value head: all queries, all keys, all values.
        return lambda output: output[..., -kv_heads * head_width :]
    # GPT-NeoX: query, key, value of one head after the other. Falcon: for each key-value head its
    # query heads, its key, its value.
    return lambda output: output.unflatten(-1, (kv_heads, -1, head_width))[..., -1, :].flatten(-2)
