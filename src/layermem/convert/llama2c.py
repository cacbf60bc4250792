"""Checkpoints and tokenizers of llama2.c (its legacy layout) as those of transformers.

    7 int32     width D, mlp width M, layers L, heads H, key-value heads G, vocabulary V (negative:
                the head has weights of its own), longest sequence T
    float32     embedding [V, D]; norm before attention [L, D]; q [L, D, D], k and v [L, G E, D],
                o [L, D, D]; norm before the mlp [L, D]; w1 [L, M, D], w2 [L, D, M], w3 [L, M, D];
                last norm [D]; cosines and sines of rope [T, E / 2]; the head [V, D] where it is
                not the embedding

All numbers are little-endian. Rope turns the neighbouring features 2i and 2i + 1 of a head, in
transformers' LLaMA the features i and i + E / 2: rows of q and k are reordered.

A tokenizer (tokenizer.bin) has the bytes of the longest piece (int32), then for each token its
score (float32), its length (int32) and so many bytes. Tokens 0, 1 and 2 are unknown, beginning and
end, the next 256 the bytes. A text gets the beginning and a space before it. Characters that are no
token become bytes; then two neighbouring tokens whose joined text is a token are joined, the pair
of the highest score first, the leftmost of several. Here that order is the order of merges. Where
one token can be joined of two pairs, the pair whose first part is shorter comes first, wherever it
stands. Texts are decoded as the pieces stand: the space before the first word, which llama2.c
leaves out when it prints, stays, so that a continuation can be appended to its prompt.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from torch import Tensor
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

_HEADER, _PIECE = struct.Struct("<7i"), struct.Struct("<fi")
_SPECIAL = 3
_FIRST_PIECE = _SPECIAL + 256
# The first int32 of later layouts ("ak42"), which have another header.
_LATER_LAYOUT = 0x616B3432
_THETA = 10_000.0
# Cosines and sines are those of float32 angles, whose rounding grows with the position.
_ROPE_TOLERANCE = 1e-2


@dataclass(frozen=True, slots=True)
class Llama2cSizes:
    """The header of a file; ``tied``: whether the head is the embedding."""

    width: int
    mlp_width: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    longest: int
    tied: bool

    @property
    def head_width(self) -> int:
        """The width of one head."""
        return self.width // self.heads

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the tensors of the file in order; "{}" stands for the layer."""
        width, mlp, layers = self.width, self.mlp_width, self.layers
        keys = self.kv_heads * self.head_width
        yield "model.embed_tokens.weight", (self.vocabulary, width)
        yield "model.layers.{}.input_layernorm.weight", (layers, width)
        yield "model.layers.{}.self_attn.q_proj.weight", (layers, width, width)
        yield "model.layers.{}.self_attn.k_proj.weight", (layers, keys, width)
        yield "model.layers.{}.self_attn.v_proj.weight", (layers, keys, width)
        yield "model.layers.{}.self_attn.o_proj.weight", (layers, width, width)
        yield "model.layers.{}.post_attention_layernorm.weight", (layers, width)
        yield "model.layers.{}.mlp.gate_proj.weight", (layers, mlp, width)
        yield "model.layers.{}.mlp.down_proj.weight", (layers, width, mlp)
        yield "model.layers.{}.mlp.up_proj.weight", (layers, mlp, width)
        yield "model.norm.weight", (width,)
        yield "cosines", (self.longest, self.head_width // 2)
        yield "sines", (self.longest, self.head_width // 2)
        if not self.tied:
            yield "lm_head.weight", (self.vocabulary, width)

    def file_size(self) -> int:
        """Return the bytes of a file with this header."""
        numbers = sum(int(np.prod(shape, dtype=object)) for _, shape in self.shapes())
        return _HEADER.size + 4 * numbers


def read_sizes(path: Path) -> Llama2cSizes:
    """Return the header of a file; raise if it is not one of llama2.c or of another length."""
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise ValueError(f"{path} is no checkpoint of llama2.c: it has {len(header)} bytes")
    width, mlp, layers, heads, kv_heads, vocabulary, longest = _HEADER.unpack(header)
    if width == _LATER_LAYOUT:
        raise ValueError(
            f"{path} has layout {mlp} of llama2.c; convert takes the legacy layout, 0: write it "
            "anew with `python export.py FILE --version 0` of llama2.c"
        )
    sizes = Llama2cSizes(
        width, mlp, layers, heads, kv_heads, abs(vocabulary), longest, tied=vocabulary > 0
    )
    _check_sizes(path, sizes)
    actual, expected = path.stat().st_size, sizes.file_size()
    if actual != expected:
        raise ValueError(
            f"{path} has {actual:,} bytes, and by its header it should have {expected:,}: it is "
            "cut short, damaged, or of another layout; fetch or export it again"
        )
    return sizes


def load_llama2c(path: Path) -> LlamaForCausalLM:
    """Return the model of a file in float32.

    It stops where llama2.c does, at the token that begins a text (1): stories are told apart by it.
    """
    sizes = read_sizes(path)
    tensors = _read_tensors(path, sizes)
    _check_rope(path, sizes, tensors)
    config = LlamaConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.width,
        intermediate_size=sizes.mlp_width,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        max_position_embeddings=sizes.longest,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": _THETA},
        tie_word_embeddings=sizes.tied,
        bos_token_id=1,
        eos_token_id=2,
        dtype="float32",
    )
    model: Any = LlamaForCausalLM.from_pretrained(
        None, config=config, state_dict=_state(sizes, tensors), dtype=torch.float32
    )
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=[2, 1])
    return model


