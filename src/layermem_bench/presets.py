"""Presets: runs by name, as a table; a plugin adds functions that return one.

Three scales: tiny (minutes on two CPU cores), small (minutes on one GPU), paper (the paper's own
numbers; what the paper does not say is marked "assumed").
"""

from collections.abc import Callable
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
    if f"tiny-{name}" in known:
        if name in known:
            raise ValueError(
                f"{name!r} is short for tiny-{name}, and a plugin has a preset of that name: "
                "rename its function"
            )
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
_paper_1b, _paper_150m = partial(_paper_sizes, 2048, 16, 32), partial(_paper_sizes, 768, 12, 12)
_linear = partial(Optim, schedule="linear", min_lr=0.0)


def _fineweb(block_size: int, subset: str = "sample-10BT") -> Data:
    return Data(
        source="HuggingFaceFW/fineweb-edu",
        subset=subset,
        tokenizer="openai-community/gpt2",
        block_size=block_size,
        validation_share=0.001,
    )


def _tiny_lm() -> Run:
    return Run(
        max_steps=400,
        eval_every=50,
        eval_blocks=200,
        model=_sizes(64, 8, 8),
        data=Data(source="stdlib", tokenizer="bytes", block_size=128),
        optim=Optim(batch_size=16, warmup_steps=40),
        compute=Compute(micro_batch=16, precision="float32"),
    )


def _quiet_lm() -> Run:
    run = _tiny_lm()
    return replace(
        run,
        max_steps=1600,
        eval_every=1600,
        eval_blocks=8192,
        save_every=400,
        keep=1,
        log_every=10,
        data=replace(run.data, validation_share=0.05),
        optim=replace(run.optim, lr=1e-2, warmup_steps=100),
    )


def _small_30m() -> Run:
    return Run(
        max_steps=2000,
        eval_every=200,
        eval_blocks=1000,
        save_every=200,
        log_every=10,
        model=_sizes(384, 8, 6, tie_word_embeddings=True),
        data=_fineweb(1024),
        optim=Optim(batch_size=64, warmup_steps=200),
        compute=Compute(micro_batch=32, compile=True),
    )


def _paper(model: Callable[[], Model], micro_batch: int, **changes: Any) -> Run:
    """Return 20,000 steps of 1024 sequences of 2048 tokens of FineWeb-Edu's sample of 100B tokens;
    which 50B the paper took it does not say."""
    run = Run(
        max_steps=20_000,
        eval_every=1000,
        eval_blocks=2000,
        save_every=1000,
        log_every=10,
        model=model(),
        data=_fineweb(2048, "sample-100BT"),
        optim=Optim(batch_size=1024),
        compute=Compute(micro_batch=micro_batch, precision="bfloat16", compile=True),
    )
    return replace(run, **changes)


def _depth(layers: int) -> Run:
    return _paper(lambda: _paper_sizes(256, layers, 8), 8, max_steps=5000, seed=42)


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


