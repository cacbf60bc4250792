"""The two seams, where information crosses layers, and ``Variant``, which fills them.

* ``Memory``: what attention reads of earlier layers' keys and values. One for each layer.
* ``Stream`` and ``Connection``: what a sub-layer reads from and writes to the residual stream. The
  stream turns embeddings into the first state and the last state into the output, once for each
  model; a connection belongs to one sub-layer (attention or mlp) of one layer.

The state of a stream is a flat tuple of tensors. The first is [B, T, D]: the residual itself, or a
reduction of several. In the plain decoder both seams are the identity.

Letters: B batch, T tokens, D width, G key-value heads, E head width.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast, final

import torch
from torch import Tensor, nn

from layermem.models.configuration import DecoderConfig
from layermem.ops.route import Slot

State = tuple[Tensor, ...]
Inputs = Tensor | tuple[Tensor, Tensor, Tensor]
Norm = Callable[[Tensor], Tensor]
SubLayer = Literal["attention", "mlp"]
Part = Literal["key", "value"]
HandedOn = Literal["own", "read"]
ConfigT = TypeVar("ConfigT", bound=DecoderConfig)


class WeightsUnknown(ValueError):
    """A memory has no ``static_weights`` that could be returned."""


class DependsOnInput(WeightsUnknown):
    """A memory has no ``static_weights`` because its weights depend on the input."""


def weights_of_part(weights: tuple[Tensor, ...], part: Part | None) -> tuple[Tensor, ...]:
    """Return what ``route`` takes of a memory's weights: one for both parts, or one for each.

    ``part`` is None for slots of a key and a value. Where keys and values are routed at different
    times, the two tensors of a slot are halves of one part, and one weight is for both.
    """
    if part is None:
        return weights
    return weights[:1] if part == "key" else weights[-1:]


class Memory(nn.Module, ABC):
    """What attention reads of earlier layers, at one layer."""

    # True: ``forward`` also takes ``token_ids`` [B, T], those of the query's tokens. A model with
    # such a memory has no forward of embeddings alone, and no pipeline stages.
    reads_ids: ClassVar[bool] = False

    @abstractmethod
    def forward(self, query: Tensor, slots: Sequence[Slot]) -> Slot:
        """Return the key and value to attend to, [B, G, T, E] each, before rope.

        ``query`` [B, H, T, E] is that of this layer. ``slots`` are the (key, value) of the layers
        that ``Variant.sources`` names, in that order, and then of this layer: with sources (0, 2)
        at layer 3 they are those of layers 0, 2, 3. A layer that borrows is given what its
        ``Variant.lenders`` attend to instead, and all are after rope.
        """

    def as_route(self) -> tuple[tuple[int, ...], tuple[Tensor, ...]] | None:
        """Return source layers and weights if ``forward`` is ``route(slots, *weights)``, else None.

        Layers whose memories all are routes may share a buffer (``memories.begin_routes``).
        """
        return None

    def static_weights(self) -> tuple[tuple[int, ...], Tensor]:
        """Return the source layers and the weights [target head, source, source head].

        With one source head where there are several target heads, each reads the head of its own
        number; one target head too stands for all. The weights must hold for every input, and for
        keys and values alike. Override it to return them, or to raise ``DependsOnInput`` if the
        weights depend on the input. A memory that treats keys and values differently overrides
        ``static_weights_by_part`` instead.
        """
        raise WeightsUnknown(
            f"{type(self).__name__} does not override static_weights, which a memory does if it "
            "has weights that hold for every input and for keys and values alike"
        )

    def static_weights_by_part(self) -> dict[Part, tuple[tuple[int, ...], Tensor]]:
        """Return what ``static_weights`` does, for keys and for values.

        A memory overrides it if its weights hold for every input and differ between the two.
        """
        weights = self.static_weights()
        return {"key": weights, "value": weights}


@final
class OwnLayerMemory(Memory):
    """The plain decoder's memory: key and value of the own layer, unchanged."""

    def forward(self, query: Tensor, slots: Sequence[Slot]) -> Slot:
        return slots[-1]


@final
class LentMemory(Memory):
    """What one earlier layer attends to: the memory of a layer that borrows from it alone."""

    def __init__(self, lender: int) -> None:
        super().__init__()
        self.lender = lender

    def forward(self, query: Tensor, slots: Sequence[Slot]) -> Slot:
        return slots[0]

    def static_weights(self) -> tuple[tuple[int, ...], Tensor]:
        # Of one head, which stands for all.
        return (self.lender,), torch.ones(1, 1, 1)

    def extra_repr(self) -> str:
        return f"lender={self.lender}"


