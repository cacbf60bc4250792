"""How long training waits for a checkpoint: written while it waits, and in the background.

    python benchmarks/checkpoint_pause.py
    python benchmarks/checkpoint_pause.py --processes 2

Two processes share the parameters (``compute.shard``). Each way trains the same run in turn; the
last checkpoint, which is waited for in both, is left out.
"""

import argparse
import json
import os
import socket
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from layermem_bench.config.run import Compute, Data, Model, Optim, Run
from layermem_bench.train.run import train
from layermem_bench.train.trainer import Trainer


def a_run(folder: Path, steps: int, width: int, layers: int) -> Run:
    """Return a run on made-up text with a checkpoint every other step."""
    source = folder / "words.jsonl"
    texts = [" ".join(str(i * j) for j in range(100)) for i in range(200)]
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return Run(
        max_steps=steps,
        eval_every=steps,
        eval_blocks=2,
        save_every=2,
        model=Model(
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=8,
        ),
        data=Data(
            source=str(source), cache=str(folder / "cache"), validation_share=0.1, block_size=64
        ),
        # Few tokens, so that a step takes less time than a checkpoint.
        optim=Optim(batch_size=4),
        compute=Compute(micro_batch=2, precision="float32"),
    )


def measure(rank: int, folder: Path, options: argparse.Namespace, port: int) -> None:
    """Train each way; the first process writes what it measured."""
    if options.processes > 1:
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(options.processes)}
        os.environ.update(shared | ranks)
    run = a_run(folder, options.steps, options.width, options.layers)
    run = replace(run, compute=replace(run.compute, shard=options.processes > 1))
    save, found = Trainer._save_checkpoint, {}
    for way, behind in (("waiting", False), ("in the background", True)):
        pauses: list[float] = []

        def timed(self, *args, pauses=pauses):
            started = time.perf_counter()
            save(self, *args)
            pauses.append(time.perf_counter() - started)

        Trainer._save_checkpoint = timed
        compute = replace(run.compute, async_checkpoints=behind)
        done = train(replace(run, compute=compute), folder / way.replace(" ", "-"))
        speeds = [row["tokens_per_second"] for row in done.rows() if "tokens_per_second" in row]
        step = run.optim.batch_size * run.data.block_size / statistics.median(speeds[1:])
        found[way] = {"pauses": pauses[:-1], "step": step, "last": pauses[-1]}
    Trainer._save_checkpoint = save
    if rank == 0:
        weights = load_file(done.final / "model.safetensors")
        found["parameters"] = sum(weight.numel() for weight in weights.values())
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--steps", type=int, default=13, help="a checkpoint follows every other")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, socket.socket() as probe:
        folder = Path(name)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        if options.processes == 1:
            measure(0, folder, options, port)
        else:
            work = (folder, options, port)
            torch.multiprocessing.spawn(measure, work, nprocs=options.processes)
        found = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    print(f"{found.pop('parameters'):,} parameters, {options.processes} processes")
    for way, seen in found.items():
        longest, median = max(seen["pauses"]), statistics.median(seen["pauses"])
        print(
            f"{way}: pause median {median:.2f} s, longest {longest:.2f} s of "
            f"{len(seen['pauses'])}; a step takes {seen['step']:.2f} s; last {seen['last']:.2f} s"
        )


if __name__ == "__main__":
    main()
