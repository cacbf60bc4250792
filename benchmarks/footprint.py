"""Memory and communication of training in many processes, counted from closed forms.

Float32 weights, gradients and two AdamW moments (16 bytes a parameter); activations are not
counted. DDP: every process has all of it, and a step averages the gradients once, however many
micro-batches it has (a ring: twice the gradients, less one part). FSDP2: every process has its
part; whole it has embeddings and head and one layer at a time, weights and gradients, and what
compute.keep_whole says. Each micro-batch gathers a layer for forward and for backward (all else
once) and scatters the gradients; with keep_whole they are scattered once a step, and with "all"
weights are gathered once a step too. In bfloat16 the weights of linear layers travel in 2 bytes.
Bytes are what one process sends. tests/train/test_processes.py holds them against what is sent.
"""

import argparse
from dataclasses import dataclass

from layermem.experiments import presets
from layermem.models.counting import count_parameters
from layermem.models.registry import lookup

SEVEN = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
KEPT = ("nothing", "gradients", "all")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """How many parameters travel in which way."""

    linear: int
    """Of the linear layers of all decoder layers."""
    wide: int
    """Of their norms and routers, in float32 whatever the precision."""
    root: int
    """Embeddings, head, final norm: the unit that is gathered once a forward."""
    layers: int
    """Decoder layers."""

    @property
    def all(self):
        return self.linear + self.wide + self.root


def gathered(parts, *, micro_batches, kept, narrow):
    """Bytes of the weights that are gathered in a step, whole."""
    linear = (2 if narrow else 4) * parts.linear
    # In bfloat16 norms and routers are a unit that stays, in float32 they are with their layer.
    twice, once = (linear, 4 * parts.wide) if narrow else (linear + 4 * parts.wide, 0)
    once += 4 * parts.root
    return once + twice if kept == "all" else micro_batches * (once + 2 * twice)


def scattered(parts, *, micro_batches, kept):
    """Bytes of the gradients that are summed and scattered in a step, whole."""
    return 4 * parts.all * (micro_batches if kept == "nothing" else 1)


def held(parts, *, processes, kept, narrow):
    """Bytes one process holds: its part, and what is whole at the same time."""
    linear = (2 if narrow else 4) * parts.linear
    weights, one_layer = 4 * (parts.wide + parts.root), linear / parts.layers
    weights += linear if kept == "all" else one_layer
    gradients = 4 * (parts.root + parts.linear / parts.layers)
    if kept != "nothing":
        gradients = 4 * parts.all
    return 16 * parts.all / processes + weights + gradients


def parts_of(fields):
    """Return the parts of a LIMe model of these sizes."""
    entry = lookup("lime")
    config = entry.config(**fields)
    root = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    root += config.hidden_size
    routers = entry.variant.extra_parameters(config)
    wide = 2 * config.num_hidden_layers * config.hidden_size + routers
    linear = count_parameters(config, entry.variant) - root - wide
    parts = Parts(linear=linear, wide=wide, root=root, layers=config.num_hidden_layers)
    return parts, routers


def sizes():
    """Return {name: config fields}."""
    model = presets.lookup("paper-1b-gqa").model
    fields = {name: getattr(model, name) for name in model.__dataclass_fields__}
    fields.pop("options")
    return {"1B, 8 kv heads": fields, "7B": SEVEN}


def main():
    run = presets.lookup("paper-1b-gqa")
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--processes", type=int, nargs="+", default=[8, 64])
    options.add_argument("--batch-size", type=int, default=run.optim.batch_size)
    options.add_argument("--micro-batch", type=int, default=run.compute.micro_batch)
    args = options.parse_args()
    for name, fields in sizes().items():
        parts, routers = parts_of(fields)
        print(f"{name}: {parts.all / 1e9:.2f}B parameters, of them {routers:,} in routers")
        for n in args.processes:
            rest, micro = (n - 1) / n, max(1, args.batch_size // (args.micro_batch * n))
            print(f"  {n} processes, {micro} micro-batches a step (GB each; GB sent in a step)")
            ddp = 16 * parts.all, 8 * parts.all * rest
            print(f"    {'DDP':28} {ddp[0] / 1e9:6.1f} {ddp[1] / 1e9:8.1f}")
            for kept, narrow in (("nothing", False), *((kept, True) for kept in KEPT)):
                memory = held(parts, processes=n, kept=kept, narrow=narrow)
                sent = gathered(parts, micro_batches=micro, kept=kept, narrow=narrow)
                sent += scattered(parts, micro_batches=micro, kept=kept)
                label = f"FSDP2, {'bfloat16' if narrow else 'float32'}, {kept}"
                print(f"    {label:28} {memory / 1e9:6.1f} {sent * rest / 1e9:8.1f}")


if __name__ == "__main__":
    main()