class DepthWeights(nn.Module, ABC):
    """The weights with which one place of a model mixes states or slots of different depths.

    A memory or connection whose weights depend on the input computes them in a submodule of this
    class, so that analysis can record its output on a text; one with constant weights may.
    """

    # What is mixed, for instance ("embedding", "layer 0", "layer 1"), and what reads it, for
    # instance ("query", "key", "value", "residual"): one name for each column and row of a weight.
    sources: tuple[str, ...]
    readers: tuple[str, ...]

    @abstractmethod
    def forward(self, *args: Any) -> Tensor:
        """Return weights [..., readers, sources]; the leading dimensions, if any, are of tokens."""


class Stream(nn.Module):
    """The first and the last state of the pass over depth. One for each model.

    As it stands it is the plain decoder's: the state is the residual alone.

    Rules for streams and connections: parameters belong to submodules that are called, never to
    the stream or connection itself, because offloading loads weights when a module is called; and
    the constructor draws no random numbers (use ``torch.empty``, then ``Variant.init_weights``).
    """

    # True: the first tensor is for display only (hooks, ``output_hidden_states``) and receives no
    # gradient. A hook that is to change what a layer returns changes the other tensors.
    shows_reduction: ClassVar[bool] = False

    def begin(self, embeds: Tensor) -> State:
        """Return the first state, from the embeddings [B, T, D]."""
        return (embeds,)

    def end(self, state: State) -> Tensor:
        """Return the input of the final norm [B, T, D], from the last state."""
        return state[0]


class Connection(nn.Module):
    """How one sub-layer reads the state and writes to it; see ``Stream`` for the rules.

    As it stands it is the plain decoder's: x + y, with other tensors of the state unchanged.
    """

    # True: the inputs of keys and values are none of the residual, but of the other tensors of the
    # state, so that of a prompt the residual of the last token is enough.
    kv_aside: ClassVar[bool] = False

    def read(self, state: State, norm: Norm) -> tuple[Inputs, Any]:
        """Return the sub-layer's input, normed, and a carry: whatever ``write`` needs.

        ``norm`` is the sub-layer's norm, which the connection applies where it wants, for instance
        before or after it mixes tensors of the state. At attention the input may be three tensors,
        for queries, keys and values; and those for keys and for values may be [G, B, T, D], one
        for each head, if ``Variant.inputs_by_head`` says so.
        """
        return norm(state[0]), state

    def write(self, carry: Any, y: Tensor) -> State:
        """Return the next state, from the carry and the sub-layer's output y [B, T, D]."""
        x, *others = carry
        return (x + y, *others)


@dataclass(frozen=True, kw_only=True)
class ParameterOverride:
    """Optimiser settings of parameters of the modules of one type.

    Modules are found by their type, because the parameters of a model that is not ours may have the
    names of a variant's.
    """

    module: type[nn.Module]
    """Type of the modules, or a base class of theirs."""
    parameters: tuple[str, ...] = ()
    """Names of the parameters within such a module; empty: all but those of its submodules."""
    lr: float | None = None
    """Learning rate; None means that of the run."""
    weight_decay: float | None = None
    """Weight decay; None means that of the run for matrices, and none for vectors."""

    @property
    def name(self) -> str:
        """What the group of these parameters is called."""
        return ".".join([self.module.__name__, *self.parameters])

    def applies_to(self, module: nn.Module, parameter: str) -> bool:
        """Return whether the settings are those of a module's own parameter of this name."""
        return isinstance(module, self.module) and parameter in (self.parameters or (parameter,))


