"""A trained model in which every second layer, say, does without keys and values of its own.

A layer u that borrows from a layer s gets queries and outputs that make the best of what s has. On
a text, by least squares, head r of u reads head p(r) of s:

    K_u[r] ~ c_r * K_s[p(r)]       c_r: a complex number for each two channels that rope rotates
    V_u[r] ~ V_s[p(r)] A_r         A_r: [E, E]

The numbers c_r commute with rope, and q . (c K) = (conj(c) q) . K: they go into ``q_proj``, A_r
into ``o_proj``, p into the order of query heads, and the new model is a LIMe with storage and
nothing else. p pairs the heads that explain most, one after the other.

Where each head may borrow from any storage layer below (``method="heads"``), K_u[r] has the head
that explains it best, of whatever layer, and V_u[r] another: they are the config's
``borrow_heads``.

Letters: G key-value heads, N heads that may be borrowed, E head width, T tokens.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from layermem.models.decoder import Attention, DecoderLayer, Handed, run_layer
from layermem.models.keywords import create_mask
from layermem.models.lent_heads import LentHeads
from layermem.models.pretrained import check_shapes
from layermem.models.registry import check_names, lookup
from layermem.ops.route import Slot
from layermem.variants.lime import LimeConfig, LimeForCausalLM
from layermem.variants.plain import PlainForCausalLM

Method = Literal["fit", "heads", "average", "copy"]
"""How a layer that borrows makes do with another's keys and values: "fit" and "heads" as above;
"average" both have the mean of their projections; "copy" nothing is changed."""
# Of a head that is zero on the text, nothing can be told.
_TINY = 1e-30
# So many tokens for each row of a map that is fitted, at least.
_TOKENS_OF_A_ROW = 10
_OF_THE_FILE = ("model_type", "architectures", "auto_map", "transformers_version")


@dataclass(frozen=True, kw_only=True)
class Borrowed:
    """How well one layer makes do with the keys and values of others."""

    layer: int
    """The layer that borrows."""
    heads: tuple[tuple[int, int, int, int], ...]
    """What each of its key-value heads reads: layer of keys, head, layer of values, head."""
    keys: float | None
    """Share of the squared norm of its own keys that is explained on the text; None: of an average,
    which changes the lender's too, it is not known."""
    values: float | None
    """The same of its values."""


def with_storage(
    source: PreTrainedModel,
    storage: Any,
    texts: Iterable[Tensor],
    *,
    method: Method = "fit",
    **fields: Any,
) -> tuple[LimeForCausalLM, list[Borrowed]]:
    """Return a LIMe with storage that begins near a LLaMA, and how near each layer is to it.

    ``storage``, and ``fields`` such as ``borrow_from``: fields of ``LimeConfig``. Routers begin as
    the identity. ``texts``: token ids [B, T] to fit on, without padding, on the model's device,
    which is the new model's too.
    """
    llama: Any = PlainForCausalLM.from_llama(source).to(source.device).eval()
    # A checkpoint may have a head of its own though its config says that it is tied.
    llama.config.tie_word_embeddings = llama.lm_head.weight is llama.get_input_embeddings().weight
    config = config_with_storage(llama.config, storage, method=method, **fields)
    texts = list(texts)
    if any(not isinstance(ids, Tensor) or ids.ndim != 2 for ids in texts):
        raise ValueError("texts must be tensors of token ids [B, T], one for each batch")
    nearest = {layer: config.lenders_of(layer)[0] for layer in config.not_storing()}
    borrowing = _without_routers(llama, nearest)
    if method == "average":
        _average(llama, borrowing, nearest)
    lenders: dict[int, Sequence[int]] = {layer: [lender] for layer, lender in nearest.items()}
    if method == "heads":
        lenders = {layer: config.storing_below(layer) for layer in lenders}
    rows = list(_fit_layers(llama, borrowing, texts, lenders, method))
    if method == "heads":
        heads = [list(map(list, row.heads)) for row in rows]
        config = _lime_config(llama.config, storage, fields | {"borrow_heads": heads})
    model: Any = LimeForCausalLM(config).to(llama.device, llama.dtype).eval()
    missing, unexpected = model.load_state_dict(borrowing.state_dict(), strict=False)
    if unknown := [name for name in missing if ".memory." not in name] + unexpected:
        raise RuntimeError(f"weights of {unknown} are not those of both models")
    model.generation_config = llama.generation_config
    return model, rows


