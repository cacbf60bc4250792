"""Memory and communication of training in several processes, in closed form.

Float32 weights, gradients and two AdamW moments (16 bytes a parameter); activations are not
counted. DDP: every process holds all of them, and a step averages the gradients once, however many
micro-batches it has (as a ring: twice the gradients, less one part). FSDP2: every process holds its
part, and the whole weights and gradients of embeddings, head and one layer at a time, and of what
compute.keep_whole names. Each micro-batch gathers a layer for the forward and for the backward (all
else once) and scatters the gradients; with keep_whole they are scattered once a step, and with
"all" the weights are gathered once a step too. In bfloat16 the weights of linear layers are sent in
2 bytes. Bytes are those that one process sends; tests/train/test_processes.py compares them with
what is sent.
"""

import argparse
from dataclasses import dataclass

from layermem.models.counting import count_parameters
from layermem.models.registry import lookup
from layermem_bench import presets

SIZES_7B = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
KEPT = ("nothing", "gradients", "all")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Numbers of parameters by the way they are sent."""

    linear: int
    """Weights of the linear layers of all decoder layers."""
    wide: int
    """Weights of their norms and routers, always in float32."""
    root: int
    """Embeddings, head and final norm, which are gathered once a forward."""
    layers: int
    """Number of decoder layers."""

    @property
    def all(self):
        return self.linear + self.wide + self.root


def count_gathered_bytes(parts, *, micro_batches, kept, narrow):
    """Return the bytes of all weights that a step gathers."""
    linear = (2 if narrow else 4) * parts.linear
    # In bfloat16 norms and routers are a unit that stays gathered; in float32 they are gathered
    # with their layer.
    twice, once = (linear, 4 * parts.wide) if narrow else (linear + 4 * parts.wide, 0)
    once += 4 * parts.root
    return once + twice if kept == "all" else micro_batches * (once + 2 * twice)


def count_scattered_bytes(parts, *, micro_batches, kept):
    """Return the bytes of all gradients that a step sums and scatters."""
    return 4 * parts.all * (micro_batches if kept == "nothing" else 1)


def count_held_bytes(parts, *, processes, kept, narrow):
    """Return the bytes that one process holds: its part, and what is gathered at the same time."""
    linear = (2 if narrow else 4) * parts.linear
    weights, one_layer = 4 * (parts.wide + parts.root), linear / parts.layers
    weights += linear if kept == "all" else one_layer
    gradients = 4 * (parts.root + parts.linear / parts.layers)
    if kept != "nothing":
        gradients = 4 * parts.all
    return 16 * parts.all / processes + weights + gradients


def count_parts(fields):
    """Return the parts of a LIMe model of these sizes, and the number of weights in routers."""
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
    model = presets.get_preset("paper-1b-gqa").model
    fields = {name: getattr(model, name) for name in model.__dataclass_fields__}
    fields.pop("options")
    return {"1B, 8 kv heads": fields, "7B": SIZES_7B}


def main():
    run = presets.get_preset("paper-1b-gqa")
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--processes", type=int, nargs="+", default=[8, 64])
    options.add_argument("--batch-size", type=int, default=run.optim.batch_size)
    options.add_argument("--micro-batch", type=int, default=run.compute.micro_batch)
    args = options.parse_args()
    for name, fields in sizes().items():
        parts, routers = count_parts(fields)
        print(f"{name}: {parts.all / 1e9:.2f}B parameters, of them {routers:,} in routers")
        for n in args.processes:
            share, micro = (n - 1) / n, max(1, args.batch_size // (args.micro_batch * n))
            print(f"  {n} processes, {micro} micro-batches a step (GB each; GB sent in a step)")
            ddp = 16 * parts.all, 8 * parts.all * share
            print(f"    {'DDP':28} {ddp[0] / 1e9:6.1f} {ddp[1] / 1e9:8.1f}")
            for kept, narrow in (("nothing", False), *((kept, True) for kept in KEPT)):
                memory = count_held_bytes(parts, processes=n, kept=kept, narrow=narrow)
                sent = count_gathered_bytes(parts, micro_batches=micro, kept=kept, narrow=narrow)
                sent += count_scattered_bytes(parts, micro_batches=micro, kept=kept)
                label = f"FSDP2, {'bfloat16' if narrow else 'float32'}, {kept}"
                print(f"    {label:28} {memory / 1e9:6.1f} {sent * share / 1e9:8.1f}")


if __name__ == "__main__":
    main()
