"""The LLaMA of 260,032 parameters that llama2.c publishes, where its files (stories260K) are.

7 int32 (width, mlp width, layers, heads, kv heads, vocabulary, longest sequence), then float32
weights by kind, all layers of a kind together; rope turns neighbouring features
"""

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

FOLDER = Path(__file__).parents[2] / "shared" / "data" / "checkpoints" / "stories260K"
needs_stories = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="the checkpoint stories260K is not on this machine"
)


def stories_model():
    """Return the checkpoint as transformers' LLaMA."""
    data = (FOLDER / "stories260K.bin").read_bytes()
    width, mlp, layers, heads, kv_heads, vocabulary, longest = struct.unpack("7i", data[:28])
    numbers = torch.from_numpy(np.frombuffer(data[28:], dtype=np.float32).copy())
    kv_width = width // heads * kv_heads
    kinds = {
        "input_layernorm": (width,),
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (kv_width, width),
        "self_attn.v_proj": (kv_width, width),
        "self_attn.o_proj": (width, width),
        "post_attention_layernorm": (width,),
        "mlp.gate_proj": (mlp, width),
        "mlp.down_proj": (width, mlp),
        "mlp.up_proj": (mlp, width),
    }
    state, at = {"model.embed_tokens.weight": numbers[: vocabulary * width]}, vocabulary * width
    state["model.embed_tokens.weight"] = state["model.embed_tokens.weight"].view(vocabulary, width)
    for kind, shape in kinds.items():
        size = int(np.prod(shape))
        for layer in range(layers):
            weight, at = numbers[at : at + size].view(shape), at + size
            if kind in ("self_attn.q_proj", "self_attn.k_proj"):
                weight = _halves_for_neighbours(weight, heads if "q_" in kind else kv_heads)
            state[f"model.layers.{layer}.{kind}.weight"] = weight
    state["model.norm.weight"] = numbers[at : at + width]
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=longest,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model


def stories_tokenizer():
    """Return its tokenizer: pairs are merged in the order of their scores, the highest first."""
    data = (FOLDER / "tok512.bin").read_bytes()
    at, pieces = 4, []
    while at < len(data):
        score, length = struct.unpack("fi", data[at : at + 8])
        pieces.append((data[at + 8 : at + 8 + length].decode(), score))
        at += 8 + length
    # The file names bytes <0x00> and so on, and writes the first three with line breaks.
    names = [text.strip("\n") if i < 3 else text for i, (text, _) in enumerate(pieces)]
    vocabulary = {name: i for i, name in enumerate(names)}
    joined = sorted((-score, i) for i, (_, score) in enumerate(pieces) if i >= 259)
    merges = [
        (names[i][:cut], names[i][cut:])
        for _, i in joined
        for cut in range(1, len(names[i]))
        if names[i][:cut] in vocabulary and names[i][cut:] in vocabulary
    ]
    raw = Tokenizer(
        models.BPE(vocabulary, merges, unk_token=names[0], fuse_unk=True, byte_fallback=True)
    )
    raw.normalizer = normalizers.Prepend(" ")
    raw.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    raw.post_processor = processors.TemplateProcessing(
        single=f"{names[1]} $A", special_tokens=[(names[1], 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token=names[1], eos_token=names[2], unk_token=names[0]
    )


def _halves_for_neighbours(weight, heads):
    """Reorder rows: transformers' rope turns the first half of a head with its second half."""
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