def config_with_storage(
    plain: PreTrainedConfig, storage: Any, *, method: Method = "fit", **fields: Any
) -> LimeConfig:
    """Return the config that ``with_storage`` begins with; or raise, before anything is fitted."""
    if method not in get_args(Method):
        raise ValueError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}")
    if storage is None:
        raise ValueError('storage=None keeps the whole cache; give "half", a number or a list')
    check_names(lookup("lime"), fields)
    check_shapes(plain, fields)
    if fields.get("rope_parameters", plain.rope_parameters) != plain.rope_parameters:
        raise ValueError(
            f"maps are fitted to keys under the model's own rope ({plain.rope_parameters}), got "
            f"rope_parameters={fields['rope_parameters']}: leave rope_parameters out"
        )
    if getattr(plain, "is_causal", None) is False:
        raise ValueError(
            "maps are fitted under causal attention, and this model's config has is_causal=False: "
            "its layers cannot be let borrow"
        )
    config = _lime_config(plain, storage, fields)
    found = {"borrow_heads", *(["borrow_from", "router_sources"] * (method == "heads"))}
    if given := sorted(name for name in found if getattr(config, name) is not None):
        raise ValueError(
            f'which heads are borrowed is found by method="heads", got {" and ".join(given)} with '
            f'method="{method}": leave {" and ".join(given)} out'
        )
    if config.upper != "borrow" or config.router_init != "identity":
        raise ValueError(
            'a trained model is converted to upper="borrow" with router_init="identity", got '
            f'upper="{config.upper}" and router_init="{config.router_init}"'
        )
    return config


def _lime_config(plain: PreTrainedConfig, storage: Any, fields: Mapping[str, Any]) -> LimeConfig:
    values = {k: v for k, v in plain.to_dict().items() if k not in _OF_THE_FILE}
    return LimeConfig(**{**values, "router_init": "identity", **fields, "storage": storage})


