"""What torch.compile has to trace, by depth: nodes of the backward graph, and seconds of tracing.

A forward of the plain decoder and of LIMe, width 128, is traced into a forward and a backward graph
(``aot_eager``); no code is generated. The time is the CPU time of the process.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from measure import SHAPES, complete_fields, describe_machine
from torch._dynamo.backends.common import aot_autograd

import layermem


def trace(variant, depth):
    """Return (CPU seconds, nodes of the forward graph, nodes of the backward graph)."""
    nodes = []

    def count(graph, _):
        nodes.append(len(graph.graph.nodes))
        return graph.forward

    torch.compiler.reset()
    torch.manual_seed(0)
    fields = complete_fields(SHAPES["32x128"][0]) | {"num_hidden_layers": depth}
    model = layermem.build(variant, **fields)
    ids = torch.randint(256, (4, 256))
    compiled = torch.compile(
        model, fullgraph=True, backend=aot_autograd(fw_compiler=count, bw_compiler=count)
    )
    start = time.process_time()
    compiled(ids, labels=ids, use_cache=False).loss.backward()
    forward, backward = nodes
    return time.process_time() - start, forward, backward


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--depths", nargs="+", type=int, default=[16, 32, 64])
    options.add_argument("--json", type=Path, help="file to write the figures to")
    args = options.parse_args()
    torch.set_num_threads(1)
    torch._dynamo.config.cache_size_limit = 64
    print(f"tracing ({describe_machine('cpu')})")
    print(f"{'layers':>8}{'':>8}{'forward':>10}{'backward':>10}{'CPU s':>8}{'ratio':>8}")
    # What torch imports when it traces first is not counted.
    trace("plain", 1)
    figures = {}
    for depth in args.depths:
        for variant in ("plain", "lime"):
            seconds, forward, backward = trace(variant, depth)
            row = {"seconds": seconds, "forward_nodes": forward, "backward_nodes": backward}
            figures.setdefault(str(depth), {})[variant] = row
            ratio = seconds / figures[str(depth)]["plain"]["seconds"]
            print(f"{depth:8}{variant:>8}{forward:10}{backward:10}{seconds:8.1f}{ratio:8.2f}")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        result = {"title": "tracing", "machine": describe_machine("cpu"), "figures": figures}
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
