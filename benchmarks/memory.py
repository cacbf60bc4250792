"""What a forward leaves alive for its backward, and what a step takes at its peak.

Alive: every storage that was not there before the forward and is there after it, parameters apart:
what autograd saves and whatever a Python object behind it may hold. Peak: what the process (on a
GPU, the allocator) grows by from before the first training step to the highest point within it,
gradients of the parameters included; each figure from a process of its own (on a CPU: Linux only).
"""

import gc
import multiprocessing
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from measure import SHAPES, arguments, columns, parser, show

from layermem.efficiency.measuring import held
from layermem.ops.route import using


def storages():
    """Return {address: bytes} of every storage that a Python tensor or autograd's graph holds."""
    gc.collect()
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for thing in gc.get_objects():
            if isinstance(thing, torch.Tensor) and not thing.is_meta:
                found[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    return found


def alive_after(model, ids):
    """Bytes alive after a forward that were not before."""
    before, saved = storages(), {}

    def note(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = model(ids, labels=ids, use_cache=False).loss
    after = {**saved, **storages()}
    del loss
    return sum(size for address, size in after.items() if address not in before)


def peak_of_a_step(shape, column, device):
    """Bytes by which a training step raises the peak. To be called in a fresh process."""
    torch.set_num_threads(1)
    fields, batch, tokens = SHAPES[shape]
    model, implementation = columns(fields, device)[column]
    ids = torch.randint(256, (batch, tokens), device=device)
    before = held(device, "now")
    with using(implementation):
        model(ids, labels=ids, use_cache=False).loss.backward()
    return held(device, "peak") - before


def main():
    args, rows = arguments(parser(__doc__)), {}
    fresh = multiprocessing.get_context("spawn")
    for shape in args.shapes:
        fields, batch, tokens = SHAPES[shape]
        ids = torch.randint(256, (batch, tokens), device=args.device)
        alive, peak = {}, {}
        for name, (model, implementation) in columns(fields, args.device).items():
            with using(implementation):
                alive[name] = alive_after(model, ids)
            if args.device != "cpu" or Path("/proc/self/clear_refs").exists():
                with ProcessPoolExecutor(1, fresh) as pool:
                    peak[name] = pool.submit(peak_of_a_step, shape, name, args.device).result()
        rows |= {f"{shape} alive": alive, **({f"{shape} peak": peak} if peak else {})}
    show("memory of a step", rows, args.device, args.json, unit=("MB", 1e-6))


if __name__ == "__main__":
    main()
