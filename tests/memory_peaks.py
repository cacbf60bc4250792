"""What training allocates at its peak, in one or two processes; written as JSON.

Started with the variables of torchrun where there are two: memory_peaks.py FOLDER NAME VARIANT
"""

import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from layermem_bench.config.run import Compute, Data, Model, Optim, Run
from layermem_bench.train.run import train

ALONE = {
    "float32": {},
    "two micro-batches": {"micro_batch": 4},
    "one key-value head a query head": {"heads": 8, "micro_batch": 4},
    "bfloat16": {"precision": "bfloat16", "micro_batch": 4},
    "checkpointed": {"checkpoint_activations": True, "micro_batch": 4},
    "bfloat16 checkpointed": {
        "precision": "bfloat16",
        "checkpoint_activations": True,
        "micro_batch": 4,
    },
    "chunked loss": {"loss_chunk": 64, "vocab_size": 4096},
    "bfloat16 chunked loss": {"loss_chunk": 64, "vocab_size": 4096, "precision": "bfloat16"},
}
TOGETHER = {
    "copied": {},
    "copied, two micro-batches": {"micro_batch": 2},
    "sharded": {"shard": True},
    "sharded, two micro-batches": {"shard": True, "micro_batch": 2},
    "sharded bfloat16": {"shard": True, "precision": "bfloat16", "micro_batch": 2},
    "sharded checkpointed": {"shard": True, "checkpoint_activations": True, "micro_batch": 2},
}


def run_of(name, variant, folder):
    """Return a run of two steps whose name is in one of the tables; write its text if need be."""
    source = Path(folder, "words.jsonl")
    if not source.exists():
        texts = [" ".join(f"w{(i * j) % 13}" for j in range(200)) for i in range(60)]
        lines = (json.dumps({"text": text}) + "\n" for text in texts)
        source.write_text("".join(lines), encoding="utf-8")
    given = dict((ALONE | TOGETHER)[name])
    heads, vocabulary = given.pop("heads", 2), given.pop("vocab_size", 512)
    return Run(
        variant=variant,
        max_steps=2,
        eval_every=2,
        eval_blocks=1,
        log_every=2,
        model=Model(
            hidden_size=64,
            intermediate_size=208,
            num_hidden_layers=6,
            num_attention_heads=8,
            num_key_value_heads=heads,
            vocab_size=vocabulary,
            tie_word_embeddings=True,
        ),
        data=Data(
            source=str(source),
            cache=str(folder),
            block_size=64,
            validation_share=0.2,
        ),
        optim=Optim(batch_size=8),
        compute=Compute(**{"micro_batch": 8, "precision": "float32", **given}),
    )


@contextmanager
def watched():
    """Yield a list whose only number will be the most bytes alive at once beyond those before."""
    peak = []
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        yield peak
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    peak.append(most)


def main(folder, name, variant):
    """Train one run, and write the peak of this process: what others leave behind is not in it."""
    rank, processes = os.environ.get("RANK", "0"), int(os.environ.get("WORLD_SIZE", "1"))
    run = run_of(name, variant, folder)
    with watched() as peak:
        train(run, folder / f"{processes} {name} {variant}".replace(" ", "-"))
    (folder / f"peak-{rank}.json").write_text(json.dumps(peak[0]), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