def _check_sizes(path: Path, sizes: Llama2cSizes) -> None:
    """Raise unless the sizes are those of a decoder."""
    values = (
        *(sizes.width, sizes.mlp_width, sizes.layers, sizes.heads),
        *(sizes.kv_heads, sizes.vocabulary, sizes.longest),
    )
    wrong = ""
    if min(values) < 1 or max(values) > 2**24:
        wrong = "sizes that no model has"
    elif sizes.width % sizes.heads or sizes.head_width % 2:
        wrong = f"a width of {sizes.width} for {sizes.heads} heads of even width"
    elif sizes.heads % sizes.kv_heads:
        wrong = f"{sizes.heads} heads for {sizes.kv_heads} key-value heads"
    if wrong:
        raise ValueError(
            f"{path} is no checkpoint of llama2.c in its legacy layout: its first seven int32 say "
            f"{wrong} ({', '.join(map(str, values))})"
        )


def _read_tensors(path: Path, sizes: Llama2cSizes) -> dict[str, Any]:
    """Return the tensors by name, as views of the file."""
    numbers = np.memmap(path, dtype="<f4", mode="r", offset=_HEADER.size)
    tensors, start = {}, 0
    for name, shape in sizes.shapes():
        end = start + int(np.prod(shape))
        tensors[name] = numbers[start:end].reshape(shape)
        start = end
    return tensors


def _check_rope(path: Path, sizes: Llama2cSizes, tensors: dict[str, Any]) -> None:
    """Raise unless the file's rope has the base that llama2.c computes with."""
    frequencies = _THETA ** (-np.arange(0, sizes.head_width, 2) / sizes.head_width)
    angles = np.outer(np.arange(sizes.longest), frequencies)
    for name, expected in (("cosines", np.cos(angles)), ("sines", np.sin(angles))):
        difference = float(np.abs(tensors[name] - expected).max())
        if not difference <= _ROPE_TOLERANCE:  # NaN too
            raise ValueError(
                f"{path}: the {name} of rope differ by up to {difference:.3g} from those of base "
                f"{_THETA:.0f}, with which llama2.c computes: the file is damaged, or its model "
                "was trained with another rope"
            )


def _state(sizes: Llama2cSizes, tensors: dict[str, Any]) -> dict[str, Tensor]:
    """Return the weights under the names of transformers' LLaMA."""
    state = {}
    heads = {"q_proj": sizes.heads, "k_proj": sizes.kv_heads}
    for name, numbers in tensors.items():
        if name in ("cosines", "sines"):
            continue
        # The machine's own byte order, in memory of its own.
        weight = torch.from_numpy(np.array(numbers, dtype=np.float32))
        if "{}" not in name:
            state[name] = weight
            continue
        rotated = heads.get(name.split(".")[-2])
        for layer, of_layer in enumerate(weight):
            state[name.format(layer)] = (
                of_layer.contiguous() if rotated is None else _halves(of_layer, rotated)
            )
    if sizes.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    return state


