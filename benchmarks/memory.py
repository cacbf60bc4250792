"""Memory that a forward leaves allocated for its backward, and the peak of a training step.

Alive: all tensor storages that exist after the forward and did not exist before it: what autograd
saves, and what Python objects that it refers to may hold. Peak: by how much the memory of the
process (on a GPU, of the allocator) grows from before the first training step to its highest point,
gradients of the parameters included (on a CPU: Linux only). Each figure is from a new process.
With --variants the columns are plain and the named variants.
"""

import gc
import multiprocessing
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch
from measure import (
    COLUMNS,
    SHAPES,
    add_variants_option,
    build_models,
    build_variants,
    make_parser,
    parse_arguments,
    print_table,
)

from layermem_bench.costs.measuring import give_back_freed_memory, read_memory


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


def build_columns(fields, device, column=None, *, variants=None):
    """Return {column: model}, or at least ``column``."""
    if variants:
        # Of the family, plain and this one alone.
        return build_variants(fields, device, column or variants)
    return build_models(fields, device, [column] if column else COLUMNS)


def _prepare(build, shape, column, device):
    """Return the model of a column, and token ids."""
    torch.set_num_threads(1)
    fields, batch, tokens = SHAPES[shape]
    model = build(fields, device, column)[column]
    # What is allocated once by a process, at its first step, is not the model's.
    first = torch.zeros(1, 2, dtype=torch.long, device=device)
    model(first, labels=first, use_cache=False).loss.backward()
    model.zero_grad()
    # What was built beside it is not either.
    give_back_freed_memory()
    return model, torch.randint(256, (batch, tokens), device=device)


def alive_after_a_forward(build, shape, column, device):
    """Return the bytes of storages that a forward leaves allocated. To be called in a new process.

    A hook that hands a saved output on as it is makes a cycle that is never freed.
    """
    model, ids = _prepare(build, shape, column, device)
    before, saved = storages(), {}

    def record(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        loss = model(ids, labels=ids, use_cache=False).loss
    after = {**saved, **storages()}
    del loss
    return sum(size for address, size in after.items() if address not in before)


def peak_of_a_step(build, shape, column, device):
    """Return the bytes by which a training step raises the peak. To be called in a new process."""
    model, ids = _prepare(build, shape, column, device)
    before = read_memory(device, "now")
    model(ids, labels=ids, use_cache=False).loss.backward()
    return read_memory(device, "peak") - before


def _in_a_new_process(measure, *arguments):
    # Forked from a server that has imported this file, and done nothing else.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["__main__"])
    with ProcessPoolExecutor(1, server) as pool:
        return pool.submit(measure, *arguments).result()


def memory_rows(build, columns, shapes, device):
    """Return {"shape figure": {column: bytes}}, each figure from a new process.

    ``build`` is a function of the fields of a shape, a device and a column's name that returns at
    least that of {column: model}.
    """
    figures, rows = {"alive": alive_after_a_forward}, {}
    if device != "cpu" or Path("/proc/self/clear_refs").exists():
        figures["peak"] = peak_of_a_step
    for shape in shapes:
        for figure, measure in figures.items():
            rows[f"{shape} {figure}"] = {
                name: _in_a_new_process(measure, build, shape, name, device) for name in columns
            }
    return rows


def main():
    options = make_parser(__doc__)
    add_variants_option(options)
    args = parse_arguments(options)
    build = partial(build_columns, variants=args.variants)
    columns = list(build(SHAPES[args.shapes[0]][0], args.device))
    rows = memory_rows(build, columns, args.shapes, args.device)
    base = "plain" if args.variants else "llama"
    print_table("memory of a step", rows, args.device, args.json, base, ("MB", 1e-6))


if __name__ == "__main__":
    main()
