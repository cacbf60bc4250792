"""Memory that a forward leaves allocated for its backward, and the peak of a training step.

Alive: all tensor storages that exist after the forward and did not exist before it: what autograd
saves, and what Python objects that it refers to may hold. Peak: by how much the memory of the
process (on a GPU, of the allocator) grows from before the first training step to its highest point,
gradients of the parameters included; each figure is from a new process (on a CPU: Linux only).
With --variants the columns are plain and the named variants.
"""

import gc
import multiprocessing
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from measure import (
    SHAPES,
    add_variants_option,
    build_models,
    build_variants,
    forcing,
    make_parser,
    parse_arguments,
    print_table,
)

from layermem.efficiency.measuring import read_memory


def storages():
    """Return {address: bytes} of every storage that a tensor known to Python refers to."""
    gc.collect()
    sizes = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for item in gc.get_objects():
            if isinstance(item, torch.Tensor) and not item.is_meta:
                sizes[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
    return sizes


def alive_after(model, ids):
    """Return the bytes of storages that a forward leaves allocated."""
    before, saved = storages(), {}

    def record(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        loss = model(ids, labels=ids, use_cache=False).loss
    after = {**saved, **storages()}
    del loss
    return sum(size for address, size in after.items() if address not in before)


def build_columns(fields, device, variants):
    """Return {column: (model, implementation of routing)}."""
    if variants:
        return build_variants(fields, device, variants)
    # Not naive, which saves a copy of all slots for each layer.
    names = ["functional", "deferred", "grouped"] if device == "cpu" else None
    return build_models(fields, device, names)


def peak_of_a_step(shape, column, device, variants=None):
    """Return the bytes by which a training step raises the peak. To be called in a new process."""
    torch.set_num_threads(1)
    fields, batch, tokens = SHAPES[shape]
    model, implementation = build_columns(fields, device, variants)[column]
    ids = torch.randint(256, (batch, tokens), device=device)
    before = read_memory(device, "now")
    with forcing(implementation):
        model(ids, labels=ids, use_cache=False).loss.backward()
    return read_memory(device, "peak") - before


def main():
    options = make_parser(__doc__)
    add_variants_option(options)
    args, rows = parse_arguments(options), {}
    spawn = multiprocessing.get_context("spawn")
    for shape in args.shapes:
        fields, batch, tokens = SHAPES[shape]
        ids = torch.randint(256, (batch, tokens), device=args.device)
        alive, peak = {}, {}
        models = build_columns(fields, args.device, args.variants)
        for name, (model, implementation) in models.items():
            with forcing(implementation):
                alive[name] = alive_after(model, ids)
            if args.device != "cpu" or Path("/proc/self/clear_refs").exists():
                with ProcessPoolExecutor(1, spawn) as pool:
                    task = peak_of_a_step, shape, name, args.device, args.variants
                    peak[name] = pool.submit(*task).result()
        rows |= {f"{shape} alive": alive, **({f"{shape} peak": peak} if peak else {})}
    base = "plain" if args.variants else "llama"
    print_table("memory of a step", rows, args.device, args.json, base, ("MB", 1e-6))


if __name__ == "__main__":
    main()
