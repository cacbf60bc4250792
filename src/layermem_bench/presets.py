"""Presets: runs by name, as a table; a plugin adds functions that return one.

Three scales: tiny (minutes on two CPU cores), small (minutes on one GPU), paper (the paper's own
numbers; what the paper does not say is marked "assumed").
"""

from dataclasses import replace
from functools import partial
from typing import Any

from layermem_bench.config.named import Named
from layermem_bench.config.run import Compute, Data, Model, Optim, Run, Task

_KNOWN = Named[Run]("preset")
preset, names, description = _KNOWN.add, _KNOWN.names, _KNOWN.description
"""Makes a function a preset; names of all presets, those of plugins last; a preset's one line."""


def get_preset(name: str) -> Run:
    """Return the run of a preset; "aet-4" alone is "tiny-aet-4"."""
    known = names()
    if name not in known and f"tiny-{name}" in known:
        name = f"tiny-{name}"
    short_names = (each.removeprefix("tiny-") for each in known)
    return replace(_KNOWN.make(name, short_names), preset=name)


def _sizes(width: int, layers: int, heads: int, **more: Any) -> Model:
    """Return a model whose mlp is four times as wide as its residual stream."""
    return Model(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        **more,
    )


_paper_sizes = partial(_sizes, vocab_size=50_257, tie_word_embeddings=True)
_linear = partial(Optim, schedule="linear", min_lr=0.0)


_FINEWEB = Data(
    source="HuggingFaceFW/fineweb-edu",
    subset="sample-10BT",
    tokenizer="openai-community/gpt2",
    block_size=1024,
    validation_share=0.001,
)
_TINY_LM = Run(
    max_steps=400,
    eval_every=50,
    eval_blocks=200,
    model=_sizes(64, 8, 8),
    data=Data(source="stdlib", tokenizer="bytes", block_size=128),
    optim=Optim(batch_size=16, warmup_steps=40),
    compute=Compute(micro_batch=16, precision="float32"),
)
_QUIET_LM = replace(
    _TINY_LM,
    max_steps=1600,
    eval_every=1600,
    eval_blocks=8192,
    model=_sizes(64, 8, 4),
    save_every=400,
    keep=1,
    log_every=10,
    data=replace(_TINY_LM.data, validation_share=0.05),
    optim=replace(_TINY_LM.optim, lr=1e-2, warmup_steps=100),
)
_SMALL_30M = Run(
    max_steps=2000,
    eval_every=200,
    eval_blocks=1000,
    save_every=200,
    log_every=10,
    model=_sizes(384, 8, 6, tie_word_embeddings=True),
    data=_FINEWEB,
    optim=Optim(batch_size=64, warmup_steps=200),
    compute=Compute(micro_batch=32, compile=True),
)
# 20,000 steps of 1024 sequences of 2048 tokens; which 50B of the sample the paper took it does not
# say.
_PAPER_150M = Run(
    max_steps=20_000,
    eval_every=1000,
    eval_blocks=2000,
    save_every=1000,
    log_every=10,
    model=_paper_sizes(768, 12, 12),
    data=replace(_FINEWEB, subset="sample-100BT", block_size=2048),
    optim=Optim(batch_size=1024),
    compute=Compute(micro_batch=16, precision="bfloat16", compile=True),
)


def _paper(model: Model, micro_batch: int, **changes: Any) -> Run:
    compute = replace(_PAPER_150M.compute, micro_batch=micro_batch)
    return replace(_PAPER_150M, model=model, compute=compute, **changes)


def _on_task(task: Task, model: Model, optim: Optim, steps: int, every: int, **compute: Any) -> Run:
    """Return a run on a task that validates and saves every so many steps."""
    return Run(
        max_steps=steps,
        eval_every=every,
        log_every=10,
        save_every=every,
        model=model,
        task=task,
        optim=optim,
        compute=Compute(**{"micro_batch": optim.batch_size, **compute}),
    )


