"""``DecoderConfig``: the fields of a LLaMA's config, with the same names and defaults."""

import os
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from layermem_base.number_ranges import at_least, below, between, check_numbers, number

# Types of fields that may be given as None and are filled in by ``__post_init__``. Type checkers
# see Any, so that readers of the fields need not check for None.
if TYPE_CHECKING:
    FilledInt = Any
    FilledFloat = Any
    FilledDict = Any
else:
    FilledInt = int | None
    FilledFloat = int | float | None
    FilledDict = dict | None

# Rules of a tensor-parallel plan with which each process attends with heads of its own.
LOCAL_HEADS: Mapping[str, str] = MappingProxyType(
    {
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.v_proj": "colwise",
        "layers.*.self_attn.o_proj": "rowwise",
    }
)

_SHAPE_FIELDS = (
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("hidden_size", "intermediate_size", "tie_word_embeddings", "hidden_act", "rms_norm_eps"),
)
PREFIX = "layermem_"
"""What the model types of our configs begin with."""
LINEAGE = "layermem_lineage"
"""Field of a config in which a run of the bench says what it trained the model on."""
# A module saved beside the weights, whose import error names the missing package.
STUB_NAME = "modeling_layermem"
_STUB = '''"""This checkpoint is a layermem model. Its classes live in the package of that name."""

try:
    from {module} import {names}
except ImportError as error:
    raise ImportError(
        "this checkpoint needs layermem, which is not installed: pip install layermem"
    ) from error
'''


def write_stub(folder: Path, module: str, names: Iterable[str]) -> None:
    """Write the module beside a checkpoint from which transformers takes classes of ours."""
    folder.mkdir(parents=True, exist_ok=True)
    stub = _STUB.format(module=module, names=", ".join(sorted(names)))
    (folder / f"{STUB_NAME}.py").write_text(stub, encoding="utf-8")


