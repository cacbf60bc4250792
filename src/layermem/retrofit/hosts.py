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

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from layermem.ops.route import Slot

Layout = Literal["blocks", "heads"]
# What architectures call the width of a head, and the number of heads that keys and values have:
# that of queries counts where no other is given.
_WIDTHS = ("head_dim", "head_size", "attention_head_size", "key_value_proj_dim", "d_kv")
_KEY_VALUE_HEADS = ("num_key_value_heads", "num_kv_heads", "num_attention_heads", "num_heads")


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """Where a model has what layer memory needs. Names are those of ``named_modules()``.

    Keys and values come from two projections (``key`` and ``value``) or from one (``fused``).
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
    queries, key and value of the first key-value head, then of the next."""
    head_dim: int | None = None
    """Width of a head; None: what the attention or the config says. It may not contradict them."""
    key_projects_positions: bool = False
    """Whether attention calls the projection to keys a second time, on embeddings of relative
    positions, which are not routed."""

    def __post_init__(self) -> None:
        if bool(self.fused) == bool(self.key or self.value) or bool(self.key) != bool(self.value):
            raise ValueError(
                "a Host names either key and value or fused, got "
                f"key={self.key!r}, value={self.value!r}, fused={self.fused!r}"
            )
        if self.layout not in ("blocks", "heads"):
            raise ValueError(f'layout must be "blocks" or "heads", got {self.layout!r}')

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
        "DebertaV2Encoder": Host(
            layers="layer",
            attention="attention.self",
            key="key_proj",
            value="value_proj",
            key_projects_positions=True,
        ),
    }
)


def find_host(model: nn.Module) -> tuple[nn.Module, Host]:
    """Return the module that runs the layers of a known architecture, and its ``Host``.

    The ``Host``'s ``layers`` is a name from that module.
    """
    matches = [
        (path, module, host)
        for path, module in model.named_modules()
        if (host := _look_up(module)) is not None
    ]
    if len(matches) == 1:
        return matches[0][1:]
    if matches:
        paths = ", ".join(f"{path} ({type(module).__name__})" for path, module, _ in matches)
        path, module, host = matches[0]
        raise ValueError(
            f"{type(model).__name__} has several stacks of layers: {paths}; name one, as by "
            f"host=dataclasses.replace(layermem.retrofit.HOSTS[{type(module).__name__!r}], "
            f"layers={f'{path}.{host.layers}'!r})"
        )
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    raise ValueError(
        f"no known architecture in {type(model).__name__} (model_type {model_type!r}); known are "
        f"{', '.join(HOSTS)}; for another pass host=layermem.retrofit.Host(layers=..., "
        "attention=..., key=..., value=...), with names from model.named_modules()"
    )


def find_given(model: nn.Module, host: Host) -> tuple[nn.Module, Host]:
    """Return the module that holds the layers that a user's ``Host`` names, and a ``Host`` whose
    ``layers`` is a name from that module."""
    layers = find_module(model, host.layers, "the list of layers")
    if not isinstance(layers, nn.ModuleList):
        raise ValueError(
            f"layers={host.layers!r} is a {type(layers).__name__}, expected the ModuleList of "
            "the layers"
        )
    path, _, name = host.layers.rpartition(".")
    return model.get_submodule(path), replace(host, layers=name)


def find_saved(model: nn.Module, memory: Mapping[str, Any]) -> tuple[nn.Module, Host]:
    """Return the module that runs the layers, and the ``Host`` that was saved for it."""
    name = memory["architecture"]
    found = {
        path: module
        for path, module in model.named_modules()
        if name in {kind.__name__ for kind in type(module).__mro__}
    }
    owners = list(found.values())
    if len(owners) > 1 and memory.get("path") in found:
        owners = [found[memory["path"]]]
    if len(owners) != 1:
        raise ValueError(
            f"{type(model).__name__} has {len(owners)} modules of {name}, whose layers memory was "
            "attached to, expected one: it is another model"
        )
    return owners[0], Host(**memory["host"])


def find_module(root: nn.Module, path: str, what: str) -> nn.Module:
    """Return a submodule; raise ``ValueError`` with names that are near if there is none."""
    try:
        return root.get_submodule(path)
    except AttributeError:
        near = _near(path, (name for name, _ in root.named_modules()))
        raise ValueError(
            f"{type(root).__name__} has no {path!r}, looked for as {what}; near names: {near}"
        ) from None


def find_head_dim(attention: nn.Module, host: Host, config: Any) -> int:
    """Return the width of a head: the host's, the attention's or the config's."""
    width = host.head_dim or declared_width(attention, config)
    if width is not None:
        return width
    hidden, heads = (_count(config, name) for name in ("hidden_size", "num_attention_heads"))
    if hidden and heads and hidden % heads == 0:
        return hidden // heads
    raise ValueError(
        f"the width of a head of {type(attention).__name__} is not known; give Host(head_dim=...)"
    )


def declared_width(attention: nn.Module, config: Any) -> int | None:
    """Return the width of a head that an attention or its config states, None if neither does."""
    sizes = (_count(source, name) for source in (attention, config) for name in _WIDTHS)
    return next((size for size in sizes if size), None)


def declared_heads(config: Any) -> set[int]:
    """Return how many key-value heads a config allows for; empty if it says nothing of heads."""
    heads = next((count for name in _KEY_VALUE_HEADS if (count := _count(config, name))), None)
    # Falcon and GPT-BigCode have one for all queries, whatever their other fields say.
    one = {1} if getattr(config, "multi_query", False) else set()
    return one | ({heads} if heads else set())


def _count(source: Any, name: str) -> int | None:
    value = getattr(source, name, None)
    return value if isinstance(value, int) and value > 0 else None


def _look_up(module: nn.Module) -> Host | None:
    for kind in type(module).__mro__:
        if kind.__name__ in HOSTS and kind.__module__.startswith("transformers."):
            return HOSTS[kind.__name__]
    return None


def _near(path: str, names: Iterable[str]) -> str:
    """Return the names that look most like a path, by their last parts too."""
    names = [name for name in names if name]
    matches = difflib.get_close_matches(path, names, n=3, cutoff=0.4)
    last = path.rpartition(".")[2]
    matches += difflib.get_close_matches(last, {n.rpartition(".")[2] for n in names}, n=3)
    return ", ".join(dict.fromkeys(matches)) or f"none; there are {', '.join(names[:6])}"


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


def measure(projection: nn.Module, host: Host, head_dim: int, query_heads: int) -> ProjectionShape:
    """Return the shape of a projection's output, from its width."""
    width = output_width(projection)
    queries = query_heads * head_dim if host.fused else 0
    heads, rest = divmod((width - queries) // (2 if host.fused else 1), head_dim)
    if rest or heads < 1 or query_heads % heads:
        raise ValueError(
            f"a projection of width {width} does not hold whole heads of width {head_dim}"
            f"{f' beside {query_heads} heads of queries' if host.fused else ''}; give "
            "Host(head_dim=...)"
        )
    return ProjectionShape(
        heads=heads, head_dim=head_dim, layout=host.layout if host.fused else None
    )


def output_width(projection: nn.Module) -> int:
    """Return the number of features that a linear module returns."""
    # `nf` is that of transformers' Conv1D.
    for name in ("out_features", "nf"):
        width = getattr(projection, name, None)
        if isinstance(width, int):
            return width
    raise ValueError(
        f"the projection is a {type(projection).__name__}, which does not say its out_features; "
        "expected a linear module"
    )


def _halve(x: Tensor) -> Slot:
    if x.shape[-1] % 2:
        return x, x
    first, second = x.chunk(2, dim=-1)
    return first, second
