"""What a forward leaves alive for its backward, against Hugging Face's LLaMA.

Counts every storage that was not alive before the forward and is alive after it, parameters apart:
what autograd saves and whatever a Python object behind it may hold.
"""

import gc
import warnings

import torch
from measure import SHAPES, arguments, columns, show

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


def main():
    args, rows = arguments(__doc__), {}
    for shape in args.shapes:
        fields, batch, tokens = SHAPES[shape]
        ids = torch.randint(256, (batch, tokens), device=args.device)
        rows[shape] = {}
        models = columns(fields, args.device)
        for name, (model, implementation) in models.items():
            with using(implementation):
                rows[shape][name] = alive_after(model, ids)
    show("alive after a forward", rows, args.device, args.json, unit=("MB", 1e-6))


if __name__ == "__main__":
    main()