@strict
class DecoderConfig(PreTrainedConfig):
    """The fields that the configs of all variants have."""

    keys_to_ignore_at_inference: ClassVar[list[str]] = ["cache", "past_key_values"]
    # The tensor-parallel plan. It gathers heads before the seams, which therefore see all heads and
    # whole widths in every variant and for every number of processes. A variant whose memory treats
    # each head alone may override it to shard attention too, as the plain decoder does.
    base_model_tp_plan: ClassVar[dict[str, str]] = {
        "layers.*.self_attn.q_proj": "colwise_gather_output",
        "layers.*.self_attn.k_proj": "colwise_gather_output",
        "layers.*.self_attn.v_proj": "colwise_gather_output",
        "layers.*.self_attn.o_proj": "rowwise_split_input",
        "layers.*.mlp.gate_proj": "colwise",
        "layers.*.mlp.up_proj": "colwise",
        "layers.*.mlp.down_proj": "rowwise",
    }
    # Rules that replace those above where the number of processes divides the key-value heads. They
    # are for a memory that mixes heads and has a parallel style of its own.
    local_heads_tp_plan: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # TRL and others read this attribute. It has entries in saved files only.
    auto_map: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # Auto class -> model class name, and the variant, set by `registry.declare`.
    auto_classes: ClassVar[dict[str, str]] = {}
    variant_class: ClassVar[Any] = None

    vocab_size: int = number(32000, at_least(1))
    """Number of token ids."""
    hidden_size: int = number(4096, at_least(1))
    """Width D of the residual stream."""
    intermediate_size: int = number(11008, at_least(1))
    """Width of the SwiGLU inside the mlp."""
    num_hidden_layers: int = number(32, at_least(1))
    """Number of decoder layers L."""
    num_attention_heads: int = number(32, at_least(1))
    """Number of query heads H."""
    num_key_value_heads: FilledInt = number(None, at_least(1))
    """Number of key-value heads G; None means as many as query heads."""
    head_dim: FilledInt = number(None, at_least(1))
    """Width E of one head; None means hidden_size / num_attention_heads."""
    hidden_act: str = "silu"
    """Activation function of the mlp's gate."""
    max_position_embeddings: int = number(2048, at_least(1))
    """Longest sequence that the position embeddings are meant for."""
    initializer_range: float = number(0.02, between(0, 1))
    """Standard deviation of the initial linear and embedding weights."""
    rms_norm_eps: float = number(1e-6, at_least(0))
    """Epsilon of the norms, added to the mean square."""
    use_cache: bool = True
    """Whether a forward outside training returns a cache of keys and values; one of documents that
    ``position_ids`` keep apart returns none."""
    pad_token_id: int | None = number(None, at_least(0))
    """Id of the padding token."""
    bos_token_id: int | None = number(1, at_least(0))
    """Id of the token that begins a text."""
    eos_token_id: int | list[int] | None = number(2, at_least(0))
    """Id or ids that end a text."""
    tie_word_embeddings: bool = False
    """Whether the output head shares the embedding's weights."""
    rope_parameters: FilledDict = None
    """Base and scaling of rope in transformers' form, e.g. {"rope_type": "llama3", ...}."""
    attention_bias: bool = False
    """Whether q, k, v and o projections have biases."""
    attention_dropout: FilledFloat = number(0.0, below(0, 1))
    """Dropout on attention weights during training."""
    mlp_bias: bool = False
    """Whether the mlp's projections have biases."""

    @classmethod
    def shape_fields(cls) -> list[str]:
        """Return the fields without which weights cannot be interpreted, even where shapes agree:
        two heads of width 8 and one of 16 have weights of one shape. A checkpoint is not loaded
        with another value of one.

        Of a variant's own these are all but those named ``..._init``, for initial values alone.
        """
        of_all = {field.name for field in fields(DecoderConfig)}
        own = (field.name for field in fields(cls) if field.name not in of_all)
        return [*_SHAPE_FIELDS, *(name for name in own if not name.endswith("_init"))]

    @property
    def kv_sharing_modes(self) -> list[str | None] | None:
        """Return "reuse" for each layer without keys and values of its own, as transformers' caches
        read it to leave out their entries; None: all have some."""
        layers = range(self.num_hidden_layers)
        modes = ["reuse" if self.variant_class.lenders(self, i) else None for i in layers]
        return modes if any(modes) else None

    def __repr__(self) -> str:
        """Show the config without its lineage, whose hashes may be 90,000 characters."""
        shown = copy(self)
        shown.__dict__.pop(LINEAGE, None)
        return super(DecoderConfig, shown).__repr__()

    def __post_init__(self, **kwargs: Any) -> None:
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None and self.num_attention_heads > 0:
            if self.hidden_size % self.num_attention_heads:
                raise ValueError(
                    f"hidden_size ({self.hidden_size}) is not a multiple of num_attention_heads "
                    f"({self.num_attention_heads}); choose one that divides it or set head_dim"
                )
            self.head_dim = self.hidden_size // self.num_attention_heads
        self.attention_dropout = self.attention_dropout or 0.0
        check_dtype(self.dtype)
        # `save_pretrained` writes it anew; a loaded one may name classes of another version.
        kwargs.pop("auto_map", None)
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
        """Raise ``ValueError`` if the sizes are not those of a decoder."""
        check_numbers(self)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) is not a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.head_dim % 2:
            raise ValueError(f"rope rotates pairs: head_dim must be even, got {self.head_dim}")

    def validate_attention_span(self) -> None:
        """Raise ``ValueError`` for fields that make transformers' caches drop tokens."""
        names = ("sliding_window", "attention_chunk_size", "layer_types")
        for name, value in ((name, getattr(self, name, None)) for name in names):
            whole = value is None or (name == "layer_types" and set(value) <= {"full_attention"})
            if not whole:
                raise ValueError(
                    f"{name}={value} is not supported: every layer attends to all earlier tokens, "
                    "and transformers' cache would drop some of them; remove it from the config"
                )

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any
    ) -> None:
        """Save as transformers does, with an ``auto_map`` and the module that it names."""
        cls = type(self)
        names = {"AutoConfig": cls.__name__, **self.auto_classes}
        write_stub(Path(save_directory), cls.__module__, names.values())
        # Set while the file is written only.
        self.__dict__["auto_map"] = {auto: f"{STUB_NAME}.{name}" for auto, name in names.items()}
        try:
            super().save_pretrained(save_directory, *args, **kwargs)
        finally:
            del self.__dict__["auto_map"]

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Do nothing: otherwise transformers would copy our source files into every checkpoint."""


def padding_alone(config: DecoderConfig) -> int | None:
    """Return the id whose embedding stays zero: of a padding token that is nothing else.

    One that begins or ends texts too is read like any other token, and has to be learnt.
    """
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    padding = config.pad_token_id
    return None if padding in (config.bos_token_id, *ends) else padding


def check_dtype(dtype: Any) -> None:
    """Raise ``ValueError`` if ``dtype`` is a string that names no floating dtype of torch."""
    if isinstance(dtype, str) and dtype != "auto":
        named = getattr(torch, dtype.removeprefix("torch."), None)
        if not isinstance(named, torch.dtype) or not named.is_floating_point:
            raise ValueError(f"dtype {dtype!r} is not a floating dtype of torch, as is float32")