def _halves(weight: Tensor, heads: int) -> Tensor:
    """Reorder the rows of each head: the even ones first, then the odd ones."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()


class _Piece(NamedTuple):
    text: str
    score: float


def load_tokenizer(path: Path, vocabulary: int, longest: int) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a file, of a model with so many tokens and so long sequences."""
    pieces = _read_pieces(path, vocabulary)
    unknown, begin, end = (piece.text for piece in pieces[:_SPECIAL])
    ids = {piece.text: i for i, piece in enumerate(pieces)}
    if len(ids) < len(pieces):
        twice = next(p.text for i, p in enumerate(pieces) if ids[p.text] != i)
        raise ValueError(f"{path} has the token {twice!r} twice; it is damaged")
    raw = Tokenizer(
        models.BPE(ids, _merges(pieces, ids), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    raw.normalizer = normalizers.Prepend(" ")
    raw.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    raw.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[(begin, 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        unk_token=unknown,
        bos_token=begin,
        eos_token=end,
        model_max_length=longest,
        clean_up_tokenization_spaces=False,
    )


def _merges(pieces: list[_Piece], ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return all pairs of tokens whose joined text is a token, by its score."""
    joined = sorted((-piece.score, i) for i, piece in enumerate(pieces) if i >= _FIRST_PIECE)
    merges = []
    for _, i in joined:
        text = pieces[i].text
        pairs = ((text[:cut], text[cut:]) for cut in range(1, len(text)))
        # What names a special token or a byte is no text that could be joined.
        merges += [
            pair for pair in pairs if all(ids.get(part, -1) >= _FIRST_PIECE for part in pair)
        ]
    return merges


def _read_pieces(path: Path, vocabulary: int) -> list[_Piece]:
    data = path.read_bytes()
    if len(data) < 4:
        raise ValueError(f"{path} is no tokenizer of llama2.c: it has {len(data)} bytes")
    (longest,) = struct.unpack_from("<i", data)
    pieces: list[_Piece] = []
    start = 4
    while len(pieces) < vocabulary:
        if start + _PIECE.size > len(data):
            raise ValueError(
                f"{path} ends after {len(pieces):,} tokens, and the model has {vocabulary:,}: it "
                "is cut short, or the tokenizer of another model"
            )
        score, length = _PIECE.unpack_from(data, start)
        start += _PIECE.size
        if not 1 <= length <= longest or start + length > len(data):
            raise ValueError(
                f"{path} is no tokenizer of llama2.c, or damaged: token {len(pieces)} has a length "
                f"of {length} bytes, of at most {longest}, with {len(data) - start} bytes left"
            )
        pieces.append(_Piece(_decode(path, len(pieces), data[start : start + length]), score))
        start += length
    if start != len(data):
        raise ValueError(
            f"{path} has {len(data) - start:,} bytes after its {vocabulary:,} tokens: it is "
            "damaged, or the tokenizer of a model with more tokens"
        )
    _check_special(path, pieces)
    return pieces


def _decode(path: Path, index: int, data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: token {index}, {data!r}, is not UTF-8; it is damaged") from error
    # llama2.c writes beginning and end between line breaks.
    return text.strip("\n") if index < _SPECIAL else text


def _check_special(path: Path, pieces: list[_Piece]) -> None:
    """Raise unless the tokens of bytes are where llama2.c expects them, and scores are numbers."""
    for byte in range(256):
        index = _SPECIAL + byte
        text = pieces[index].text if index < len(pieces) else "nothing"
        if text != f"<0x{byte:02X}>":
            raise ValueError(
                f"{path}: token {index} should be <0x{byte:02X}>, and is {text!r}: it is no "
                "tokenizer with bytes, as llama2.c needs"
            )
    if unscored := [i for i, piece in enumerate(pieces) if math.isnan(piece.score)]:
        raise ValueError(f"{path}: the score of token {unscored[0]} is no number; it is damaged")
