"""Memory and communication of training in several processes, as `layermem costs` counts them.

    python benchmarks/footprint.py [--processes N ...] [--batch-size N] [--micro-batch N]

Gigabytes that a process holds when all gradients are there, without activations, and that it sends
in a step: with a copy of the model each (DDP), and with parameters shared (FSDP2).
tests/efficiency/test_memory.py compares the counts with what is allocated.
"""

import argparse

from layermem.models.registry import lookup
from layermem_bench.config.counting import count_parameters
from layermem_bench.efficiency.memory import Step, parameter_memory
from layermem_bench.efficiency.model_sizes import model_sizes
from layermem_bench.efficiency.plans import copy_traffic, shard_traffic
from layermem_bench.presets import get_preset

SIZES_7B = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
WAYS = {
    "DDP": {},
    "FSDP2, float32": {"shard": True},
    "FSDP2, bfloat16": {"shard": True, "half": True},
}


def main():
    run = get_preset("paper-1b-gqa")
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--processes", type=int, nargs="+", default=[8, 64])
    options.add_argument("--batch-size", type=int, default=run.optim.batch_size)
    options.add_argument("--micro-batch", type=int, default=run.compute.micro_batch)
    args = options.parse_args()
    entry = lookup("lime")
    for name, sizes in {"1B, 8 kv heads": model_sizes(run)[0], "7B": SIZES_7B}.items():
        config = entry.config(**sizes)
        parameters = count_parameters(config, entry.variant)
        routers = entry.variant.extra_parameters(config)
        print(f"{name}: {parameters / 1e9:.2f}B parameters, of them {routers:,} in routers")
        for n in args.processes:
            micro = max(1, args.batch_size // (args.micro_batch * n))
            print(f"  {n} processes, {micro} micro-batches a step (GB held; GB sent in a step)")
            for way, fields in WAYS.items():
                step = Step(
                    sequences=args.micro_batch,
                    tokens=1,
                    micro_batches=micro,
                    processes=n,
                    **fields,
                )
                of_model = config, entry.variant, step
                sent = copy_traffic(*of_model) + shard_traffic(*of_model)
                print(f"    {way:18} {parameter_memory(*of_model) / 1e9:6.1f} {sent / 1e9:9,.1f}")


if __name__ == "__main__":
    main()
