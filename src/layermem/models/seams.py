"""The two places where information crosses layers, and what a variant puts there.

* ``Memory``: what attention reads of earlier layers' keys and values.
* ``Stream`` and ``Connection``: what a sub-layer reads from and writes to the residual. A stream
  begins and ends the pass over depth; a connection stands at one sub-layer of one layer.

The state of a stream is a flat tuple of tensors whose first is [B, T, D]: the residual itself, or
the reduction of several. The plain decoder is the identity at both seams.

Letters: B batch, T tokens, D width, G key-value heads, E head width.
It does not know: attention, rope, caches, any particular variant.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar, final

import torch
from torch import Tensor, nn

from layermem.models.configuration import DecoderConfig
from layermem.ops.route import Slot

State = tuple[Tensor, ...]
Inputs = Tensor | tuple[Tensor, Tensor, Tensor]
Norm = Callable[[Tensor], Tensor]
SubLayer = Literal["attention", "mlp"]
ConfigT = TypeVar("ConfigT", bound=DecoderConfig)


class WeightsUnknown(ValueError):
    """Weights were asked for that a memory does not tell."""


class DependsOnInput(WeightsUnknown):
    """Weights were asked for that only an input decides."""


class Memory(nn.Module, ABC):
    """What attention reads of earlier layers."""

    @abstractmethod
    def forward(self, query: Tensor, key: Tensor, value: Tensor, slots: Sequence[Slot]) -> Slot:
        """Return the key and value to attend to, [B, G, T, E] each, before rope.

        ``slots`` holds the layers named by ``Variant.sources``, oldest first, then the own
        (key, value).
        """

    def static_weights(self) -> tuple[tuple[int, ...], Tensor]:
        """Return source layers and weights [target head, source, source head], if no input is
        needed to tell them; raise ``DependsOnInput`` if one is."""
        raise WeightsUnknown(
            f"{type(self).__name__} does not tell its weights: override static_weights to return "
            "them, or to raise DependsOnInput if only an input decides them"
        )


@final
class OwnLayer(Memory):
    """The plain decoder's memory: the own layer and no other."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, slots: Sequence[Slot]) -> Slot:
        return key, value


class Stream(nn.Module, ABC):
    """How the pass over depth begins and ends. One per model.

    Of a stream and of a connection alike: parameters sit in submodules that are called, never in a
    bare attribute, for offloading brings weights in when a module is called; and construction
    draws no random numbers (``torch.empty``, then ``Variant.init_weights``).
    """

    # False: a layer's new state replaces the old one. True: the first tensor is replaced and the
    # rest only grows, so that a layer hands on what it added and nothing is copied per layer.
    grows: ClassVar[bool] = False

    @abstractmethod
    def begin(self, embeds: Tensor) -> State:
        """Turn the embeddings [B, T, D] into the first state."""

    @abstractmethod
    def end(self, state: State) -> Tensor:
        """Reduce the last state to what the final norm sees, [B, T, D]."""


class Connection(nn.Module, ABC):
    """How one sub-layer reads the state and writes to it."""

    @abstractmethod
    def read(self, state: State, norm: Norm) -> tuple[Inputs, Any]:
        """Return the sub-layer's input, normed, and a carry for ``write``.

        ``norm`` is the sub-layer's own; before or after a mixture is the connection's to say. At
        attention the input may be three tensors, for queries, keys and values.
        """

    @abstractmethod
    def write(self, carry: Any, y: Tensor) -> State:
        """Return the state after the sub-layer's output y [B, T, D]."""


@final
class Residual(Stream):
    """The plain decoder's stream: one residual."""

    def begin(self, embeds: Tensor) -> State:
        return (embeds,)

    def end(self, state: State) -> Tensor:
        return state[0]


@final
class Add(Connection):
    """The plain decoder's connection: x + y. Whatever else the state holds goes through."""

    def read(self, state: State, norm: Norm) -> tuple[Tensor, State]:
        return norm(state[0]), state

    def write(self, carry: State, y: Tensor) -> State:
        x, *rest = carry
        return (x + y, *rest)


@dataclass(frozen=True, kw_only=True)
class ParameterOverride:
    """Optimiser settings for the parameters whose name matches, where they differ from the rest."""

    pattern: str
    """Regular expression searched in the parameter's name."""
    lr: float | None = None
    """Learning rate; None means the run's."""
    weight_decay: float | None = None
    """Weight decay; None means the run's."""


class Variant(Generic[ConfigT]):
    """What a cross-layer architecture adds to the plain decoder. Stated as differences from it.

    Generic over its config: ``class Lime(Variant[LimeConfig])``.
    """

    overrides: ClassVar[tuple[ParameterOverride, ...]] = ()
    # Config fields under which a fresh model computes what the plain decoder computes; None where
    # no fields do that.
    plain_fields: ClassVar[Mapping[str, Any] | None] = {}

    @classmethod
    def sources(cls, config: ConfigT, layer_idx: int) -> tuple[int, ...]:
        """Return the earlier layers whose slots the memory of ``layer_idx`` reads, oldest first."""
        return ()

    @classmethod
    def memory(cls, config: ConfigT, layer_idx: int) -> Memory:
        """Build the memory of one layer."""
        return OwnLayer()

    @classmethod
    def store(cls, key: Tensor, value: Tensor) -> Slot:
        """Return the slot of a layer: the same key and value, laid out for its readers."""
        return key, value

    @classmethod
    def stream(cls, config: ConfigT) -> Stream:
        """Build the model's stream."""
        return Residual()

    @classmethod
    def connection(cls, config: ConfigT, layer_idx: int, sub_layer: SubLayer) -> Connection:
        """Build the connection of one sub-layer."""
        return Add()

    @classmethod
    def init_weights(cls, module: nn.Module) -> bool:
        """Initialise a module of the variant's own; return False for any other.

        Draws come from ``forked_generator``, so that shared weights stay those of the plain
        decoder.
        """
        return False

    @classmethod
    def extra_parameters(cls, config: ConfigT) -> int:
        """Count the trainable parameters beyond the plain decoder's, in closed form."""
        return 0

    @classmethod
    def extra_flops(cls, config: ConfigT) -> int:
        """Count the forward FLOPs per token beyond the plain decoder's, two per multiply-add."""
        return 0

    @classmethod
    def metrics(cls, model: nn.Module) -> dict[str, float]:
        """Return what is worth watching of the variant's own parameters during training."""
        return {}


def forked_generator(salt: str) -> torch.Generator:
    """Return a generator that follows from torch's state and ``salt`` and leaves the state alone.

    Whatever is drawn from it, the draws that follow are the ones that would have come anyway; and
    the same numbers come on every device.
    """
    probe = torch.Generator()
    probe.set_state(torch.get_rng_state())
    seed = int(torch.randint(2**62, (1,), generator=probe, device="cpu"))
    return torch.Generator().manual_seed(seed ^ zlib.crc32(salt.encode()))
