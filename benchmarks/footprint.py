"""Memory and communication of training in many processes, counted from closed forms.

Float32 weights, gradients and two AdamW moments (16 bytes a parameter); activations are not
counted. DDP: every process has all of it, and a step averages the gradients (a ring: twice the
gradients, less one part). FSDP2: every process has its part and one layer whole at a time, twice;
a step gathers the weights for forward and backward and scatters the gradients. Bytes are what one
process sends in a step, without accumulation.
"""

import argparse

from layermem.experiments import presets
from layermem.models.counting import parameters
from layermem.models.registry import lookup

SEVEN = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}


def sizes():
    """Return {name: config fields}."""
    model = presets.lookup("paper-1b-gqa").model
    fields = {name: getattr(model, name) for name in model.__dataclass_fields__}
    fields.pop("options")
    return {"1B, 8 kv heads": fields, "7B": SEVEN}


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--processes", type=int, nargs="+", default=[8, 64])
    args = options.parse_args()
    entry = lookup("lime")
    for name, fields in sizes().items():
        config = entry.config(**fields)
        count = parameters(config, entry.variant)
        one_layer = {**fields, "num_hidden_layers": 1}
        layer = parameters(entry.config(**one_layer), entry.variant) - (
            config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
        )
        routers = entry.variant.extra_parameters(config)
        print(f"{name}: {count / 1e9:.2f}B parameters, of them {routers:,} in routers")
        for n in args.processes:
            rest = (n - 1) / n
            ddp, fsdp = 16 * count, 16 * count / n + 2 * 4 * layer
            sent = [times * rest * count / 1e9 for times in (8, 12)]
            print(
                f"  {n:3d} processes: DDP {ddp / 1e9:6.1f} GB each, {sent[0]:5.1f} GB sent; "
                f"FSDP2 {fsdp / 1e9:5.1f} GB each, {sent[1]:5.1f} GB sent"
            )


if __name__ == "__main__":
    main()