def _aet(operands: int, examples: int, epochs: int, batch_size: int, where: str) -> tuple[str, Run]:
    steps = epochs * examples // batch_size
    # The default is named, so that a recorded config says how its problems were drawn.
    options = (f"operands={operands}", "held_out=strict")
    task = Task(name="arithmetic", examples=examples, options=options)
    every = max(1, steps // min(epochs, 20))
    optim = _linear(batch_size=batch_size)
    told = f"{examples:,} expressions of {operands} operands, {epochs} epochs{where}"
    return told, _on_task(task, _sizes(32, 4, 4), optim, steps, every, precision="float32")


def _prosqa(epochs: int, model: Model, optim: Optim, micro_batch: int, *options: str) -> Run:
    # As many problems as the original training set has.
    task = Task(name="prosqa", examples=17_886, validation=300, test=500)
    task = replace(task, options=("graphs=crossed", *options))
    epoch = task.examples // optim.batch_size
    return _on_task(task, model, optim, epochs * epoch, epoch, micro_batch=micro_batch)


def _queries(name: str, options: str, layers: tuple[int, int], examples: int, epochs: int) -> Run:
    """Return a run of width 64 on a task whose problems have queries."""
    task = Task(name=name, examples=examples, options=tuple(options.split()))
    # As many test problems of recall as the code of Arora et al. draws.
    task = replace(task, test=3_000) if name == "mqar" else task
    optim = Optim(lr=1e-3, batch_size=64, warmup_steps=50)
    steps = epochs * examples // optim.batch_size
    return _on_task(task, _sizes(64, *layers), optim, steps, max(1, steps // 10))


_OPERANDS, _AS_IN_PAPER = (4, 5, 6), ", the paper's (batch assumed)"
_TINY_PROOFS = ("steps=3", "nodes=12", "statements=15")
_BY_PLACES = "depth=5 chains=3 values=9 order=levels ask=statements names=places"
_RUNS: dict[str, tuple[str, Run]] = {
    "tiny-lm": (
        "Bytes of Python's library, 8 layers of width 64: minutes on two cores",
        _TINY_LM,
    ),
    "quiet-lm": ("The same for 1,600 steps, judged on 1 MB: tells apart 0.01 nats", _QUIET_LM),
    "small-30m": ("30M on FineWeb-Edu: minutes on one GPU (sizes assumed)", _SMALL_30M),
    "paper-1b-gqa": (
        "The paper's 1B with 8 key-value heads: 20,000 steps of 1024 sequences of 2048 tokens",
        _paper(_paper_sizes(2048, 16, 32, num_key_value_heads=8), 4),
    ),
    "paper-1b-full": (
        "The same with a key-value head for every query head",
        _paper(_paper_sizes(2048, 16, 32), 4),
    ),
    "paper-150m": (
        "The paper's ablations at 150M (width, depth and tokens assumed)",
        _PAPER_150M,
    ),
    **{
        f"paper-depth-{layers}": (
            f"The paper's depth study, {layers} layers of width 256 (learning rate assumed)",
            _paper(_paper_sizes(256, layers, 8), 8, max_steps=5000, seed=42),
        )
        for layers in (32, 64, 128)
    },
    "tiny-aet-4": _aet(4, 20_000, 12, 64, ", width 32: minutes on one CPU core"),
    "tiny-aet-5": _aet(5, 50_000, 20, 128, ": a quarter of an hour on one CPU core"),
    "tiny-aet-6": _aet(6, 50_000, 20, 128, ": a quarter of an hour on one CPU core"),
    **{f"small-aet-{n}": _aet(n, 50_000, 60, 128, ": minutes on a GPU") for n in _OPERANDS},
    **{f"paper-aet-{n}": _aet(n, 50_000, 200, 128, _AS_IN_PAPER) for n in _OPERANDS},
    # From new weights it does not get beyond chance (docs/log/2026-11-prosqa-new-weights.md).
    "tiny-prosqa": (
        "ProsQA of 12 nodes and 3 steps, 4 layers of width 64, 4 epochs: minutes on one CPU core",
        _prosqa(4, _sizes(64, 4, 4), _linear(batch_size=64), 64, *_TINY_PROOFS),
    ),
    "small-prosqa": (
        "ProsQA, 8 layers of width 256, new weights, 30 epochs: minutes on a GPU (sizes assumed)",
        _prosqa(30, _sizes(256, 8, 8), _linear(batch_size=128), 128),
    ),
    # The original records by --task.options train=FILE validation=FILE test=FILE; else drawn ones.
    "paper-prosqa": (
        "The paper's: a pretrained 150M (--model.pretrained), 10 epochs, rate 1e-4, batch 128",
        _prosqa(10, _PAPER_150M.model, _linear(lr=1e-4, batch_size=128, warmup_steps=139), 32),
    ),
    # Problems are seen 13 times: of problems seen once the plain decoder had learnt nothing.
    "tiny-mqar": (
        "Recall of 8 pairs in 32 words of 64, 2 layers of width 64: a minute on one CPU core",
        _queries("mqar", "vocabulary=64 pairs=8 length=32", (2, 2), 3_000, 13),
    ),
    # A level is found soon and practised while the next is found (docs/results/tasks.md).
    "tiny-chains": (
        "Three chains of 5 values handed on, 4 layers of width 64: minutes on one CPU core",
        _queries("chains", _BY_PLACES, (4, 4), 160_000, 1),
    ),
}
for _name, (_told, _run) in _RUNS.items():
    _KNOWN.put(_name, partial(replace, _run), _told)