def _aet(operands: int, examples: int, epochs: int, batch_size: int) -> Run:
    steps = epochs * examples // batch_size
    # The default is named, so that a recorded config says how its problems were drawn.
    options = (f"operands={operands}", "held_out=strict")
    task = Task(name="arithmetic", examples=examples, options=options)
    every = max(1, steps // min(epochs, 20))
    optim = _linear(batch_size=batch_size)
    return _on_task(task, _sizes(32, 4, 4), optim, steps, every, precision="float32")


def _prosqa(epochs: int, model: Model, optim: Optim, micro_batch: int, *options: str) -> Run:
    # As many problems as the original training set has.
    task = Task(name="prosqa", examples=17_886, validation=300, test=500)
    task = replace(task, options=("graphs=crossed", *options))
    epoch = task.examples // optim.batch_size
    return _on_task(task, model, optim, epochs * epoch, epoch, micro_batch=micro_batch)


def _queries(
    name: str, options: str, model: Model, examples: int, epochs: int, optim: Optim, **more: Any
) -> Run:
    task = Task(name=name, examples=examples, options=tuple(options.split()), **more)
    steps = epochs * examples // optim.batch_size
    return _on_task(task, model, optim, steps, max(1, steps // 10))


def _mqar(
    vocabulary: int, pairs: int, length: int, model: Model, examples: int, epochs: int, optim: Optim
) -> Run:
    options = f"vocabulary={vocabulary} pairs={pairs} length={length}"
    # As many test problems as the code of Arora et al. draws.
    return _queries("mqar", options, model, examples, epochs, optim, test=3_000)


_chains = partial(_queries, "chains")
_QUICK, _LARGE = Optim(lr=1e-3, batch_size=64, warmup_steps=50), Optim(batch_size=256)
_SLOW = Optim(lr=5e-5, batch_size=256)
_PROSQA_RATE = _linear(lr=1e-4, batch_size=128, warmup_steps=139)
_150M_SHORT = {"max_steps": 2000, "optim": _LARGE, "data": _fineweb(2048)}
_TINY_PROOFS = ("steps=3", "nodes=12", "statements=15")
_BY_PLACES = "depth=5 chains=3 values=9 order=levels ask=statements names=places"
# Operands, examples, epochs, batch, where.
_EXPRESSIONS = {
    "tiny-aet-4": (4, 20_000, 12, 64, ", width 32: minutes on one CPU core"),
    "tiny-aet-5": (5, 50_000, 20, 128, ": a quarter of an hour on one CPU core"),
    "tiny-aet-6": (6, 50_000, 20, 128, ": a quarter of an hour on one CPU core"),
    **{f"small-aet-{n}": (n, 50_000, 60, 128, ": minutes on a GPU") for n in (4, 5, 6)},
    **{f"paper-aet-{n}": (n, 50_000, 200, 128, ", the paper's (batch assumed)") for n in (4, 5, 6)},
}
_TEXT: dict[str, tuple[Callable[[], Run], str]] = {
    "tiny-lm": (
        _tiny_lm,
        "Bytes of Python's library, 8 layers of width 64: minutes on two cores",
    ),
    "quiet-lm": (_quiet_lm, "The same for 1,600 steps, judged on 1 MB: tells apart 0.01 nats"),
    "small-30m": (_small_30m, "30M on FineWeb-Edu: minutes on one GPU (sizes assumed)"),
    "small-150m": (
        lambda: _paper(_paper_150m, 16, **_150M_SHORT),
        "150M on FineWeb-Edu, the paper's ablations made short (sizes assumed)",
    ),
    "paper-1b-gqa": (
        lambda: _paper(partial(_paper_1b, num_key_value_heads=8), 4),
        "The paper's 1B with 8 key-value heads: 20,000 steps of 1024 sequences of 2048 tokens",
    ),
    "paper-1b-full": (
        lambda: _paper(_paper_1b, 4),
        "The same with a key-value head for every query head",
    ),
    "paper-150m": (
        lambda: _paper(_paper_150m, 16),
        "The paper's ablations at 150M (width, depth and tokens assumed)",
    ),
}
_TASKS: dict[str, tuple[Callable[[], Run], str]] = {
    # From new weights it does not get beyond chance (docs/log/2026-11-prosqa-new-weights.md).
    "tiny-prosqa": (
        lambda: _prosqa(4, _sizes(64, 4, 4), _linear(batch_size=64), 64, *_TINY_PROOFS),
        "ProsQA of 12 nodes and 3 steps, 4 layers of width 64, 4 epochs: minutes on one CPU core",
    ),
    "small-prosqa": (
        lambda: _prosqa(30, _sizes(256, 8, 8), _linear(batch_size=128), 128),
        "ProsQA, 8 layers of width 256, new weights, 30 epochs: minutes on a GPU (sizes assumed)",
    ),
    # The original records by --task.options train=FILE validation=FILE test=FILE; else drawn ones.
    "paper-prosqa": (
        lambda: _prosqa(10, _paper_150m(), _PROSQA_RATE, 32),
        "The paper's: a pretrained 150M (--model.pretrained), 10 epochs, rate 1e-4, batch 128",
    ),
    # Problems are seen 13 times: of problems seen once the plain decoder had learnt nothing.
    "tiny-mqar": (
        lambda: _mqar(64, 8, 32, _sizes(64, 2, 2), 3_000, 13, _QUICK),
        "Recall of 8 pairs in 32 words of 64, 2 layers of width 64: a minute on one CPU core",
    ),
    "small-mqar": (
        lambda: _mqar(8192, 16, 256, _sizes(128, 2, 1), 100_000, 16, _LARGE),
        "Recall of 16 pairs in 256 words of 8,192, 2 layers of width 128: minutes on a GPU",
    ),
    # The learning rate is one of --rates 1e-4 4.6e-4 2.2e-3 1e-2, as there (batch size assumed).
    "paper-mqar": (
        lambda: _mqar(8192, 64, 512, _sizes(128, 2, 1), 100_000, 64, _LARGE),
        "Arora et al.'s: 64 pairs in 512 words of 8,192, 100,000 problems, 64 epochs",
    ),
    # A level is found soon and practised while the next is found (docs/results/recall.md).
    "tiny-chains": (
        lambda: _chains(_BY_PLACES, _sizes(64, 4, 4), 160_000, 1, _QUICK),
        "Three chains of 5 values handed on, 4 layers of width 64: minutes on one CPU core",
    ),
    "small-chains": (
        lambda: _chains("depth=8 chains=2", _sizes(256, 8, 8), 100_000, 20, _LARGE),
        "Two chains of 8 assignments, 8 layers of width 256: minutes on a GPU",
    ),
    # Causal, where theirs are encoders (examples, epochs and learning rate assumed).
    "paper-chains": (
        lambda: _chains("depth=12 chains=1 learned=6", _sizes(768, 12, 12), 100_000, 100, _SLOW),
        "Zhang et al.'s: a chain of 12 assignments, the first 6 learned, 12 layers of width 768",
    ),
}
for _name, (_make, _told) in _TEXT.items():
    _KNOWN.put(_name, _make, _told)
for _layers in (32, 64, 128):
    _told = f"The paper's depth study, {_layers} layers of width 256 (learning rate assumed)"
    _KNOWN.put(f"paper-depth-{_layers}", partial(_depth, _layers), _told)
for _name, (_operands, _examples, _epochs, _batch, _where) in _EXPRESSIONS.items():
    _told = f"{_examples:,} expressions of {_operands} operands, {_epochs} epochs{_where}"
    _KNOWN.put(_name, partial(_aet, _operands, _examples, _epochs, _batch), _told)
for _name, (_make, _told) in _TASKS.items():
    _KNOWN.put(_name, _make, _told)