class Variant(Generic[ConfigT]):
    """A cross-layer architecture, as its differences from the plain decoder.

    Every method has the plain decoder's answer as its default. A subclass names its config:
    ``class Lime(Variant[LimeConfig])``. A layer runs twice under gradient checkpointing: change no
    tensor in place, and keep none on a module. Every parameter must get a gradient, and has at
    least one dimension, because sharding refuses scalars.
    """

    # arXiv number of the paper that it is from; empty if there is none.
    source: ClassVar[str] = ""
    # Released models that have it; docs/adoption.toml says where this is seen.
    released: ClassVar[tuple[str, ...]] = ()
    # Optimiser settings of the variant's own parameters. Each has one, if only to say that it is
    # the variant's: it then has the learning rate `optim.router_lr` where a run gives one.
    overrides: ClassVar[tuple[ParameterOverride, ...]] = ()
    # Values of config fields with which a fresh model computes what the plain decoder computes;
    # empty if it always does, None if no values make it do so.
    plain_fields: ClassVar[Mapping[str, Any] | None] = {}

    @classmethod
    def plain_fields_beside(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return those of ``plain_fields`` that hold beside fields that are given."""
        return cls.plain_fields or {}

    @classmethod
    def sources(cls, config: ConfigT, layer_idx: int) -> tuple[int, ...]:
        """Return the earlier layers whose slots the memory of ``layer_idx`` reads, ascending."""
        return ()

    @classmethod
    def memory(cls, config: ConfigT, layer_idx: int) -> Memory:
        """Build the memory of one layer; of one that borrows from several there is no default."""
        lenders = cls.lenders(config, layer_idx)
        if not lenders:
            return OwnLayerMemory()
        (lender,) = lenders
        return LentMemory(lender)

    @classmethod
    def inputs_by_head(cls, config: ConfigT) -> bool:
        """Whether connections of attention may return an input for each head."""
        return False

    @classmethod
    def projects(cls, config: ConfigT, layer_idx: int) -> tuple[Part, ...]:
        """Return what the layer projects itself: both, or one, whose other half of the slot is
        zero; nothing if it borrows."""
        return () if cls.lenders(config, layer_idx) else ("key", "value")

    @classmethod
    def lenders(cls, config: ConfigT, layer_idx: int) -> tuple[int, ...]:
        """Return the earlier layers whose keys and values the layer attends to, ascending.

        A layer that borrows projects none of its own and has no entry in the cache. Its memory is
        given what its lenders attend to, in place of slots: of all tokens so far, keys rotated,
        as the cache holds them. A layer that borrows lends nothing.
        """
        return ()

    @classmethod
    def hands_on(cls, config: ConfigT) -> HandedOn:
        """Return which slot of a layer later layers read: its own, or what its memory returned."""
        return "own"

    @classmethod
    def stream(cls, config: ConfigT) -> Stream:
        """Build the model's stream."""
        return Stream()

    @classmethod
    def connection(cls, config: ConfigT, layer_idx: int, sub_layer: SubLayer) -> Connection:
        """Build the connection of one sub-layer."""
        return Connection()

    @classmethod
    def init_weights(cls, module: nn.Module) -> bool:
        """Initialise a module if it is one of the variant's own; return whether it was.

        Those are the modules that ``overrides`` name. Their ``reset_parameters`` uses transformers'
        ``initialization``, which leaves loaded weights alone, and ``forked_generator`` for random
        numbers, so that the weights shared with the plain decoder stay the same.
        """
        if not isinstance(module, tuple(override.module for override in cls.overrides)):
            return False
        cast("Any", module).reset_parameters()
        return True

    @classmethod
    def extra_parameters(cls, config: ConfigT) -> int:
        """Count the trainable parameters beyond the plain decoder's, in closed form."""
        return -cls.absent_weights(config)

    @classmethod
    def extra_flops(cls, config: ConfigT) -> int:
        """Count forward FLOPs per token beyond the plain decoder's: two per multiply-add of matrix
        products, none of sums and element-wise products."""
        return -2 * cls.absent_weights(config)

    @classmethod
    def extra_saved(cls, config: ConfigT) -> int | None:
        """Count the numbers per token that a forward keeps for its backward beyond the plain
        decoder's, in the precision of slots; None: they are not counted."""
        return None

    @classmethod
    def entries_read(cls, config: ConfigT, layer_idx: int) -> int:
        """Count the cache entries, a key and a value each, that a layer reads of one token."""
        return max(1, len(cls.lenders(config, layer_idx)))

    @final
    @classmethod
    def absent_weights(cls, config: ConfigT) -> int:
        """Count the weights of key and value projections that layers do without."""
        absent = sum(2 - len(cls.projects(config, i)) for i in range(config.num_hidden_layers))
        return absent * config.hidden_size * config.num_key_value_heads * config.head_dim

    @classmethod
    def metrics(cls, model: nn.Module) -> dict[str, float]:
        """Return figures about the variant's own parameters, which training logs by name."""
        return {}


# The methods of ``Variant`` that fill each seam.
SEAMS: Mapping[str, tuple[str, ...]] = {
    "memory": ("sources", "memory", "hands_on", "projects", "lenders", "entries_read"),
    "stream": ("stream", "connection", "inputs_by_head"),
}


def filled_seams(variant: type[Variant[Any]]) -> tuple[str, ...]:
    """Return the seams that a variant fills: those of which it overrides a method."""

    def overrides(method: str) -> bool:
        own, plain = getattr(variant, method), getattr(Variant, method)
        return getattr(own, "__func__", own) is not plain.__func__

    return tuple(seam for seam, methods in SEAMS.items() if any(map(overrides, methods)))


def forked_generator(salt: str) -> torch.Generator:
    """Return a CPU generator seeded by torch's random state and ``salt``.

    Torch's state is left alone, so that later draws from it are those that would have come anyway.
    Every device gets the same numbers.
    """
    probe = torch.Generator()
    probe.set_state(torch.get_rng_state())
    seed = int(torch.randint(2**62, (1,), generator=probe, device="cpu"))
    return torch.Generator().manual_seed(seed ^ zlib.crc32(salt.encode()))


def draw(parameter: Tensor, std: float, salt: str) -> Tensor:
    """Return normal numbers for a parameter, of ``forked_generator``, on the CPU in float32."""
    numbers = torch.empty(parameter.shape, device="cpu", dtype=torch.float32)
    return numbers.normal_(std=std, generator=forked_generator(salt))
