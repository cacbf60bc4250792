"""``Host``: where the layers, attention and key and value projections of a model lie; as data.

``HOSTS`` is the table of known architectures, by the class of the module that runs the layers. A
user gives a ``Host`` of their own for any other. ``ProjectionShape`` takes keys and values out of
the outputs of projections as heads, and puts others in.

A *pair* is what is routed in one product, two tensors [B, R, T, E'] of one shape:

    a fused projection     (key, value), E' = E
    a projection of one    its two halves along the width, E' = E / 2; keys and values are routed
                           by the same weights, but keys before values are known
    an odd width           the whole twice, E' = E

Letters: B batch, T tokens, H query heads, R key-value heads, E head width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from layermem.ops.route import Slot

Layout = Literal["blocks", "heads"]
# What architectures call the width of a head.
_WIDTHS = ("head_dim", "head_size", "attention_head_size", "key_value_proj_dim", "d_kv")


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """Where a model has what layer memory needs. Names are those of ``named_modules()``.

    Keys and values come from two projections (``key`` and ``value``) or from one (``fused``).
    ``attach`` proves a ``Host`` that it is given by forwards on random keys and values, and warns
    where these are impossible. Cross-attention stays as it is.
    """

    layers: str
    """The list of layers, from the model, as "model.layers". The module that holds it must run
    every layer once, in order."""
    attention: str
    """The module of self-attention, from a layer, as "self_attn"."""
    key: str = ""
    """The projection to keys, from the attention, as "k_proj"."""
    value: str = ""
    """The projection to values, as "v_proj"."""
    fused: str = ""
    """The projection to queries, keys and values at once, as "qkv_proj"."""
    layout: Layout = "blocks"
    """The output of a fused projection: "blocks", all queries, all keys, all values; or "heads",
    queries, key and value of the first key-value head, then of the next. Falcon's
    ``query_key_value`` has "heads", with ``multi_query`` "blocks"."""
    head_dim: int | None = None
    """Width of a head; None: what the attention or the config says."""
    key_projects_positions: bool = False
    """Whether attention calls the projection to keys a second time, on embeddings of relative
    positions, which are not routed."""

    @property
    def projections(self) -> tuple[str, ...]:
        """The names of the projections: (key, value) or (fused,)."""
        return (self.fused,) if self.fused else (self.key, self.value)


_LLAMA = Host(layers="layers", attention="self_attn", key="k_proj", value="v_proj")
_BERT = Host(layers="layer", attention="attention.self", key="key", value="value")
HOSTS = MappingProxyType(
    {
        "LlamaModel": _LLAMA,
        "MistralModel": _LLAMA,
        "Qwen2Model": _LLAMA,
        "Qwen3Model": _LLAMA,
        "Gemma2Model": _LLAMA,
        "Gemma3TextModel": _LLAMA,
        "Olmo2Model": _LLAMA,
        "SmolLM3Model": _LLAMA,
        "Phi3Model": Host(layers="layers", attention="self_attn", fused="qkv_proj"),
        "GPTNeoXModel": Host(
            layers="layers", attention="attention", fused="query_key_value", layout="heads"
        ),
        "GPT2Model": Host(layers="h", attention="attn", fused="c_attn"),
        "BertEncoder": _BERT,
        "RobertaEncoder": _BERT,
        "DebertaV2Encoder": replace(
            _BERT, key="key_proj", value="value_proj", key_projects_positions=True
        ),
    }
)


def find_host(model: nn.Module) -> tuple[nn.Module, Host]:
    """Return the module that runs the layers of a known architecture, and its ``Host``.

    The ``Host``'s ``layers`` is a name from that module.
    """
    matches = {
        path: (module, HOSTS[kind.__name__])
        for path, module in model.named_modules()
        for kind in reversed(type(module).__mro__)
        if kind.__name__ in HOSTS and kind.__module__.startswith("transformers.")
    }
    if len(matches) != 1:
        raise ValueError(
            f"{type(model).__name__} has {' and '.join(matches) or 'no'} stacks of layers of a "
            f"known architecture, expected one; known are {', '.join(HOSTS)}; name the layers by "
            "host=layermem.retrofit.Host(layers=..., attention=..., key=..., value=...), with "
            "names from model.named_modules()"
        )
    return next(iter(matches.values()))


def find_saved(model: nn.Module, memory: Mapping[str, Any]) -> tuple[nn.Module, Host]:
    """Return the same for what ``Attachment.describe`` returned."""
    name = memory["architecture"]
    owners = {
        path: module
        for path, module in model.named_modules()
        if name in {kind.__name__ for kind in type(module).__mro__}
    }
    # A model may have two stacks of one class.
    path = memory.get("path") if len(owners) > 1 else next(iter(owners), None)
    if path not in owners:
        raise ValueError(
            f"{type(model).__name__} has {len(owners)} modules of {name}, whose layers memory was "
            "attached to, expected one: it is another model"
        )
    return owners[path], Host(**memory["host"])


def find_module(root: nn.Module, path: str) -> nn.Module:
    """Return a submodule that a ``Host`` names; raise ``ValueError`` if there is none."""
    try:
        return root.get_submodule(path)
    except AttributeError:
        raise ValueError(
            f"{type(root).__name__} has no {path!r}, which its Host names; it has "
            f"{', '.join(name for name, _ in root.named_children())}"
        ) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectionShape:
    """What the output of a projection is made of."""

    heads: int
    """Key-value heads."""
    head_dim: int
    """Width of a head."""
    layout: Layout | None = None
    """Layout of a fused projection, None for one of keys alone or of values alone."""

    def take(self, output: Tensor) -> Slot:
        """Return the pair in the output [B, T, ...] of a projection."""
        if self.layout is None:
            return _halve(self._by_head(output))
        if self.layout == "heads":
            by_head = output.unflatten(-1, (self.heads, -1, self.head_dim))
            return by_head[..., -2, :].transpose(1, 2), by_head[..., -1, :].transpose(1, 2)
        width = self.heads * self.head_dim
        return self._by_head(output[..., -2 * width : -width]), self._by_head(output[..., -width:])

    def put(self, output: Tensor, pair: Slot) -> Tensor:
        """Return the output of a projection with another pair in it."""
        first, second = (part.transpose(1, 2) for part in pair)
        if self.layout is None:
            odd = self.head_dim % 2
            return (first if odd else torch.cat((first, second), dim=-1)).flatten(2)
        if self.layout == "heads":
            by_head = output.unflatten(-1, (self.heads, -1, self.head_dim))
            routed = torch.stack((first, second), dim=-2)
            return torch.cat((by_head[..., :-2, :], routed), dim=-2).flatten(2)
        queries = output[..., : -2 * self.heads * self.head_dim]
        return torch.cat((queries, first.flatten(2), second.flatten(2)), dim=-1)

    def take_whole(self, output: Tensor) -> tuple[Tensor, ...]:
        """Return keys, values or both in the output of a projection as whole heads."""
        if self.layout is None:
            return (self._by_head(output),)
        return self.take(output)

    def put_whole(self, output: Tensor, parts: Sequence[Tensor]) -> Tensor:
        """Return the output of a projection with other heads in it."""
        return self.put(output, _halve(parts[0]) if self.layout is None else (parts[0], parts[1]))

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, self.head_dim).transpose(1, 2)


def measure(
    model: nn.Module, owner: nn.Module, host: Host
) -> tuple[list[nn.Module], ProjectionShape]:
    """Return the attention of each layer and the shape of keys and values, the same in all."""
    layers = find_module(owner, host.layers).children()
    attentions = [find_module(layer, host.attention) for layer in layers]
    config = getattr(owner, "config", None) or getattr(model, "config", None)
    shapes = {
        _measure(attention, name, host, config): None
        for attention in attentions
        for name in host.projections
    }
    if len(attentions) < 2 or len(shapes) > 1:
        raise ValueError(
            "layer memory needs two layers or more with the same key-value heads, got "
            f"{len(attentions)} of {type(owner).__name__} with "
            f"{' and '.join(f'{shape.heads} heads of width {shape.head_dim}' for shape in shapes)}"
        )
    return attentions, next(iter(shapes))


def _measure(attention: nn.Module, name: str, host: Host, config: Any) -> ProjectionShape:
    """Return the shape of what a projection returns, from its width."""
    projection: Any = find_module(attention, name)
    # `nf` is that of transformers' Conv1D.
    width: int = getattr(projection, "out_features", 0) or getattr(projection, "nf", 0)
    query_heads: int = getattr(config, "num_attention_heads", 0)
    stated = (getattr(source, each, None) for source in (attention, config) for each in _WIDTHS)
    head_dim = host.head_dim or next((n for n in stated if isinstance(n, int) and n > 0), 0)
    if not head_dim and query_heads:
        head_dim = getattr(config, "hidden_size", 0) // query_heads
    routed = width - query_heads * head_dim if host.fused else width
    heads, rest = divmod(routed, head_dim * (2 if host.fused else 1)) if head_dim else (0, 0)
    if heads < 1 or rest or query_heads % heads:
        raise ValueError(
            f"the {name} of {type(attention).__name__}, of width {width}, does not hold whole "
            f"heads of width {head_dim or 'unknown'}"
            f"{f' beside {query_heads} heads of queries' if host.fused else ''}; give "
            "Host(head_dim=...)"
        )
    return ProjectionShape(
        heads=heads, head_dim=head_dim, layout=host.layout if host.fused else None
    )


def _halve(x: Tensor) -> Slot:
    if x.shape[-1] % 2:
        return x, x
    first, second = x.chunk(2, dim=-1)
    return first, second
