"""The section of the GPU benchmark about decoding: one token with a static cache."""

from functools import partial

import torch
from gpu_setup import build_columns, describe_error, free_memory, measure_columns
from measure import forcing
from transformers import StaticCache

from layermem.models.keywords import CACHE
from layermem_bench.efficiency.measuring import read_clock

PROMPT = 256
SIZES = ("64 layers", "1B, 8 kv heads")


def list_decoding(setup):
    """With and without a CUDA graph, of one sequence and of eight."""
    return {
        f"{name}, batch {batch}, {'CUDA graph' if captures else 'eager'}": partial(
            measure_decoding, setup, name, batch, captures
        )
        for batch in (1, 8)
        for captures in (True, False)
        for name in SIZES
    }


def measure_decoding(setup, name, batch, captures):
    """Measure a decoded token of each column."""
    count = 2 if setup.smoke else 50
    # Of a graph that is replayed nobody can see whether it has a buffer.
    names = ["deferred", "triton"] if captures else ["grouped", "deferred", "triton"]
    models, failed = build_columns(setup, name, names)
    decoders = {}
    for column, (model, implementation) in models.items():
        try:
            with forcing(implementation):
                decoder = make_decoder(setup, model, setup.draw_ids(name, batch, PROMPT), count)
                if captures and setup.device == "cuda":
                    decoder = capture(decoder)
            decoders[column] = decoder, implementation
        except Exception as error:  # the other columns still run
            failed[column] = describe_error(error)
            free_memory()

    def decode_tokens(decode_token):
        for _ in range(count):
            decode_token()

    return measure_columns(setup, decoders, decode_tokens, failed=failed, count=count)


@torch.no_grad()
def make_decoder(setup, model, prompt, count):
    """Return a function that decodes the next token after a prompt."""
    model.eval()
    # Room for all rounds, a trial, a warm-up, and what ``capture`` runs; each continues where the
    # last one ended.
    length = prompt.shape[1] + 4 + count * (setup.repeats + 2)
    cache = StaticCache(config=model.config, max_cache_len=length)
    model(prompt, **{CACHE: cache}, use_cache=True, logits_to_keep=1)
    token = prompt[:, -1:].clone()
    positions = torch.full_like(token, prompt.shape[1])

    @torch.no_grad()
    def decode_token():
        return model(token, position_ids=positions, **{CACHE: cache}, use_cache=True).logits

    return decode_token


def capture(run):
    """Return a function that replays what ``run`` launches, as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    read_clock("cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay():
        # A graph does not keep the tensors that it reads, ``run`` does.
        graph.replay()
        return run

    return replay
