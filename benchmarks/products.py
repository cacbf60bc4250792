"""Speed of the matrix products that routing can be made of, in GFLOP/s, on one thread of a CPU.

For a layer that reads S slots of R heads with C = tokens x head width columns: all slots in one
product, one product for each slot added in place, one small product for each token (token-major
slots); and the router's gradient for each slot, for each four slots, and for four layers at once.
"""

import time

import torch

# name: heads, tokens, head width, slots
SHAPES = {
    "4 layers of width 32": (4, 8192, 8, 4),
    "8 layers of width 384": (6, 1024, 64, 8),
    "64 layers of width 128": (8, 1024, 16, 64),
}


def measure_speed(work, flops):
    """Return GFLOP/s by CPU time, the median of seven measurements."""
    work()
    speeds = []
    for _ in range(7):
        start, rounds = time.process_time(), 0
        while time.process_time() - start < 0.05:
            work()
            rounds += 1
        speeds.append(flops * rounds / (time.process_time() - start) / 1e9)
    return sorted(speeds)[3]


def main():
    torch.set_num_threads(1)
    for name, (heads, tokens, width, n_slots) in SHAPES.items():
        columns, flops = tokens * width, 2 * heads * heads * n_slots * tokens * width
        weight = torch.randn(heads, heads * n_slots)
        blocks = [block.contiguous() for block in weight.split(heads, 1)]
        slots = torch.randn(heads * n_slots, columns)
        parts = [part.contiguous() for part in slots.split(heads)]
        fours = [part.contiguous() for part in slots.split(4 * heads)]
        per_token = torch.randn(tokens, heads * n_slots, width)
        out, grads = torch.empty(heads, columns), torch.randn(4 * heads, columns)
        grad = grads[:heads]

        def route_slot_by_slot(out=out, blocks=blocks, parts=parts):
            torch.mm(blocks[0], parts[0], out=out)
            for block, part in zip(blocks[1:], parts[1:], strict=True):
                out.addmm_(block, part)

        works = {
            "route: one product": (lambda w=weight, s=slots: w @ s, 1),
            "route: one per slot, added": (route_slot_by_slot, 1),
            "route: one per token": (lambda w=weight, p=per_token: torch.matmul(w, p), 1),
            "gradient: one per slot": (lambda g=grad, p=parts: [g @ s.t() for s in p], 1),
            "gradient: one per four slots": (lambda g=grad, p=fours: [g @ s.t() for s in p], 1),
            "gradient: four layers by four slots": (
                lambda g=grads, p=fours: [g @ s.t() for s in p],
                4,
            ),
        }
        print(name)
        for what, (work, layers) in works.items():
            print(f"  {what:38s} {measure_speed(work, layers * flops):6.1f} GFLOP/s", flush=True)


if __name__ == "__main__":
    main()
