"""Time of routing by depth: a forward and backward of all routes of a model, and nothing else.

Width 128, 8 heads, 4 x 256 tokens, float32: by routers that read all layers so far, and the last
four only. An exponent is the slope of log time over log depth between two depths. It tends to 2
where every layer reads all earlier ones.
"""

import math

import torch
from measure import make_parser, median_seconds, parse_arguments, print_table

from layermem import LimeRouter
from layermem.ops.shared_buffer import begin

DEPTHS = (4, 8, 16, 32, 64, 128)
WINDOW = 4


class Routes(torch.nn.Module):
    """The slots and routers of a model without its other parts."""

    def __init__(self, depth, window):
        super().__init__()
        self.routers = torch.nn.ModuleList(
            LimeRouter(8, range(max(0, i + 1 - window), i + 1)) for i in range(depth)
        )

    def forward(self, key, value):
        weights = [(router.weight,) for router in self.routers]
        shared = begin(weights, [router.sources for router in self.routers], key)
        handed, total = shared.handed, 0.0
        for layer, router in enumerate(self.routers):
            slots = shared.slots(layer, handed)
            slots.append(key * 1.0, value * 1.0)
            k, v = router(None, slots)
            handed = slots.handed
            total = total + k.sum() + v.sum()
        return total


def main():
    args, rows = parse_arguments(make_parser(__doc__, ())), {}
    key, value = torch.randn(2, 4, 256, 8, 16, device=args.device).transpose(2, 3).unbind()
    key, value = key.requires_grad_(), value.requires_grad_()
    for depth in DEPTHS:
        windows = {"all layers": depth, f"last {WINDOW}": WINDOW}
        models = {name: Routes(depth, n).to(args.device) for name, n in windows.items()}
        repeats = args.repeats if depth < 64 else max(1, args.repeats // 4)
        seconds = median_seconds(models, lambda m: m(key, value).backward(), repeats, args.device)
        rows[str(depth)] = seconds
    print_table("routing alone, by depth", rows, args.device, args.json, base="all layers")
    for name in rows[str(DEPTHS[0])]:
        for a, b in ((32, 128), (64, 128)):
            ratio = rows[str(b)][name] / rows[str(a)][name]
            exponent = math.log(ratio) / math.log(b / a)
            print(f"  {name}: exponent {exponent:.2f} from {a} to {b} layers")


if __name__ == "__main__":
    main()
