"""A checkpoint and tokenizer of llama2.c (its legacy layout) as those of transformers.

    python examples/llama2c.py stories260K.bin runs/stories260K --tokenizer tok512.bin

What is written is a LLaMA: `layermem models convert` makes a variant of it, `attach` adds memory.

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

import argparse
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_THETA = 10_000.0


def load_llama2c(path: Path) -> LlamaForCausalLM:
    """Return the model of a file in float32.

    It stops where llama2.c does, at the token that begins a text (1): stories are told apart by it.
    """
    config = _read_config(path)
    numbers = np.memmap(path, dtype="<f4", mode="r", offset=_HEADER.size)
    tensors, start = {}, 0
    for name, shape in _shapes(config):
        end = start + math.prod(shape)
        # The machine's own byte order, in memory of its own.
        tensors[name] = torch.from_numpy(np.array(numbers[start:end], np.float32)).reshape(shape)
        start = end
    del tensors["cosines"], tensors["sines"]
    model: Any = LlamaForCausalLM.from_pretrained(
        None, config=config, state_dict=_state(config, tensors), dtype=torch.float32
    )
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=[2, 1])
    return model


def _read_config(path: Path) -> LlamaConfig:
    """Return what the header of a file says; raise if the file is of another length."""
    with path.open("rb") as file:
        header = file.read(_HEADER.size).ljust(_HEADER.size, b"\0")
    sizes = _HEADER.unpack(header)
    width, mlp_width, layers, heads, kv_heads, vocabulary, longest = sizes
    actual, expected = path.stat().st_size, 0
    if min(*sizes[:5], abs(vocabulary), longest) > 0 and not width % (2 * heads):
        config = LlamaConfig(
            vocab_size=abs(vocabulary),
            hidden_size=width,
            intermediate_size=mlp_width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            max_position_embeddings=longest,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": _THETA},
            tie_word_embeddings=vocabulary > 0,
            bos_token_id=1,
            eos_token_id=2,
            dtype="float32",
        )
        expected = _HEADER.size + 4 * sum(math.prod(shape) for _, shape in _shapes(config))
    if actual != expected:
        raise ValueError(
            f"{path} has {actual:,} bytes, and by the sizes at its start {sizes} it should have "
            f"{expected or 'none'}: it is cut short, damaged, or not of llama2.c's legacy layout, "
            "which `python export.py FILE --version 0` of llama2.c writes"
        )
    return config


def _shapes(config: LlamaConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensors of a file in order; "{}" stands for the layer."""
    width, mlp, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    half = width // config.num_attention_heads // 2
    keys = 2 * half * int(config.num_key_value_heads or 0)
    yield "model.embed_tokens.weight", (config.vocab_size, width)
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
    yield "cosines", (config.max_position_embeddings, half)
    yield "sines", (config.max_position_embeddings, half)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, width)


def _state(config: LlamaConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under the names of transformers' LLaMA."""
    state = {}
    heads = {"q_proj": config.num_attention_heads, "k_proj": int(config.num_key_value_heads or 0)}
    for name, tensor in tensors.items():
        if "{}" not in name:
            state[name] = tensor
            continue
        if rotated := heads.get(name.split(".")[-2]):
            # Of each head the even rows first, then the odd ones.
            tensor = tensor.unflatten(1, (rotated, -1, 2)).transpose(2, 3).flatten(1, 3)
        state |= {name.format(layer): weight.clone() for layer, weight in enumerate(tensor)}
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    return state


def load_tokenizer(path: Path, config: LlamaConfig) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a file, for a model of this config."""
    pieces = _read_pieces(path, config.vocab_size)
    unknown, begin, end = list(pieces)[:_SPECIAL]
    ids = {text: i for i, text in enumerate(pieces)}
    merges = _merges(pieces, ids)
    raw = Tokenizer(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
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
        model_max_length=config.max_position_embeddings,
        clean_up_tokenization_spaces=False,
    )


def _merges(pieces: dict[str, float], ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return all pairs of tokens whose joined text is a token, by its score."""
    merges: list[tuple[str, str]] = []
    for text in sorted(list(pieces)[_FIRST_PIECE:], key=lambda text: -pieces[text]):
        pairs = ((text[:cut], text[cut:]) for cut in range(1, len(text)))
        # What names a special token or a byte is no text that could be joined.
        merges += [
            pair for pair in pairs if all(ids.get(part, -1) >= _FIRST_PIECE for part in pair)
        ]
    return merges


def _read_pieces(path: Path, vocabulary: int) -> dict[str, float]:
    """Return the texts of all tokens in order, each with its score."""
    data, start = path.read_bytes(), 4
    pieces: dict[str, float] = {}
    try:
        for number in range(vocabulary):
            score, length = _PIECE.unpack_from(data, start)
            start += _PIECE.size + length
            text = data[start - length : start].decode()
            # llama2.c writes beginning and end between line breaks.
            pieces[text.strip("\n") if number < _SPECIAL else text] = score
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: token {number} cannot be read ({error})") from error
    is_whole = start == len(data) and len(pieces) == vocabulary
    is_whole = is_whole and list(pieces)[_SPECIAL:_FIRST_PIECE] == _BYTES
    if not is_whole or any(map(math.isnan, pieces.values())):
        raise ValueError(
            f"{path} is damaged, or no tokenizer of llama2.c with {vocabulary} tokens, bytes among "
            "them: fetch it again, or name that of the model"
        )
    return pieces


def main() -> None:
    """Convert the checkpoint that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path, help="the file of the weights")
    parser.add_argument("target", type=Path, help="the folder to write")
    parser.add_argument("--tokenizer", type=Path, help="the file of the tokenizer, if any")
    asked = parser.parse_args()
    model = load_llama2c(asked.source)
    model.save_pretrained(asked.target)
    if asked.tokenizer is not None:
        load_tokenizer(asked.tokenizer, model.config).save_pretrained(asked.target)
    print(f"wrote {asked.target}: a LLaMA of {model.num_parameters():,} parameters")


if __name__ == "__main__":
    main()