class _Fit:
    """Sums over tokens of one layer and the N heads of its lenders, and what they say."""

    def __init__(self, config: Any, n_lenders: int) -> None:
        heads, width = int(config.num_key_value_heads), config.head_dim
        lent = n_lenders * heads
        # Of own head and lender's head, in float64; keys as complex numbers.
        self.key_cross = torch.zeros(heads, lent, width // 2, dtype=torch.complex128)
        self.key_square = torch.zeros(lent, width // 2, dtype=torch.float64)
        self.own_key_square = torch.zeros(heads, width // 2, dtype=torch.float64)
        self.value_cross = torch.zeros(heads, lent, width, width, dtype=torch.float64)
        self.value_gram = torch.zeros(lent, width, width, dtype=torch.float64)
        self.own_value_square = torch.zeros(heads, dtype=torch.float64)

    def add(self, own: Slot, lent: Slot) -> None:
        """Add keys and values of the layer, [T, G, E], and of its lenders, [T, N, E]."""
        own_key, key = (_as_complex(keys) for keys in (own[0], lent[0]))
        self.key_cross += torch.einsum("trp,tgp->rgp", own_key, key.conj())
        self.key_square += key.abs().square().sum(0)
        self.own_key_square += own_key.abs().square().sum(0)
        own_value, value = own[1].double(), lent[1].double()
        self.value_cross += torch.einsum("tgd,tre->rgde", value, own_value)
        self.value_gram += torch.einsum("tgd,tge->gde", value, value)
        self.own_value_square += own_value.square().sum((0, 2))

    def key_scales(self) -> Tensor:
        """Return c for each own head and lender's head, [G, N, E / 2]."""
        return self.key_cross / self.key_square.clamp_min(_TINY)

    def value_maps(self) -> Tensor:
        """Return A for each own head and lender's head, [G, N, E, E]."""
        return torch.linalg.pinv(self.value_gram, hermitian=True) @ self.value_cross

    def _shares(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is explained of keys and of values by scales and maps, [G, N] each."""
        lent_key = (keys.abs().square() * self.key_square).sum(-1)
        both = (keys.conj() * self.key_cross).real.sum(-1)
        own_key = self.own_key_square.sum(-1, keepdim=True).clamp_min(_TINY)
        lent_value = torch.einsum("rgde,gdf,rgfe->rg", values, self.value_gram, values)
        both_values = (values * self.value_cross).sum((-1, -2))
        own_value = self.own_value_square[:, None].clamp_min(_TINY)
        return (2 * both - lent_key) / own_key, (2 * both_values - lent_value) / own_value

    def choose(self, method: Method) -> tuple[Tensor, Tensor]:
        """Return, of the N heads, whose keys and whose values each own head reads, [G] each."""
        if method in ("average", "copy"):
            own = torch.arange(len(self.key_cross))
            return own, own
        keys, values = self._shares(self.key_scales(), self.value_maps())
        if method == "heads":
            return keys.argmax(1), values.argmax(1)
        # Each head of the lender once, the best pair first.
        gain = keys + values
        chosen = torch.zeros(len(gain), dtype=torch.long)
        for _ in range(len(gain)):
            row, lent = divmod(int(gain.argmax()), len(gain))
            chosen[row] = lent
            gain[row], gain[:, lent] = -torch.inf, -torch.inf
        return chosen, chosen

    def explained(self, method: Method) -> dict[str, float | None]:
        """Return the shares of keys and of values that are explained, over all heads."""
        if method == "average":
            return {"keys": None, "values": None}
        if method == "copy":
            scales = torch.ones_like(self.key_cross)
            maps = torch.eye(self.value_gram.shape[-1]).double().expand_as(self.value_cross)
        else:
            scales, maps = self.key_scales(), self.value_maps()
        own = torch.arange(len(self.key_cross))
        chosen = self.choose(method)
        norms = self.own_key_square.sum(-1), self.own_value_square
        return {
            name: float((share[own, lent] * norm).sum() / norm.sum().clamp_min(_TINY))
            for name, share, lent, norm in zip(
                ("keys", "values"), self._shares(scales, maps), chosen, norms, strict=True
            )
        }


def _without_routers(llama: Any, lenders: Mapping[int, int]) -> Any:
    """Return a model with the weights of a plain decoder whose layers borrow."""
    values = {k: v for k, v in llama.config.to_dict().items() if k not in _OF_THE_FILE}
    sources = [lenders.get(i, i) for i in range(llama.config.num_hidden_layers)]
    cla = lookup("cla")
    model: Any = cla.causal_lm(cla.config(**values, kv_source_layers=sources))
    model = model.to(llama.device, llama.dtype).eval()
    model.load_state_dict(llama.state_dict(), strict=False)
    return model


class _Walk:
    """A decoder that runs on texts one layer after the other."""

    def __init__(self, model: Any, texts: Iterable[Tensor]) -> None:
        self.decoder = model.model
        self.layers = cast("Sequence[DecoderLayer]", self.decoder.layers)
        self.states = [self.decoder.embed_tokens(ids) for ids in texts]
        self._handed: list[dict[Handed, Slot]] = [{} for _ in self.states]

    def slots(self, i: int) -> list[Slot]:
        """Return the keys and values [tokens, G, E] that layer ``i``, the next one, projects."""
        layer = self.layers[i]
        attention, width = layer.self_attn, layer.self_attn.head_dim
        projections = (attention.k_proj, attention.v_proj)
        return [
            cast(
                "Slot",
                tuple(
                    linear(layer.input_layernorm(x)).flatten(0, 1).unflatten(-1, (-1, width)).cpu()
                    for linear in projections
                ),
            )
            for x in self.states
        ]

    def step(self, i: int) -> None:
        """Run layer ``i``."""
        layer = self.layers[i]
        for text, (x, handed) in enumerate(zip(self.states, self._handed, strict=True)):
            positions = torch.arange(x.shape[1], device=x.device)[None]
            kwargs = {
                "attention_mask": create_mask(self.decoder.config, x, None, None, None),
                "position_embeddings": self.decoder.rotary_emb(x, positions),
                "position_ids": positions,
            }
            (self.states[text],) = run_layer(layer, (x,), handed, kwargs, grows=False)


@torch.no_grad()
def _fit_layers(
    llama: Any,
    borrowing: Any,
    texts: Sequence[Tensor],
    lenders: Mapping[int, Sequence[int]],
    method: Method,
) -> Iterator[Borrowed]:
    """Adapt the layers that borrow from the lowest on, and yield how well each does.

    Each is fitted to the keys and values that it had in the model as it was, from what its lenders
    have in the new one, whose layers below are adapted already.
    """
    config = llama.config
    tokens = sum(ids.numel() for ids in texts)
    if tokens < _TOKENS_OF_A_ROW * config.head_dim:
        raise ValueError(
            f"a text of {tokens} tokens is too short to fit maps of {config.head_dim} x "
            f"{config.head_dim} on: they would be learnt by heart, and all of them explained. Give "
            f"{_TOKENS_OF_A_ROW * config.head_dim} tokens at least, better some thousand"
        )
    before, after = _Walk(llama, texts), _Walk(borrowing, texts)
    lending = {j for layer in lenders.values() for j in layer}
    for j in lending:
        after.layers[j].self_attn.lends = True
    lent: dict[int, list[Slot]] = {}
    for i in range(max(lenders, default=-1) + 1):
        if i in lenders:
            fit = _Fit(config, len(lenders[i]))
            for own, *of_lenders in zip(
                before.slots(i), *(lent[j] for j in lenders[i]), strict=True
            ):
                keys, values = zip(*of_lenders, strict=True)
                fit.add(own, (torch.cat(keys, 1), torch.cat(values, 1)))
            yield _adapt(after.layers[i], fit, lenders[i], method)
        elif i in lending:
            lent[i] = after.slots(i)
        before.step(i)
        after.step(i)


def _adapt(layer: DecoderLayer, fit: _Fit, lenders: Sequence[int], method: Method) -> Borrowed:
    """Change a layer so that it reads what is lent, and return what it reads and how well."""
    keys, values = fit.choose(method)
    n_heads = len(keys)
    heads = tuple(
        (lenders[k // n_heads], k % n_heads, lenders[v // n_heads], v % n_heads)
        for k, v in zip(keys.tolist(), values.tolist(), strict=True)
    )
    if method == "fit":
        # Own head r takes the place of the lender's head p(r): [place] -> own head.
        _change(layer.self_attn, fit, keys, values, order=keys.argsort())
    elif method == "heads":
        _change(layer.self_attn, fit, keys, values, order=torch.arange(n_heads))
        memory = LentHeads(heads, n_heads)
        layer.lenders, layer.self_attn.memory = memory.lenders, memory
    return Borrowed(layer=layer.layer_idx, heads=heads, **fit.explained(method))


@torch.no_grad()
def _change(
    attention: Attention, fit: _Fit, keys: Tensor, values: Tensor, *, order: Tensor
) -> None:
    """Change queries and outputs of a layer so that it reads these keys and values."""
    width, groups = attention.head_dim, attention.num_key_value_groups
    own = torch.arange(len(keys))
    device = attention.o_proj.weight.device
    scales = fit.key_scales()[own, keys].to(device)
    maps = fit.value_maps()[own, values].to(device)
    for name, parameter in attention.q_proj.named_parameters():
        # Rows [G, H / G, 2, E / 2, ...]: the two halves of a head are real and imaginary parts.
        rows = parameter.double().reshape(len(keys), groups, 2, width // 2, -1)
        number = torch.complex(rows[:, :, 0], rows[:, :, 1])
        number = number * scales.conj()[:, None, :, None]
        rows = torch.stack([number.real, number.imag], 2)[order]
        parameter.copy_(rows.reshape(parameter.shape if name == "weight" else (-1,)))
    weight = attention.o_proj.weight
    columns = weight.double().unflatten(1, (len(keys), groups, width))
    # O_h A_r^T: y = sum_h O_h (A_r^T v), with values as rows in v A_r.
    columns = torch.einsum("orhe,rde->orhd", columns, maps)[:, order]
    weight.copy_(columns.flatten(1))


@torch.no_grad()
def _average(llama: Any, borrowing: Any, lenders: Mapping[int, int]) -> None:
    """Give each lender the mean of its projections and of those of the layers that borrow."""
    theirs, ours = llama.state_dict(), borrowing.state_dict()
    for lender in set(lenders.values()):
        group = [lender, *(layer for layer, j in lenders.items() if j == lender)]
        for name in [n for n in ours if re.search(rf"layers\.{lender}\.self_attn\.[kv]_proj", n)]:
            others = [theirs[name.replace(f".{lender}.", f".{layer}.", 1)] for layer in group]
            ours[name].copy_(torch.stack(others).mean(0))


def _as_complex(keys: Tensor) -> Tensor:
    """Return keys [..., E] as [..., E / 2]: rope rotates channels i and i + E / 2."""
    real, imaginary = keys.double().chunk(2, -1)
    return torch.complex(real, imaginary)
