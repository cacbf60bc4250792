"""What ``layermem.testing`` says of models that are not ours.

    pip install --target OTHERS --no-deps x-transformers hyper-connections einops einx \\
        torch-einops-utils loguru frozendict
    PYTHONPATH=OTHERS python benchmarks/kit_on_others.py
"""

from importlib.metadata import version

from hyper_connections import get_init_and_expand_reduce_stream_functions
from torch import Tensor, nn
from transformers import Gemma3nForCausalLM, Gemma3nTextConfig
from x_transformers import Decoder, TransformerWrapper

from layermem import testing

WORDS, WIDTH, LAYERS = 61, 32, 4


def x_transformers(**options: bool) -> nn.Module:
    """Return a decoder of x-transformers."""
    layers = Decoder(
        dim=WIDTH, depth=LAYERS, heads=4, attn_dim_head=8, rotary_pos_emb=True, **options
    )
    return TransformerWrapper(num_tokens=WORDS, max_seq_len=64, attn_layers=layers)


class Layer(nn.Module):
    """Causal attention, or an mlp."""

    def __init__(self, is_attention: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True) if is_attention else None
        mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
        self.mlp = None if is_attention else mlp

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        if self.mlp is not None:
            return self.mlp(x)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


class HyperConnected(nn.Module):
    """A small transformer whose sub-layers are wrapped in hyper-connections."""

    def __init__(self) -> None:
        super().__init__()
        wrap, self.expand, self.reduce = get_init_and_expand_reduce_stream_functions(4)
        self.embed = nn.Embedding(WORDS, WIDTH)
        branches = [Layer(i % 2 == 0) for i in range(2 * LAYERS)]
        self.layers = nn.ModuleList(wrap(dim=WIDTH, branch=branch) for branch in branches)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.expand(self.embed(ids))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(self.reduce(x)))


def gemma3n() -> nn.Module:
    """Return a small Gemma 3n for text."""
    sizes = {"num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"hidden_size": WIDTH, "intermediate_size": [40] * LAYERS, "head_dim": 8}
    sizes |= {"vocab_size": WORDS, "vocab_size_per_layer_input": WORDS, "pad_token_id": 0}
    sizes |= {"hidden_size_per_layer_input": 8, "laurel_rank": 4, "num_kv_shared_layers": 2}
    kinds = ["sliding_attention", "full_attention"] * (LAYERS // 2)
    sparsity = [0.0] * LAYERS
    config = Gemma3nTextConfig(**sizes, layer_types=kinds, activation_sparsity_pattern=sparsity)
    return Gemma3nForCausalLM(config)


if __name__ == "__main__":
    for package in ("torch", "transformers", "x-transformers", "hyper-connections"):
        print(package, version(package))
    for name, build in {
        "x-transformers, DynamicLIMe": lambda: x_transformers(integrate_layers=True),
        "x-transformers, value residual": lambda: x_transformers(add_value_residual=True),
        "hyper-connections": HyperConnected,
        "gemma3n": gemma3n,
    }.items():
        for check in ("causal", "gradients", "checkpointing", "saved", "cached"):
            try:
                getattr(testing, f"check_{check}")(build)
                said = "passes"
            except testing.ContractError as error:
                said = str(error)
            print(f"{name}, {check}: {said}", flush=True)
